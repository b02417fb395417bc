"""ONNX's own operator cases (`onnx.backend.test`) against the numpy interpreter's operations.

A case is compared wherever ours can say the same; the others are listed by what ours has not.
"""

import math
import warnings
from collections import Counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from onnx import helper

from pippin.kernels.reference import attention_reference
from pippin.kernels.spec import AttentionSpec
from pippin.mlx_model.numpy_ops import NumpyCache, NumpyOps, turn

OPS = NumpyOps(np.float64)


class NotOurs(Exception):
    """The case asks for what no model of ours computes."""


def cases(*operators: str) -> list[Any]:
    """The cases whose model is one node of these operators."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other operators' cases overflow while they are made
        made = [case for case in collect_testcases() if len(case.model.graph.node) == 1]
    return [case for case in made if case.model.graph.node[0].op_type in operators]


def parts(case: Any) -> tuple[dict[str, np.ndarray], list[np.ndarray], dict[str, Any]]:
    """Inputs by the names of the operator's schema, outputs, attributes."""
    node = case.model.graph.node[0]
    inputs, outputs = case.data_sets[0]
    given = dict(zip([name for name in node.input if name], inputs, strict=True))
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return given, outputs, attributes


def heads_first(x: np.ndarray, heads: int) -> np.ndarray:
    """[B, L, heads·D] → [B, heads, L, D]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def attention(given: dict[str, np.ndarray], attributes: dict[str, Any]) -> np.ndarray:
    if "attn_mask" in given:
        raise NotOurs("a mask of its own")
    if attributes.get("right_window_size", -1) >= 0:
        raise NotOurs("a window to the right")
    q, k, v = (given[name].astype(np.float64) for name in "QKV")
    flat = q.ndim == 3
    if flat:
        q = heads_first(q, attributes["q_num_heads"])
        k, v = (heads_first(x, attributes["kv_num_heads"]) for x in (k, v))
    past, length = 0, q.shape[2]
    if "past_key" in given:
        past = given["past_key"].shape[2]
        cache = NumpyCache()
        cache.update(*(given[f"past_{x}"].astype(np.float64) for x in ("key", "value")))
        k, v = cache.update(k, v)
    causal = bool(attributes.get("is_causal", 0))
    left = attributes.get("left_window_size", -1)
    if left >= 0 and not causal:
        raise NotOurs("a window without causality")
    spec = AttentionSpec(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        head_dim=q.shape[3],
        scale=attributes.get("scale", 1 / math.sqrt(q.shape[3])),
        causal=causal,
        window=left + 1 if left >= 0 else None,
        softcap=attributes.get("softcap") or None,
    )
    # ONNX counts a row's position from the past, ours from the end: say where that is.
    ends = np.full(q.shape[0], past + length) if causal else None
    ends = given.get("nonpad_kv_seqlen", ends)
    out = attention_reference(q, k, v, spec, ends=ends)
    return out.transpose(0, 2, 1, 3).reshape(out.shape[0], length, -1) if flat else out


def rotary(given: dict[str, np.ndarray], attributes: dict[str, Any]) -> np.ndarray:
    x, cos, sin = list(given.values())[:3]
    flat = x.ndim == 3
    if flat:
        x = heads_first(x, attributes["num_heads"])
    if len(given) == 4:
        positions = list(given.values())[3]
        cos, sin = cos[positions], sin[positions]
    out = turn(x, cos[:, None], sin[:, None], bool(attributes.get("interleaved", 0)))
    return out.transpose(0, 2, 1, 3).reshape(*out.shape[:1], out.shape[2], -1) if flat else out


def norm(given: dict[str, np.ndarray], attributes: dict[str, Any], kind: type) -> np.ndarray:
    x, weight, *bias = given.values()
    if attributes.get("axis", -1) % x.ndim != x.ndim - 1:
        raise NotOurs("a norm over several axes")
    layer = kind(x.shape[-1], attributes.get("epsilon", 1e-5))
    layer.weight = mx.array(weight)
    if bias:
        layer.bias = mx.array(bias[0])
    return OPS.norm(layer, x.astype(np.float64))


def tensor_scatter(given: dict[str, np.ndarray], attributes: dict[str, Any]) -> np.ndarray:
    if attributes.get("mode", b"linear") == b"circular":
        raise NotOurs("a ring")
    past, update, *starts = given.values()
    result = past.copy()
    lifted = past.ndim == 3
    for row, start in enumerate(starts[0]):
        cache = NumpyCache()
        old, new = past[row : row + 1, ..., :start, :], update[row : row + 1]
        old, new = (x[:, None] if lifted else x for x in (old, new))
        cache.update(old, old)
        present, _ = cache.update(new, new)
        result[row, ..., : present.shape[2], :] = present[0, 0] if lifted else present[0]
    return result


def activation(name: str, given: dict[str, np.ndarray]) -> np.ndarray:
    return OPS.activate(name, next(iter(given.values())).astype(np.float64))


def ours(case: Any) -> np.ndarray:
    """What ours says of the case's first output. Raises NotOurs."""
    given, _, attributes = parts(case)
    match case.model.graph.node[0].op_type:
        case "Attention":
            return attention(given, attributes)
        case "RotaryEmbedding":
            return rotary(given, attributes)
        case "RMSNormalization":
            return norm(given, attributes, nn.RMSNorm)
        case "LayerNormalization":
            return norm(given, attributes, nn.LayerNorm)
        case "TensorScatter":
            return tensor_scatter(given, attributes)
        case "Gelu":
            approximate = attributes.get("approximate", b"none") == b"tanh"
            return activation("gelu_tanh" if approximate else "gelu", given)
    raise AssertionError(case.name)


OPERATORS = (
    "Attention",
    "RotaryEmbedding",
    "RMSNormalization",
    "LayerNormalization",
    "TensorScatter",
    "Gelu",
)
CASES = {case.name: case for case in cases(*OPERATORS)}
FINE = {np.dtype(np.float32), np.dtype(np.float64)}


def reason(case: Any) -> str | None:
    """Why a case is not compared; None when it is."""
    try:
        ours(case)
    except NotOurs as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if reason(case) is None])
def test_a_case_of_onnx(name):
    case = CASES[name]
    wanted = case.data_sets[0][1][0]
    found = ours(case)
    assert found.shape == wanted.shape
    fine = wanted.dtype in FINE
    rtol, atol = (1e-5, 1e-6) if fine else (1e-2, 1e-2)
    np.testing.assert_allclose(found, wanted.astype(np.float64), rtol=rtol, atol=atol)


def test_what_is_left_out_is_known():
    """A new kind of case in a later release of onnx must be looked at."""
    left = Counter(reason(case) for case in CASES.values())
    compared = left.pop(None)
    assert set(left) == {
        "a mask of its own",
        "a window to the right",
        "a norm over several axes",
        "a ring",
    }
    assert compared >= 40
