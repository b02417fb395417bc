"""A small decoder written as an ONNX graph by hand, and the same decoder in numpy, float64.

The engine's tests use it rather than an exported model: whatever the exporter does, the contract of
inputs, caches and outputs is spelled out here.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_MAX = np.iinfo(np.int64).max
_FLOAT = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder; one RMS norm, attention and projection a layer, and no MLP."""

    layers: int = 2
    heads: int = 4  # H
    kv_heads: int = 2  # K
    head_dim: int = 16  # D
    hidden: int = 32  # E
    vocab: int = 97  # V
    context: int = 700
    seed: int = 0

    def weights(self) -> dict[str, np.ndarray]:
        """All weights, float32, and the cos/sin tables [context, D/2]."""
        rng = np.random.default_rng(self.seed)
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        made = {
            "embed": rng.normal(size=(self.vocab, self.hidden)),
            "head": rng.normal(size=(self.hidden, self.vocab)) / self.hidden**0.5,
            "norm": np.ones(self.hidden),
        }
        for n in range(self.layers):
            for part, size in (("q", query), ("k", kv), ("v", kv)):
                made[f"{part}{n}"] = 1.5 * rng.normal(size=(self.hidden, size)) / self.hidden**0.5
            made[f"o{n}"] = rng.normal(size=(query, self.hidden)) / query**0.5
        angles = np.outer(
            np.arange(self.context), 1e4 ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        )
        made |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        return {name: array.astype(np.float32) for name, array in made.items()}


def reference(shape: Shape, ids: list[int]) -> np.ndarray:
    """Logits [L, V] of one sequence, float64."""
    w = {name: array.astype(np.float64) for name, array in shape.weights().items()}
    length, group = len(ids), shape.heads // shape.kv_heads
    x = w["embed"][ids]
    causal = np.tril(np.ones((length, length), bool))
    for n in range(shape.layers):
        normed = _rms_norm(x)
        q, k, v = (
            (normed @ w[f"{part}{n}"]).reshape(length, -1, shape.head_dim).swapaxes(0, 1)
            for part in "qkv"
        )
        q, k = _rotate(q, w), _rotate(k, w)
        k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
        scores = np.where(causal, q @ k.swapaxes(1, 2) / shape.head_dim**0.5, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = scores / scores.sum(-1, keepdims=True) @ v
        x = x + mixed.swapaxes(0, 1).reshape(length, -1) @ w[f"o{n}"]
    return _rms_norm(x) @ w["head"]


def _rms_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def _rotate(x: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    """Rotates halves, [heads, L, D]."""
    cos, sin = w["cos"][: x.shape[1]], w["sin"][: x.shape[1]]
    left, right = np.split(x, 2, axis=-1)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


@dataclass
class _Builder:
    nodes: list = field(default_factory=list)
    initializers: list = field(default_factory=list)

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes):
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def rename(self, name: str, wanted: str) -> None:
        self.nodes.append(helper.make_node("Identity", [name], [wanted]))

    def constant(self, name: str, value) -> str:
        if name not in {tensor.name for tensor in self.initializers}:
            self.initializers.append(numpy_helper.from_array(np.array(value), name))
        return name


def write_folder(
    path: Path,
    shape: Shape | None = None,
    *,
    dialect: str = "gqa",
    kv: str = "float32",
    num_logits: bool = True,
    suffix: str = "",
    metadata: dict[str, str] | None = None,
    config: dict | None = None,
) -> Path:
    """Write `config.json` and `onnx/model{suffix}.onnx` with its data; returns `path`."""
    shape = shape or Shape()
    model = _model(shape, dialect, kv, num_logits)
    stated = {"pippin.dialect": dialect, "pippin.context": str(shape.context)}
    helper.set_model_props(model, stated if metadata is None else metadata)
    (path / "onnx").mkdir(parents=True, exist_ok=True)
    name = f"model{suffix}.onnx"
    onnx.save_model(
        model,
        path / "onnx" / name,
        save_as_external_data=True,
        location=f"{name}_data",
        size_threshold=512,
    )
    default = {
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "transformers.js_config": {"use_external_data_format": {name: 1}},
    }
    (path / "config.json").write_text(json.dumps({**default, **(config or {})}))
    return path


def _model(shape: Shape, dialect: str, kv: str, num_logits: bool) -> onnx.ModelProto:
    b = _Builder()
    for name, array in shape.weights().items():
        b.constant(name, array)
    attend = {"gqa": _gqa, "standard": _standard}[dialect]
    shared = _shared_inputs(b, dialect)
    x = b.add("Gather", "embed", "input_ids")
    for n in range(shape.layers):
        normed = _norm(b, x)
        q, k, v = (b.add("MatMul", normed, f"{part}{n}") for part in "qkv")
        mixed, *presents = attend(b, shape, kv, n, (q, k, v), shared)
        for part, present in zip(("key", "value"), presents, strict=True):
            b.rename(present, f"present.{n}.{part}") if dialect == "standard" else None
        x = b.add("Add", x, b.add("MatMul", mixed, f"o{n}"))
    if num_logits:
        b.constant("num_logits", np.array([1], np.int64))
        first = b.add("Neg", "num_logits")
        x = b.add("Slice", x, first, b.constant("end", [_MAX]), b.constant("axis1", [1]))
    b.rename(b.add("MatMul", _norm(b, x), "head"), "logits")
    return _finish(b, shape, dialect, kv, num_logits)


def _norm(b: _Builder, x: str) -> str:
    square = b.add("Mul", x, x)
    mean = b.add("ReduceMean", square, b.constant("last", [-1]))
    root = b.add("Sqrt", b.add("Add", mean, b.constant("eps", np.float32(1e-5))))
    return b.add("Div", x, root)


def _shared_inputs(b: _Builder, dialect: str) -> list[str]:
    """gqa: seqlens_k and total length; standard: a causal mask [B, 1, L, S]."""
    axis, one = b.constant("axis1", [1]), b.constant("one", [1])
    if dialect == "gqa":
        valid = b.add("Sub", b.add("ReduceSum", "attention_mask", axis, keepdims=0), one)
        total = b.add("Gather", b.add("Shape", "attention_mask"), b.constant("i1", 1))
        return [b.add("Cast", name, to=TensorProto.INT32) for name in (valid, total)]
    counts = b.add("CumSum", "attention_mask", b.constant("i1", 1))
    keys = b.add("Unsqueeze", b.add("Sub", counts, one), b.constant("middle", [1, 2]))
    queries = b.add("Unsqueeze", "position_ids", b.constant("outer", [1, 3]))
    return [b.add("LessOrEqual", keys, queries)]


def _gqa(b, shape, kv, n, qkv, shared):
    seqlens, total = shared
    cast = [b.add("Cast", x, to=_FLOAT[kv]) for x in (*qkv, "cos", "sin")]
    outputs = [f"gqa{n}", f"present.{n}.key", f"present.{n}.value"]
    inputs = [*cast[:3], f"past_key_values.{n}.key", f"past_key_values.{n}.value"]
    b.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [*inputs, seqlens, total, *cast[3:]],
            outputs,
            domain="com.microsoft",
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            do_rotary=1,
        )
    )
    return b.add("Cast", outputs[0], to=TensorProto.FLOAT), outputs[1], outputs[2]


def _standard(b, shape, kv, n, qkv, shared):
    q, k, v = qkv
    tables = ("cos", "sin", "position_ids")
    q = b.add("RotaryEmbedding", q, *tables, num_heads=shape.heads)
    k = b.add("RotaryEmbedding", k, *tables, num_heads=shape.kv_heads)
    q, k, v = (b.add("Cast", x, to=_FLOAT[kv]) for x in (q, k, v))
    mixed, key, value = b.add(
        "Attention",
        *(q, k, v, *shared, f"past_key_values.{n}.key", f"past_key_values.{n}.value"),
        outputs=3,
        q_num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
    )
    return b.add("Cast", mixed, to=TensorProto.FLOAT), key, value


def _finish(b: _Builder, shape: Shape, dialect: str, kv: str, num_logits: bool):
    token_inputs = ["input_ids"] + (["position_ids"] if dialect == "standard" else [])
    inputs = [_value(name, ["batch_size", "sequence_length"]) for name in token_inputs]
    inputs.append(_value("attention_mask", ["batch_size", "total_sequence_length"]))
    if num_logits:  # an initializer that is also an input can be overridden
        inputs.append(_value("num_logits", [1]))
    rows = "num_rows" if num_logits else "sequence_length"
    outputs = [_value("logits", ["batch_size", rows, shape.vocab], TensorProto.FLOAT)]
    for end, values in (("past_key_values", inputs), ("present", outputs)):
        for n in range(shape.layers):
            for part in ("key", "value"):
                sizes = ["batch_size", shape.kv_heads, f"{end}_length", shape.head_dim]
                values.append(_value(f"{end}.{n}.{part}", sizes, _FLOAT[kv]))
    graph = helper.make_graph(b.nodes, "decoder", inputs, outputs, b.initializers)
    opset, ir = (21, 10) if dialect == "gqa" else (23, 11)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def _value(name: str, shape: list, kind: int = TensorProto.INT64):
    return helper.make_tensor_value_info(name, kind, shape)
