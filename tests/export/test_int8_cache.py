"""The int8 KV cache: its codes are those of the float cache, and the engine does all it does."""

import mlx.core as mx
import numpy as np
import onnx
import pytest

from pippin.export.folder import export_folder
from pippin.export.int8_attention import SHORT
from pippin.export.int8_cache import calibration_ids
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.errors import InputError
from pippin.runtime.ort_engine import OrtEngine
from support.exported import (
    CONTEXT,
    SIZES,
    PlainRun,
    difference,
    graph_path,
    mlx_logits,
    random_ids,
    read_model,
    tiny_checkpoint,
)
from support.tiny import make_tiny

IDS = random_ids(200, seed=3)
LONG = 4096


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"), max_position_embeddings=LONG)


@pytest.fixture(scope="module")
def folders(checkpoint, tmp_path_factory):
    """The same graph with each type of cache."""
    place = tmp_path_factory.mktemp("folders")
    return {
        kv: export_folder(checkpoint, place / kv, weights="fp32", kv=kv) for kv in ("fp32", "int8")
    }


def on_codes(session, ids, count=SHORT):
    """Logits of `ids` in calls so short that no token sees another unrounded."""
    return np.concatenate(
        [session.verify(ids[at : at + count]) for at in range(0, len(ids), count)]
    )


def first_layer(folder, ids, past):
    """Keys and values of layer 0 that `ids` after `past` empty tokens leave, [K, L, D] each."""
    run = PlainRun(folder)
    feeds = run.empty_caches(1, past)
    feeds["input_ids"] = np.array([ids])
    feeds["attention_mask"] = np.ones((1, past + len(ids)), np.int64)
    values = run.session.run(["present.0.key", "present.0.value"], feeds)
    return [value[0, :, past:] for value in values]


GPTJ = {"n_embd": 96, "n_head": 6, "n_layer": 2, "rotary_dim": 16, "n_positions": LONG}


@pytest.mark.parametrize("past", [0, 3800])
@pytest.mark.parametrize("kind", ["Llama", "GPTJ"], ids=["halves", "interleaved"])
def test_codes_are_the_float_cache_rounded_and_nothing_is_cut_off(kind, past, tmp_path):
    """What layer 0 keeps depends on token and position alone; also where slow pairs have turned,
    of which one channel is large here and the other is not.
    """
    sizes = GPTJ if kind == "GPTJ" else {**SIZES, "max_position_embeddings": LONG}
    sizes = {**sizes, "vocab_size": 32}  # few enough for all to be among the random tokens
    ids = random_ids(200, 32)
    file = make_tiny(tmp_path / "tiny", kind, **sizes).path / "model.safetensors"
    weights = mx.load(str(file))
    (name,) = (name for name in weights if ".0." in name and name.endswith("k_proj.weight"))
    large = 14 if kind == "GPTJ" else 7  # of the first head; turns with 15
    weights[name][large] *= 20.0
    mx.eval(weights)
    file.unlink()
    mx.save_safetensors(str(file), weights, {"format": "pt"})
    checkpoint = open_checkpoint(file.parent)
    exact, codes = (
        first_layer(export_folder(checkpoint, tmp_path / kv, weights="fp32", kv=kv), ids, past)
        for kv in ("fp32", "int8")
    )
    scales = {t.name: t for t in read_model(tmp_path / "int8").graph.initializer}
    for part, wanted, found in zip(("key", "value"), exact, codes, strict=True):
        scale = onnx.numpy_helper.to_array(scales[f"present.0.{part}.scale"])[0]  # [K, 1, D]
        assert scale.shape == (wanted.shape[0], 1, wanted.shape[2])
        assert found.dtype == np.int8
        assert (np.abs(found * scale - wanted) / scale).max() <= 0.51
        assert np.abs(found).max() > 90  # no more headroom than is stated


@pytest.mark.parametrize("weights", ["fp32", "fp16", "q4", "int8"])
def test_every_kind_of_weights_has_it(weights, checkpoint, tmp_path):
    floats = export_folder(checkpoint, tmp_path / "floats", weights=weights, context=CONTEXT)
    codes = export_folder(
        checkpoint, tmp_path / "codes", weights=weights, context=CONTEXT, kv="int8"
    )
    wanted = PlainRun(floats)(IDS)[0]
    engine = OrtEngine.from_folder(codes, threads=1)
    assert engine.info.kv_bytes_per_token == 3 * 2 * 2 * 16
    assert 0 < difference(on_codes(engine.open(), IDS), wanted) < 0.1
    assert difference(engine.open().verify(IDS), wanted) < 0.1
    arg = next(a for a in read_model(codes).graph.input if a.name == "past_key_values.2.value")
    assert arg.type.tensor_type.elem_type == onnx.TensorProto.INT8


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Mistral", {"sliding_window": 16, "head_dim": 16}),
        ("GptOss", {"head_dim": 16, "num_local_experts": 4, "sliding_window": 16}),
        ("Mpt", {"d_model": 96, "n_heads": 6, "n_layers": 2, "max_seq_len": 512}),
        ("GPTJ", GPTJ),
    ],
    ids=["window", "sinks", "alibi", "interleaved"],
)
def test_together_with_what_else_attention_takes(kind, changes, tmp_path):
    sizes = SIZES if kind in ("Mistral", "GptOss") else {}
    checkpoint = open_checkpoint(make_tiny(tmp_path / "tiny", kind, **sizes, **changes).path)
    folder = export_folder(checkpoint, tmp_path / "out", weights="fp32", kv="int8")
    engine, wanted = OrtEngine.from_folder(folder, threads=1), mlx_logits(checkpoint, IDS[:60])
    assert difference(on_codes(engine.open(), IDS[:60]), wanted) < 0.15
    assert difference(engine.open().verify(IDS[:60]), wanted) < 0.15


def test_sessions_of_the_engine(folders, tmp_path):
    """In short calls, step by step, rolled back, forked and restored: the same codes."""
    engine = OrtEngine.from_folder(folders["int8"], threads=1)
    whole = on_codes(engine.open(), IDS)
    session = engine.open()
    assert difference(on_codes(session, IDS[:150], 5), whole[:150]) < 1e-5
    steps = np.stack([session.step(token) for token in IDS[150:]])
    assert difference(steps, whole[150:]) < 1e-5
    session.rollback(100)
    other = session.fork()
    session.save(tmp_path / "saved.kv", IDS[:100])
    restored, tokens = engine.restore(tmp_path / "saved.kv")
    assert tokens == IDS[:100]
    for one in (session, other, restored):
        assert difference(on_codes(one, IDS[100:]), whole[100:]) < 1e-5
    floats = OrtEngine.from_folder(folders["fp32"], threads=1)
    with pytest.raises(InputError, match="another model"):
        floats.restore(tmp_path / "saved.kv")


def test_long_calls_leave_the_codes_of_the_floats_that_they_were_computed_in(folders):
    """The call itself says what it says on the float cache, and keeps that, rounded."""
    runs = {kv: PlainRun(folder) for kv, folder in folders.items()}
    logits = {kv: run(IDS) for kv, run in runs.items()}
    assert difference(logits["int8"], logits["fp32"]) < 1e-5
    scales = {t.name: t for t in read_model(folders["int8"]).graph.initializer}
    for name, exact in runs["fp32"]._caches.items():
        present = name.replace("past_key_values", "present")
        scale = onnx.numpy_helper.to_array(scales[f"{present}.scale"])
        error = np.abs(runs["int8"]._caches[name] * scale - exact) / scale
        assert np.quantile(error, 0.999) <= 0.51  # what is cut off is rare


def test_the_first_token_is_a_multiple_of_the_scales(tmp_path):
    """Whatever comes after it, keys and values of what a conversation begins with are exact."""
    checkpoint = tiny_checkpoint(tmp_path / "tiny", vocab_size=32)
    one = open_checkpoint(checkpoint.path)
    folder = export_folder(one, tmp_path / "out", weights="fp32", kv="int8")
    floats = export_folder(one, tmp_path / "floats", weights="fp32", kv="fp32")
    (start, *_), *_ = calibration_ids(one, 32, CONTEXT)
    exact, codes = (first_layer(f, [start], 0) for f in (floats, folder))
    scales = {t.name: t for t in read_model(folder).graph.initializer}
    for part, wanted, found in zip(("key", "value"), exact, codes, strict=True):
        scale = onnx.numpy_helper.to_array(scales[f"present.0.{part}.scale"])[0]
        large = np.abs(wanted) > scale
        assert large.mean() > 0.5
        assert (np.abs(found * scale - wanted) / scale)[large].max() < 0.1


def test_two_exports_are_equal(checkpoint, folders, tmp_path):
    again = export_folder(checkpoint, tmp_path / "again", weights="fp32", kv="int8")
    assert graph_path(again).read_bytes() == graph_path(folders["int8"]).read_bytes()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kv": "int4"}, "no type of KV cache 'int4'; choose fp32, fp16, int8"),
        ({"kv": "fp16", "weights": "q4"}, "with q4 weights .* in fp32 or int8, not in fp16"),
        ({"kv": "fp32", "weights": "fp16"}, "with fp16 weights .* in fp16 or int8, not in fp32"),
        ({"kv": "int8", "dialect": "standard"}, "no int8 KV cache; export with the dialect gqa"),
    ],
)
def test_refusals(options, complaint, checkpoint, tmp_path):
    with pytest.raises(InputError, match=complaint) as raised:
        export_folder(checkpoint, tmp_path / "out", **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_scales_come_from_no_more_tokens_than_the_context(checkpoint, tmp_path):
    out = export_folder(checkpoint, tmp_path / "out", weights="fp32", kv="int8", context=20)
    assert OrtEngine.from_folder(out, threads=1).open().verify(IDS[:20]).shape == (20, 97)
