"""Tiny T5s and Marians against transformers, on MLX, numpy and onnxruntime, at every step."""

from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from pippin.export.quantize import quantize_decoder
from pippin.export.seq2seq_folder import export_seq2seq
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.encoder_load import load_seq2seq
from pippin.mlx_model.mlx_stack_ops import BiasedCache, CrossCache, MlxStackOps, Padding
from pippin.mlx_model.numpy_ops import NumpyCache
from pippin.mlx_model.numpy_stack_ops import NumpyCross, NumpyPadding, NumpyStackOps
from pippin.mlx_model.seq2seq_engine import MlxSeq2SeqEngine
from pippin.runtime.errors import ContextError, InputError, PippinError
from pippin.runtime.ort_seq2seq import OrtSeq2SeqEngine
from support.encoders import SEQ2SEQ, TinyStack, error, make_stack

TOLERANCE = 1e-5
ROWS = [pytest.param(name, id=name) for name in SEQ2SEQ]
BACKENDS = ["mlx", "onnx"]


@pytest.fixture(scope="session")
def engine(writer, tmp_path_factory):
    """engine(name, backend), made once."""

    @cache
    def make(name: str, backend: str):
        checkpoint = open_checkpoint(writer(name).path)
        if backend == "mlx":
            return MlxSeq2SeqEngine(checkpoint, name)
        folder = export_seq2seq(checkpoint, tmp_path_factory.mktemp(name) / "out", weights="fp32")
        return OrtSeq2SeqEngine.from_folder(folder, threads=1)

    return make


def sizes(name: str) -> list[tuple[int, int]]:
    """Tokens of the prompt and of the reply: around what the row's distances end at."""
    if name.startswith("marian"):
        return [(1, 1), (20, 42), (40, 22)]  # 63 and the start token are all there is
    return [(1, 1), (9, 19), (20, 21), (21, 22), (140, 30)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ROWS)
def test_each_step_is_as_transformers(name, backend, writer, engine):
    stack = writer(name)
    for length, steps in sizes(name):
        prompt, reply = stack.ids(length), stack.ids(steps, seed=1)
        wanted = stack.logits(prompt, reply)
        session = engine(name, backend).open()
        found = [session.prefill(prompt), *(session.step(token) for token in reply)]
        assert error(np.stack([np.array(row) for row in found]), wanted) <= TOLERANCE
        assert session.length == length + steps
        # the reply in calls of several tokens
        session = engine(name, backend).open()
        session.prefill(prompt)
        half = (steps + 1) // 2
        parts = [session.verify(part) for part in (reply[:half], reply[half:]) if part]
        assert error(np.concatenate([np.array(part) for part in parts]), wanted[1:]) <= TOLERANCE


def test_distances_beyond_the_last_bucket(writer, engine):
    """A reply longer than all distances that are told apart."""
    stack = writer("t5-silu-near")
    prompt, reply = stack.ids(50), stack.ids(60, seed=1)
    wanted = stack.logits(prompt, reply)
    for backend in BACKENDS:
        session = engine("t5-silu-near", backend).open()
        session.prefill(prompt)
        assert error(session.verify(reply), wanted[1:]) <= TOLERANCE


@pytest.mark.parametrize("name", ROWS)
def test_numpy_in_float64_is_as_transformers(name, writer):
    stack = writer(name)
    model = load_seq2seq(open_checkpoint(stack.path), mx.float32)
    length, steps = sizes(name)[-1]
    prompt, reply = stack.ids(length), stack.ids(steps, seed=1)
    ops, ids = NumpyStackOps(), np.array([prompt])
    mask = np.ones_like(ids)
    memory = model.encode(ops, ids, [NumpyPadding(mask)] * model.config.encoder.layers)
    layers = model.config.decoder.layers
    caches, crosses = [NumpyCache() for _ in range(layers)], [NumpyCross(memory, mask)] * layers
    parts = ([model.config.start_token, *reply[:5]], reply[5:])
    found = [model.decode(ops, np.array([part]), caches, crosses)[0] for part in parts]
    assert error(np.concatenate(found), stack.logits(prompt, reply)) <= TOLERANCE


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_padding_of_a_prompt_is_not_seen(name, writer):
    """On MLX and numpy; graphs are tried so in test_seq2seq_export."""
    stack = writer(name)
    model = load_seq2seq(open_checkpoint(stack.path), mx.float32)
    prompt, reply = stack.ids(7), [model.config.start_token, *stack.ids(5, seed=1)]
    ids = np.array([[*prompt, 9, 9, 9], [*prompt[:4], *stack.ids(6, seed=2)]])
    mask = np.ones_like(ids)
    mask[0, 7:] = 0
    layers, deep = model.config.encoder.layers, model.config.decoder.layers
    ops, seen = MlxStackOps(0), mx.array(mask)
    memory = model.encode(ops, mx.array(ids), [Padding(seen)] * layers)
    caches = [BiasedCache() for _ in range(deep)]
    crosses = [CrossCache(memory, seen) for _ in range(deep)]
    on_mlx = model.decode(ops, mx.array([reply, reply]), caches, crosses)
    ops = NumpyStackOps()
    memory = model.encode(ops, ids, [NumpyPadding(mask)] * layers)
    caches, crosses = [NumpyCache() for _ in range(deep)], [NumpyCross(memory, mask)] * deep
    on_numpy = model.decode(ops, np.array([reply, reply]), caches, crosses)
    for row, text in enumerate((prompt, ids[1].tolist())):
        wanted = stack.logits(text, reply[1:])
        assert error(on_mlx[row], wanted) <= TOLERANCE
        assert error(on_numpy[row], wanted) <= TOLERANCE


def test_a_stored_head_that_is_not_the_table_is_used(tmp_path):
    """T5 v1.1 as it is published; transformers 5 itself writes a tied head only."""
    kind, config = SEQ2SEQ["t5-v1.1"]
    tied = make_stack(tmp_path / "tied", kind, config)
    weights = dict(mx.load(str(tied.path / "model.safetensors")))
    head = np.random.default_rng(0).standard_normal((97, 48)).astype(np.float32) / 5
    weights |= {
        "lm_head.weight": mx.array(head),
        "encoder.embed_tokens.weight": weights["shared.weight"],
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": mx.ones((32, 3)),
    }
    folder = tmp_path / "untied"
    folder.mkdir()
    for file in tied.path.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    stack = TinyStack(folder, type(tied.reference).from_pretrained(folder).eval(), 97)
    prompt, reply = stack.ids(20), stack.ids(8, seed=1)
    wanted = stack.logits(prompt, reply)
    assert error(tied.logits(prompt, reply), wanted) > 0.1
    checkpoint = open_checkpoint(folder)
    out = export_seq2seq(checkpoint, tmp_path / "out", weights="fp32")
    for engine in (MlxSeq2SeqEngine(checkpoint, "x"), OrtSeq2SeqEngine.from_folder(out, threads=1)):
        session = engine.open()
        assert error(session.prefill(prompt), wanted[0]) <= TOLERANCE
        assert error(session.verify(reply), wanted[1:]) <= TOLERANCE
    weights["encoder.embed_tokens.weight"] = mx.ones((97, 48))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    with pytest.raises(InputError, match="another table than"):
        load_seq2seq(open_checkpoint(folder))


@pytest.mark.parametrize("weights", ["int8", "q4"])
@pytest.mark.parametrize("name", ["t5", "t5-v1.1", "marian"])
def test_quantized_graphs_compute_what_mlx_computes(name, weights, tmp_path):
    kind, config = SEQ2SEQ[name]
    wide = {"d_model": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 96}
    wide = {key: value for key, value in wide.items() if key in config}
    stack = make_stack(tmp_path / "wide", kind, config | wide)
    checkpoint = open_checkpoint(stack.path)
    ours = MlxSeq2SeqEngine(checkpoint, name)
    quantize_decoder(ours.model, weights)
    folder = export_seq2seq(checkpoint, tmp_path / "out", weights=weights, exact=True)
    prompt, reply = stack.ids(20), stack.ids(8, seed=1)
    answers = []
    for engine in (OrtSeq2SeqEngine.from_folder(folder, threads=1), ours):
        session = engine.open()
        rows = [session.prefill(prompt), *(session.step(token) for token in reply)]
        answers.append(np.stack([np.array(row) for row in rows]))
    assert error(*answers) <= 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["t5", "marian"])
def test_sessions(name, backend, writer, engine):
    """A rollback, a fork and a prompt in parts are as if it had never been otherwise."""
    stack = writer(name)
    prompt, reply, other = stack.ids(12), stack.ids(9, seed=1), stack.ids(5, seed=2)
    session = engine(name, backend).open()
    with pytest.raises(PippinError, match="no reply before"):
        session.step(3)
    session.prefill(prompt)
    session.verify(reply)
    session.rollback(len(prompt) + 4)
    fork = session.fork()
    wanted = stack.logits(prompt, [*reply[:4], *other])[5:]
    assert error(session.verify(other), wanted) <= TOLERANCE
    assert error(fork.verify(other), wanted) <= TOLERANCE
    # back into the prompt, which then goes on otherwise
    session.rollback(7)
    assert session.length == 7
    found = session.prefill(other)
    assert error(found, stack.logits([*prompt[:7], *other], [])[0]) <= TOLERANCE
    session.rollback(0)
    assert error(session.prefill(prompt), stack.logits(prompt, [])[0]) <= TOLERANCE
    # what follows a reply makes all of it the prompt
    session.verify(reply)
    found = session.prefill(other)
    assert error(found, stack.logits([*prompt, *reply, *other], [])[0]) <= TOLERANCE


@pytest.mark.parametrize("backend", BACKENDS)
def test_limits(backend, writer, engine):
    made = engine("marian", backend)
    assert (made.info.backend, made.info.context, made.info.vocab_size) == (backend, 64, 97)
    session = made.open()
    with pytest.raises(ContextError, match="63"):
        session.prefill([5] * 64)
    with pytest.raises(InputError, match="97"):
        session.prefill([97])
    with pytest.raises(InputError, match="not saved"):
        session.save("x", [])
    with pytest.raises(InputError, match="none can be restored"):
        made.restore("x")
