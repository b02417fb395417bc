"""Every GGUF tensor type against the `gguf` library's dequantization."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

from pippin.mlx_model.checkpoints.gguf import read_gguf
from pippin.mlx_model.checkpoints.gguf_tensors import load_tensor
from pippin.runtime.errors import InputError

AFFINE = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
DIRECT = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
NOT_WEIGHTS = {"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"}
REPACKED = {*AFFINE, "MXFP4"}
OTHERS = [t.name for t in GGML_QUANT_SIZES if t.name not in REPACKED | DIRECT.keys() | NOT_WEIGHTS]
ROWS, COLUMNS = 6, 512


def random_blocks(type_: GGMLQuantizationType, rows: int = ROWS) -> np.ndarray:
    """Rows of random blocks with finite scales: any bytes are a valid block otherwise."""
    block, block_bytes = GGML_QUANT_SIZES[type_]
    rng = np.random.default_rng(int(type_))
    raw = rng.integers(0, 256, (rows, COLUMNS // block, block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        while not np.isfinite(values := dequantize(raw.reshape(rows, -1), type_)).all():
            bad = ~np.isfinite(values).reshape(rows, -1, block).all(-1)
            raw[bad] = rng.integers(0, 256, (bad.sum(), block_bytes), np.uint8)
    return raw.reshape(rows, -1)


def write_one(path: Path, raw: np.ndarray, type_: GGMLQuantizationType) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("x.weight", raw, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load_one(path: Path, order: np.ndarray | None = None) -> dict[str, mx.array]:
    file = read_gguf(path)
    return load_tensor(file, file.tensors["x.weight"], order)


def unpacked(arrays: dict[str, mx.array], bits: int) -> np.ndarray:
    """MLX's own dequantization, in float32."""
    scales, biases = (arrays[name].astype(mx.float32) for name in ("scales", "biases"))
    return np.array(mx.dequantize(arrays["weight"], scales, biases, group_size=32, bits=bits))


@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize("source", ["quantized", "random"])
def test_affine_types_are_repacked_exactly(tmp_path: Path, name: str, source: str) -> None:
    type_ = GGMLQuantizationType[name]
    raw = random_blocks(type_)
    if source == "quantized":
        values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype(np.float32)
        raw = quantize(values, type_)
    arrays = load_one(write_one(tmp_path / "x.gguf", raw, type_))
    assert arrays["weight"].dtype == mx.uint32
    assert arrays["weight"].shape == (ROWS, COLUMNS * AFFINE[name] // 32)
    assert arrays["scales"].shape == arrays["biases"].shape == (ROWS, COLUMNS // 32)
    if source == "quantized":
        assert arrays["scales"].dtype == arrays["biases"].dtype == mx.float16
    np.testing.assert_array_equal(unpacked(arrays, AFFINE[name]), dequantize(raw, type_))


@pytest.mark.parametrize("name", AFFINE)
def test_affine_types_equal_mlxs_own_reading(tmp_path: Path, name: str) -> None:
    type_ = GGMLQuantizationType[name]
    values = np.random.default_rng(2).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    path = write_one(tmp_path / "x.gguf", quantize(values, type_), type_)
    ours, theirs = load_one(path), mx.load(str(path))
    for leaf in ("weight", "scales", "biases"):
        assert mx.array_equal(ours[leaf], theirs[f"x.{leaf}"])


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_bias_beyond_float16_keeps_its_value(tmp_path: Path, name: str) -> None:
    type_ = GGMLQuantizationType[name]
    block_bytes = GGML_QUANT_SIZES[type_][1]
    raw = np.full((1, block_bytes), 0x21, np.uint8)
    raw[0, :2] = np.array([60_000], np.float16).view(np.uint8)
    arrays = load_one(write_one(tmp_path / "x.gguf", raw, type_))
    np.testing.assert_array_equal(unpacked(arrays, AFFINE[name]), dequantize(raw, type_))


@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (3, 2, COLUMNS)])
def test_mxfp4_is_mlxs_mode_of_that_name(tmp_path: Path, shape: tuple[int, ...]) -> None:
    type_ = GGMLQuantizationType.MXFP4
    values = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    raw = quantize(values, type_)
    arrays = load_one(write_one(tmp_path / "x.gguf", raw, type_))
    assert arrays.keys() == {"weight", "scales"}
    ours = mx.dequantize(
        arrays["weight"],
        arrays["scales"],
        group_size=32,
        bits=4,
        mode="mxfp4",
        dtype=mx.float32,
    )
    np.testing.assert_array_equal(np.array(ours), dequantize(raw, type_))


@pytest.mark.parametrize("name", AFFINE)
def test_stacked_layers_are_repacked_exactly(tmp_path: Path, name: str) -> None:
    type_ = GGMLQuantizationType[name]
    values = np.random.default_rng(5).normal(size=(3, 2, COLUMNS)).astype(np.float32)
    raw = quantize(values, type_)
    arrays = load_one(write_one(tmp_path / "x.gguf", raw, type_))
    assert arrays["weight"].shape == (3, 2, COLUMNS * AFFINE[name] // 32)
    assert arrays["scales"].shape == arrays["biases"].shape == (3, 2, COLUMNS // 32)
    np.testing.assert_array_equal(unpacked(arrays, AFFINE[name]), dequantize(raw, type_))


@pytest.mark.parametrize("name", sorted(REPACKED))
def test_what_may_not_be_packed_is_dequantized(tmp_path: Path, name: str) -> None:
    type_ = GGMLQuantizationType[name]
    raw = random_blocks(type_)
    file = read_gguf(write_one(tmp_path / "x.gguf", raw, type_))
    arrays = load_tensor(file, file.tensors["x.weight"], packed=False)
    assert arrays.keys() == {"weight"}
    np.testing.assert_array_equal(np.array(arrays["weight"]), dequantize(raw, type_))


@pytest.mark.parametrize("name", DIRECT)
def test_float_types_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    type_ = GGMLQuantizationType[name]
    values = np.random.default_rng(3).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    raw = quantize(values, type_)
    arrays = load_one(write_one(tmp_path / "x.gguf", raw, type_))
    assert arrays.keys() == {"weight"}
    assert arrays["weight"].dtype == DIRECT[name]
    ours = np.array(arrays["weight"].astype(mx.float32))
    np.testing.assert_array_equal(ours, dequantize(raw, type_))


@pytest.mark.parametrize("name", OTHERS)
def test_other_types_are_dequantized(tmp_path: Path, name: str) -> None:
    type_ = GGMLQuantizationType[name]
    try:
        raw = random_blocks(type_)
    except NotImplementedError:  # the library knows its size but not its meaning
        raw = np.zeros((ROWS, COLUMNS // 256 * GGML_QUANT_SIZES[type_][1]), np.uint8)
        path = write_one(tmp_path / "x.gguf", raw, type_)
        with pytest.raises(InputError, match=rf"'x.weight' has type {name}, which cannot be read"):
            load_one(path)
        return
    arrays = load_one(write_one(tmp_path / "x.gguf", raw, type_))
    assert arrays.keys() == {"weight"}
    assert arrays["weight"].dtype == mx.float32
    np.testing.assert_array_equal(np.array(arrays["weight"]), dequantize(raw, type_))


@pytest.mark.parametrize("name", [*AFFINE, *DIRECT, "MXFP4", "Q4_K", "Q6_K"])
def test_row_order(tmp_path: Path, name: str) -> None:
    type_ = GGMLQuantizationType[name]
    raw = random_blocks(type_)
    path = write_one(tmp_path / "x.gguf", raw, type_)
    order = np.array([3, 0, 5, 1, 4, 2])
    plain, ordered = load_one(path), load_one(path, order)
    assert plain.keys() == ordered.keys()
    for leaf in plain:
        assert mx.array_equal(ordered[leaf], plain[leaf][mx.array(order)])


def test_row_order_of_a_vector(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    path = write_one(tmp_path / "x.gguf", values, GGMLQuantizationType.F32)
    order = np.array([3, 0, 5, 1, 4, 2])
    assert load_one(path, order)["weight"].tolist() == order.tolist()
