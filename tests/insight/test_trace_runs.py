"""How a trace is run: in chunks, on which graph of a folder, and what is refused."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from pippin.apps.insight import attention, ort_trace
from pippin.apps.insight.ort_masks import Masks
from pippin.apps.insight.ort_nodes import show_nodes
from pippin.apps.insight.trace import Trace, trace
from pippin.export.folder import export_folder
from pippin.export.seq2seq_folder import export_seq2seq
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.seq2seq_engine import MlxSeq2SeqEngine
from pippin.runtime.errors import ContextError, InputError
from pippin.runtime.folder import open_folder
from pippin.runtime.ort_engine import OrtEngine
from pippin.runtime.ort_seq2seq import OrtSeq2SeqEngine
from support.encoders import SEQ2SEQ, make_stack
from support.exported import SIZES, random_ids
from support.foreign_folders import foreign
from support.tiny import Tiny, make_tiny

LONG = 530  # tokens; two chunks of MLX's, three of onnxruntime's
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("Mistral", SIZES | {"sliding_window": 40, "max_position_embeddings": 600}),
    "alibi": ("Mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 600}),
}


def traced(engine: Any, ids: list[int], layers: list[int] | None = None, **options: Any) -> Trace:
    return trace(SimpleNamespace(engine=engine), ids, layers, **options)


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    kind, changes = KINDS[request.param]
    return make_tiny(tmp_path_factory.mktemp(request.param) / "c", kind, vocab_size=97, **changes)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("llama") / "c", **SIZES).path


@pytest.fixture(scope="module")
def folder(llama: Path) -> Path:
    """4-bit weights, with a graph for an int8 KV cache beside the one for floats."""
    out = export_folder(open_checkpoint(llama), llama.parent / "q4", weights="q4")
    assert {"model_q4.onnx", "model_q4_kv8.onnx"} <= {f.name for f in (out / "onnx").iterdir()}
    return out


@pytest.fixture(scope="module", params=["mlx", "onnx"])
def engine(request: pytest.FixtureRequest, llama: Path, folder: Path) -> Any:
    if request.param == "onnx":
        return OrtEngine.from_folder(folder, threads=1)
    return MlxEngine.from_checkpoint(open_checkpoint(llama), "tiny")


@pytest.mark.parametrize("which", ["mlx", "gqa", "standard"])
def test_a_text_of_several_chunks(tiny: Tiny, which: str, tmp_path: Path) -> None:
    import torch

    ids, checkpoint = random_ids(LONG), open_checkpoint(tiny.path)
    if which == "mlx":
        run: Any = MlxEngine.from_checkpoint(checkpoint, "tiny")
    else:
        out = export_folder(checkpoint, tmp_path / "out", weights="fp32", dialect=which)
        run = OrtEngine.from_folder(out, threads=1)
    steps: list[tuple[int, int]] = []
    found = traced(run, ids, progress=lambda *step: steps.append(step))
    assert len(steps) > 1
    assert steps[-1] == (LONG, LONG)
    with torch.inference_mode():
        wanted = tiny.reference(torch.tensor([ids]), output_attentions=True).attentions
    for layer, theirs in zip(found.layers.values(), wanted, strict=True):
        assert np.abs(attention.weights(layer, range(LONG)) - theirs[0].numpy()).max() <= 2e-5


def test_the_last_tokens_logits_are_the_engines(engine: Any) -> None:
    ids = random_ids(20)
    found = traced(engine, ids)
    assert found.tokens == tuple(ids)
    if engine.info.backend == "onnx":  # a trace runs the graph that computes in floats
        engine = OrtEngine.from_folder(engine.folder.path, kv="float", threads=1)
    np.testing.assert_array_equal(found.logits, np.array(engine.open().prefill(ids)))


def test_only_the_layers_that_were_asked_for(engine: Any) -> None:
    ids = random_ids(20)
    every, some = traced(engine, ids), traced(engine, ids, [2, 0, 2])
    assert list(every.layers) == [0, 1, 2]
    assert list(some.layers) == [0, 2]
    for layer, one in some.layers.items():
        for name in ("q", "k", "v"):
            np.testing.assert_array_equal(getattr(one, name), getattr(every.layers[layer], name))
    assert traced(engine, ids, []).layers == {}


def test_one_token(engine: Any) -> None:
    layer = traced(engine, [5]).layers[1]
    assert attention.weights(layer, [0]).tolist() == [[[1.0]]] * layer.spec.heads


@pytest.mark.parametrize(
    ("ids", "layers", "error", "words"),
    [
        ([1, 2], [3], InputError, "no layer 3; the model has 3, give 0 to 2"),
        ([1, 2], [0, -1], InputError, "no layer -1;"),
        ([], None, InputError, "the prompt is empty"),
        ([1, 97], None, InputError, "token id 97 is outside"),
        ([1] * 513, None, ContextError, "513 tokens do not fit the context of 512"),
    ],
    ids=["layer", "negative", "empty", "vocabulary", "context"],
)
def test_refusals(
    engine: Any, ids: list[int], layers: list[int] | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        traced(engine, ids, layers)


def test_a_folder_is_opened_once_more_and_never_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Any] = []
    load = ort_trace.load_graph
    monkeypatch.setattr(
        ort_trace, "load_graph", lambda *args, **options: loads.append(1) or load(*args, **options)
    )
    files = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    run = OrtEngine.from_folder(folder, threads=1)
    assert not loads
    for length in (3, 9):
        traced(run, random_ids(length))
    assert loads == [1]
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == files


@pytest.mark.slow
def test_a_graph_without_attention_nodes() -> None:
    run = OrtEngine.from_folder(foreign("optimum").path, threads=1)
    with pytest.raises(InputError, match=r"does not show the attention of layer 0: .*pippin expo"):
        traced(run, random_ids(5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda node: attribute(node, "sliding_window_cache", 1), "holds the window alone"),
        (lambda node: node.input.extend([*[""] * (14 - len(node.input)), "w"]), "by itself"),
        (lambda node: node.input.extend([*[""] * (11 - len(node.input)), "w"]), "are computed"),
        (lambda node: setattr(node, "op_type", "Other"), "its keys come from Other, not from"),
    ],
    ids=["window", "norm", "sinks", "operator"],
)
def test_variants_that_are_not_known(
    change: Callable[[onnx.NodeProto], None], words: str, folder: Path, tmp_path: Path
) -> None:
    model = onnx.load(folder / "onnx" / "model_q4.onnx", load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            change(node)
    onnx.save(model, tmp_path / "model.onnx")
    opened = open_folder(folder, "q4", "float")
    with pytest.raises(InputError, match=f"attention of layer 0: .*{words}"):
        show_nodes(replace(opened, graph=tmp_path / "model.onnx"))


def attribute(node: onnx.NodeProto, name: str, value: int) -> None:
    node.attribute.append(onnx.helper.make_attribute(name, value))


def test_onnxruntime_needs_no_mlx(folder: Path) -> None:
    program = f"""
import sys
sys.modules["mlx"] = sys.modules["mlx.core"] = None
from types import SimpleNamespace
from pippin.apps.insight import attention
from pippin.apps.insight.trace import trace
from pippin.runtime.ort_engine import OrtEngine
engine = OrtEngine.from_folder({str(folder)!r}, threads=1)
layer = trace(SimpleNamespace(engine=engine), [1, 2, 3]).layers[0]
print(attention.top_keys(layer, 2)[0].shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "(6, 3, 2)\n", done.stderr


def test_encoder_decoders(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_stack(tmp_path / "c", *SEQ2SEQ["t5"]).path)
    out = export_seq2seq(checkpoint, tmp_path / "out", weights="fp32")
    engines = MlxSeq2SeqEngine(checkpoint, "tiny"), OrtSeq2SeqEngine.from_folder(out, threads=1)
    for run in engines:
        with pytest.raises(InputError, match="encoder-decoder"):
            traced(run, [1, 2])


def mask_of(seen: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
    return np.where(seen, bias, np.finfo(np.float32).min).astype(np.float32)


SQUARE = np.tri(6, dtype=bool)
DISTANCE = np.arange(6)[:, None] - np.arange(6)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (SQUARE & (DISTANCE != 1), "hides keys between"),
        (SQUARE & ((DISTANCE < 3) | (np.arange(6)[:, None] == 3)), "no window of one size"),
        (mask_of(SQUARE, -0.5 * DISTANCE**2), "does not fall evenly"),
        (np.stack([mask_of(SQUARE), mask_of(SQUARE & (DISTANCE < 2))]), "from other heads"),
    ],
    ids=["hole", "two windows", "square", "heads"],
)
def test_masks_that_are_not_known(mask: np.ndarray, words: str) -> None:
    def look() -> None:
        masks = Masks("model.onnx", causal=False)
        masks.add(mask.reshape(-1, 6, 6))
        masks.window()

    with pytest.raises(InputError, match=f"model.onnx has a mask that .*{words}"):
        look()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_bias_that_falls_with_distance(dtype: type) -> None:
    slopes = np.array([0.5, 0.0625, 0.003])
    lowest = np.finfo(dtype).min
    seen = SQUARE & (DISTANCE < 4)
    masks = Masks("model.onnx", causal=False)
    for start, end in ((0, 1), (1, 4), (4, 6)):
        bias = np.where(seen, -slopes[:, None, None] * DISTANCE, lowest).astype(dtype)
        masks.add(bias[:, start:end, :end])
    np.testing.assert_allclose(masks.slopes(3), slopes.astype(dtype), rtol=1e-6)
    assert masks.window() == 4
