"""safetensors headers and indexes: whole ones load, anything else is one InputError."""

import json
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pippin.mlx_model.checkpoints.safetensors import INDEX, find_weights, load, read_header
from pippin.runtime.errors import InputError


def write(path: Path, header: dict | bytes, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def shards(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Two shards and their index, by the safetensors library."""
    rng = np.random.default_rng(0)
    parts = {
        "model-00001-of-00002.safetensors": {"a": rng.normal(size=(3, 4)).astype(np.float32)},
        "model-00002-of-00002.safetensors": {
            "b": rng.normal(size=(5,)).astype(np.float16),
            "c": np.arange(6, dtype=np.uint32).reshape(2, 3),
        },
    }
    for name, tensors in parts.items():
        save_file(tensors, folder / name, {"format": "pt"})
    weight_map = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return parts


def edit_index(folder: Path, **changes: str | None) -> None:
    index = json.loads((folder / INDEX).read_text())
    for tensor, shard in changes.items():
        index["weight_map"].pop(tensor, None)
        if shard is not None:
            index["weight_map"][tensor] = shard
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("indexed", [True, False])
def test_sharded_weights_load(tmp_path: Path, indexed: bool) -> None:
    parts = shards(tmp_path)
    if not indexed:
        (tmp_path / INDEX).unlink()
    loaded = load(find_weights(tmp_path))
    wanted = {name: array for part in parts.values() for name, array in part.items()}
    assert loaded.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(np.array(loaded[name]), array)
        assert np.array(loaded[name]).dtype == array.dtype


def test_every_dtype_that_the_header_check_admits_is_one_that_mlx_loads(tmp_path: Path) -> None:
    kinds = ["BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32"]
    header, data = {}, b""
    for kind in kinds:
        size = int(kind.lstrip("BUIFO")) // 8 if kind != "BOOL" else 1
        header[kind] = {
            "dtype": kind,
            "shape": [2],
            "data_offsets": [len(data), len(data) + 2 * size],
        }
        data += bytes(2 * size)
    path = write(tmp_path / "model.safetensors", header, data)
    assert set(read_header(path)) == set(kinds)
    loaded = load([path])
    mx.eval(loaded)
    assert set(loaded) == set(kinds)


@pytest.mark.parametrize("kind", ["F64", "F8_E4M3", "F8_E5M2", "F4", "I128", "quaternion"])
def test_dtypes_that_mlx_lacks_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    entry = {"dtype": kind, "shape": [1], "data_offsets": [0, 8]}
    path = write(tmp_path / "model.safetensors", {"layer.weight": entry}, bytes(8))
    with pytest.raises(InputError, match=rf"'layer.weight' in {kind}, which MLX cannot hold"):
        find_weights(tmp_path)
    assert path.exists()


def test_missing_shards_are_named(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=rf"lacks model-00002-of-00002.safetensors, .*{INDEX}"):
        find_weights(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(InputError, match=r"lacks model-00002-of-00002.safetensors"):
        find_weights(tmp_path)


def test_index_lists_what_the_shard_lacks(tmp_path: Path) -> None:
    shards(tmp_path)
    edit_index(tmp_path, ghost="model-00001-of-00002.safetensors")
    with pytest.raises(InputError, match=r"lists ghost in model-00001.*does not have it"):
        find_weights(tmp_path)


def test_shard_has_what_the_index_does_not_list(tmp_path: Path) -> None:
    shards(tmp_path)
    edit_index(tmp_path, c=None)
    with pytest.raises(InputError, match=r"model-00002.* has c, which .* does not list"):
        find_weights(tmp_path)


def test_index_points_into_the_wrong_shard(tmp_path: Path) -> None:
    shards(tmp_path)
    edit_index(tmp_path, b="model-00001-of-00002.safetensors")
    with pytest.raises(InputError, match=r"lists b in model-00001"):
        find_weights(tmp_path)


@pytest.mark.parametrize("place", ["../elsewhere.safetensors", "/etc/passwd"])
def test_index_may_not_lead_out_of_the_directory(tmp_path: Path, place: str) -> None:
    shards(tmp_path)
    edit_index(tmp_path, a=place)
    with pytest.raises(InputError, match=r"expected a file beside it"):
        find_weights(tmp_path)


def test_broken_index_names_the_line(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / INDEX).write_text('{\n "weight_map": {\n  "a": \n}')
    with pytest.raises(InputError, match=rf"{INDEX} is not valid JSON at line 4, column 1"):
        find_weights(tmp_path)


def test_index_without_a_map(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / INDEX).write_text('{"weight_map": []}')
    with pytest.raises(InputError, match=r"has no weight_map"):
        find_weights(tmp_path)


def test_one_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("x", "y"):
        save_file({"a": np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match=r"has 'a' in x.safetensors and y.safetensors"):
        find_weights(tmp_path)


def test_mistrals_second_copy_is_left_alone(tmp_path: Path) -> None:
    for name in ("consolidated", "model"):
        save_file({name: np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")
    assert [path.name for path in find_weights(tmp_path)] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pytorch_model.bin", r"pickled PyTorch files.*convert it to safetensors"),
        ("consolidated.00.pth", r"pickled PyTorch files"),
        ("readme.md", r"no \*.safetensors"),
    ],
)
def test_no_safetensors(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=message):
        find_weights(tmp_path)


def test_truncation_at_every_byte_is_noticed(tmp_path: Path) -> None:
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16)}, tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    assert set(read_header(tmp_path / "x")) == {"a", "b"}
    for length in range(len(whole)):
        (tmp_path / "x").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"is truncated"):
            read_header(tmp_path / "x")


def test_bytes_behind_the_last_tensor(tmp_path: Path) -> None:
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes() + b"!")
    with pytest.raises(InputError, match=r"1 bytes follow its last tensor"):
        read_header(tmp_path / "x")


def test_web_page_saved_under_the_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"<!DOCTYPE html><html>Not found</html>")
    with pytest.raises(InputError, match=r"is not a safetensors file"):
        read_header(tmp_path / "x")


def test_git_lfs_pointer(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    with pytest.raises(InputError, match=r"Git LFS pointer.*git lfs pull"):
        read_header(tmp_path / "x")


counts = st.integers(-2, 9) | st.integers(2**62, 2**65)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F64", ""]) | st.none(),
        "shape": st.lists(counts, max_size=3) | st.text(max_size=2) | st.integers(),
        "data_offsets": st.lists(counts, max_size=3) | st.none(),
    },
)
headers = (
    st.dictionaries(st.text(max_size=3), entries | st.none() | st.integers(), max_size=3)
    | st.lists(st.integers(), max_size=2)
    | st.none()
)


@settings(max_examples=300, deadline=None)
@given(
    header=st.binary(max_size=60) | headers.map(lambda h: json.dumps(h).encode()),
    extra=st.binary(max_size=40),
)
def test_free_form_headers_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, extra: bytes
) -> None:
    path = write(tmp_path_factory.mktemp("h") / "model.safetensors", header, extra)
    check_loads_or_refused(path)


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 200), value=st.integers(0, 255))
def test_one_wrong_byte_in_the_header_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("h") / "model.safetensors"
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16)}, path)
    data = bytearray(path.read_bytes())
    data[position % (8 + struct.unpack_from("<Q", data)[0])] = value
    path.write_bytes(data)
    check_loads_or_refused(path)


def check_loads_or_refused(path: Path) -> None:
    try:
        header = read_header(path)
    except InputError as error:
        message = str(error)
    else:
        message = ""
        loaded = load([path])
        mx.eval(loaded)
        shapes = {name: array.shape for name, array in loaded.items()}
        assert shapes == {name: info.shape for name, info in header.items()}
    assert "\n" not in message
