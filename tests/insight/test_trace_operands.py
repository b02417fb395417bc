"""What a trace holds, against what the engines' own attention puts out."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from pippin.apps.insight import attention
from pippin.apps.insight.trace import Trace, trace
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.mlx_ops import MlxOps
from pippin.runtime.ort_engine import OrtEngine
from support.exported import random_ids
from support.families import ROWS, Subject
from support.foreign_folders import foreign
from support.tiny import Tiny, make_tiny

TOLERANCE = 1e-5
LENGTH = 70
# Each a way for scores to become weights: the module that takes what attention puts out.
NAMES = {
    "llama": "self_attn.o_proj",
    "mistral-window": "self_attn.o_proj",
    "gemma2": "self_attn.o_proj",
    "gpt-oss": "self_attn.o_proj",
    "qwen3": "self_attn.o_proj",
    "glm": "self_attn.o_proj",
    "bloom": "self_attention.dense",
    "mpt": "attn.out_proj",
}


@pytest.fixture(scope="module", params=NAMES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    (row,) = (row for row in ROWS if row.name == request.param)
    return Subject(row, tmp_path_factory.mktemp(row.name))


def traced(engine: Any, ids: list[int], **options: Any) -> Trace:
    return trace(SimpleNamespace(engine=engine), ids, **options)


def outputs(found: Trace) -> list[np.ndarray]:
    """What attention puts out in each layer, by the trace, [S, H·D]."""
    every = range(len(found.tokens))
    parts = (attention.output(layer, every) for layer in found.layers.values())
    return [part.transpose(1, 0, 2).reshape(len(found.tokens), -1) for part in parts]


def close(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    assert len(found) == len(wanted)
    errors = [
        np.abs(a - b).max() / max(1, np.abs(b).max()) for a, b in zip(found, wanted, strict=True)
    ]
    print(f"{max(errors):.1e}")
    return max(errors) <= TOLERANCE


def torch_outputs(tiny: Tiny, ids: list[int], module: str) -> list[np.ndarray]:
    """What reaches the output projections in transformers, [S, H·D] each."""
    taken: list[np.ndarray] = []
    hooks = [
        part.register_forward_pre_hook(lambda _, args: taken.append(args[0][0].numpy().copy()))
        for name, part in tiny.reference.named_modules()
        if name.endswith(module)
    ]
    tiny.logits(ids)
    for hook in hooks:
        hook.remove()
    return taken


def mlx_outputs(engine: MlxEngine, ids: list[int]) -> list[np.ndarray]:
    taken: list[np.ndarray] = []

    class Ops(MlxOps):
        def attention(self, *args: Any, **options: Any) -> mx.array:
            out = super().attention(*args, **options)
            taken.append(np.array(out[0]))
            return out

    engine.decoder(Ops(1, len(ids)), mx.array([ids]), engine.open().caches)
    return taken


def edited(folder: Path, ids: list[int], edit: Callable[[onnx.NodeProto], str]) -> list[np.ndarray]:
    """What the nodes with a cache give under the names that `edit` returns, in one plain run."""
    graph = folder / "onnx" / "model.onnx"
    model = onnx.load(graph)
    nodes = [n for n in model.graph.node if n.op_type in ("GroupQueryAttention", "Attention")]
    names = [edit(node) for node in nodes]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {
        arg.name: np.zeros((1, arg.shape[1], 0, arg.shape[3]), np.float32)
        for arg in session.get_inputs()
        if arg.name.startswith("past")
    }
    feeds |= {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    return [array[0] for array in session.run(names, feeds)]


def test_outputs_are_those_of_the_models_attention(subject: Subject) -> None:
    ids = subject.ids(LENGTH)
    wanted = torch_outputs(subject.tiny, ids, NAMES[subject.row.name])
    found = outputs(traced(subject.mlx, ids))
    assert close(found, wanted)
    assert close(found, mlx_outputs(subject.mlx, ids))
    for dialect in subject.row.dialects:
        engine = subject.onnx(dialect)
        found = outputs(traced(engine, ids))
        assert close(found, wanted)
        assert close(found, edited(engine.folder.path, ids, lambda node: node.output[0]))


def test_weights_are_those_of_group_query_attention(subject: Subject) -> None:
    """onnxruntime's kernel shows them itself, at the price of holding them all."""

    def show(node: onnx.NodeProto) -> str:
        node.attribute.append(onnx.helper.make_attribute("qk_output", 2))  # after the softmax
        node.output.append(f"{node.name}.qk")
        return node.output[-1]

    ids, engine = subject.ids(LENGTH), subject.onnx("gqa")
    found = traced(engine, ids)
    weights = [attention.weights(layer, range(LENGTH)) for layer in found.layers.values()]
    assert close(weights, edited(engine.folder.path, ids, show))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantized_cache_is_read_as_attention_reads_it(bits: int, tmp_path: Path) -> None:
    tiny = make_tiny(tmp_path / "c", "Mistral", head_dim=32, sliding_window=8)
    engine = MlxEngine.from_checkpoint(open_checkpoint(tiny.path), "tiny", bits)
    ids = random_ids(LENGTH)
    assert close(outputs(traced(engine, ids)), mlx_outputs(engine, ids))


@pytest.mark.slow
def test_a_folder_of_the_model_builder() -> None:
    folder = foreign("genai-qwen3")
    ids = random_ids(LENGTH, 288)
    found = outputs(traced(OrtEngine.from_folder(folder.path, threads=1), ids))
    assert close(found, torch_outputs(folder.tiny, ids, "self_attn.o_proj"))
