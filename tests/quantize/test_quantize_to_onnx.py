"""Every mode as onnxruntime's MatMulNBits: exact where it can be, never wrong."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from pippin.export.folder import export_folder
from pippin.export.nbits import container_bits, from_layer, is_exact, unpack
from pippin.export.quantize import quantize_decoder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.dense import dense_weight
from pippin.mlx_model.quantize import quantize_checkpoint
from pippin.mlx_model.quantized_layers import FLOAT_MODES
from support.exported import (
    difference,
    export_and_open,
    mlx_logits,
    random_ids,
    read_model,
)
from support.quantized import load, name_of

IDS = random_ids(40)
MODES = list(FLOAT_MODES.values())
FP4 = [FLOAT_MODES["mxfp4"], FLOAT_MODES["nvfp4"]]


def all_codes(mode):
    """A layer that has each of the 16 codes under each scale, and the scales' 8 bits.

    E8M0 without those that leave float32's normal numbers; E4M3 without the sign and NaN.
    """
    index = np.arange(2, 250) if mode == "mxfp4" else np.arange(127)
    scales = mx.array(index.astype(np.uint8))[:, None]
    layer = nn.QuantizedLinear(64, scales.shape[0], bias=False, mode=mode)
    groups = 64 // layer.group_size
    layer.scales = mx.repeat(scales, groups, axis=1)
    codes = np.tile(np.arange(16, dtype=np.uint8), (scales.shape[0], 4))
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    layer.weight = mx.array(np.ascontiguousarray(packed).view(np.uint32))
    return layer, index


@pytest.mark.parametrize("wanted", FP4, ids=name_of)
def test_codes_of_four_bits_are_exact(wanted):
    """E2M1 and both kinds of scales by their definition in the OCP specification, and by MLX."""
    layer, index = all_codes(wanted.mode)
    assert is_exact(layer)
    assert container_bits(layer, "q4") == 8
    matrix = from_layer(layer, 8)
    assert not matrix.inexact
    assert matrix.symmetric
    codes = unpack(matrix.codes, 8).astype(np.float64) - 128
    ours = (codes * matrix.scales[..., None]).reshape(matrix.rows, -1)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = np.tile(np.concatenate([values, -values]), 4)
    if wanted.mode == "mxfp4":
        scales = 2.0 ** (index - 127.0)  # E8M0
    else:
        exponent, mantissa = index >> 3, index & 7  # E4M3
        scales = np.where(
            exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
        )
    expected = scales[:, None] * values
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(ours, np.array(dense_weight(layer)))


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
@pytest.mark.parametrize("weights", ["fp32", "q4", "int8"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("wanted", MODES, ids=name_of)
def test_exported(wanted, tied, weights, dialect, tiny_factory, tmp_path):
    source = open_checkpoint(tiny_factory(tie_word_embeddings=tied, mlp_bias=True).path)
    folder = quantize_checkpoint(source, tmp_path / "out", mode=wanted.mode).path
    checkpoint = open_checkpoint(folder)
    options = {"weights": weights, "dialect": dialect}
    run = export_and_open(checkpoint, tmp_path / "exact", exact=True, **options)
    decoder = load(folder)
    if weights != "fp32" and wanted.mode == "mxfp8":
        before = mlx_logits(decoder, IDS)
        quantize_decoder(decoder, weights)  # anew, and MLX can do the same
        assert weights == "q4" or difference(mlx_logits(decoder, IDS), before) < 0.1
    assert difference(run(IDS)[0], mlx_logits(decoder, IDS)) < 1e-4
    shipped = export_and_open(checkpoint, tmp_path / "shipped", **options)
    assert difference(shipped(IDS)[0], mlx_logits(decoder, IDS)) < 2e-3


def test_layers_of_mixed_modes(checkpoint, tmp_path):
    """Attention's three projections in three modes are three products."""
    rules = ["*q_proj=mxfp4", "*k_proj=nvfp4", "*up_proj=mxfp8", "*o_proj=3:32"]
    folder = quantize_checkpoint(checkpoint, tmp_path / "out", rules=rules).path
    run = export_and_open(open_checkpoint(folder), tmp_path / "onnx", weights="q4", exact=True)
    decoder = load(folder)
    quantize_decoder(decoder, "q4")
    assert decoder.model.layers[0].mlp.up_proj.bits == 8  # as many as mxfp8 had
    assert difference(run(IDS)[0], mlx_logits(decoder, IDS)) < 1e-4
    names = {node.name for node in read_model(tmp_path / "onnx").graph.node}
    assert {f"model.layers.0.self_attn.{p}_proj/MatMulNBits" for p in "qkv"} <= names


def test_the_block_is_the_mode_s_group(checkpoint, tmp_path):
    folder = quantize_checkpoint(checkpoint, tmp_path / "out", mode="nvfp4").path
    model = read_model(export_folder(open_checkpoint(folder), tmp_path / "onnx", weights="q4"))
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    attributes = [{a.name: a.i for a in node.attribute} for node in products]
    assert {(a["bits"], a["block_size"]) for a in attributes} == {(8, 16)}
