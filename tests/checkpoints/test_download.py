"""One download against servers that cut, change, refuse and lie."""

import errno
import hashlib
import os
import socket
from pathlib import Path

import pytest

from pippin.mlx_model.checkpoints import download as module
from pippin.mlx_model.checkpoints.download import download, read_url
from pippin.runtime.errors import InputError
from support.servers import FileServer, Resource

BODY = os.urandom(3_000_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


def fetch(server: FileServer, target: Path, **options: object) -> str:
    return download(f"{server.url}/file", target, **options)


def leftovers(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def test_whole_file_with_progress(server: FileServer, tmp_path: Path) -> None:
    server.resources["/file"] = Resource(BODY)
    steps: list[tuple[int, int | None]] = []
    digest = fetch(server, tmp_path / "x", progress=lambda *step: steps.append(step))
    assert digest == SHA256
    assert (tmp_path / "x").read_bytes() == BODY
    assert leftovers(tmp_path / "x") == ["x"]
    assert steps[0] == (0, len(BODY))
    assert steps[-1] == (len(BODY), len(BODY))
    assert steps == sorted(steps)


def test_cut_connection_is_resumed_within_one_call(server: FileServer, tmp_path: Path) -> None:
    server.resources["/file"] = Resource(BODY, cuts=[1_000_000, 500_000])
    fetch(server, tmp_path / "x", sha256=SHA256)
    assert (tmp_path / "x").read_bytes() == BODY
    ranges = [seen.headers.get("range") for seen in server.gets("/file")]
    assert ranges == [None, "bytes=1000000-", "bytes=1500000-"]
    assert sum(seen.sent for seen in server.gets("/file")) == len(BODY)


def test_interrupted_download_is_resumed_by_the_next_call(
    server: FileServer, tmp_path: Path
) -> None:
    resource = server.resources["/file"] = Resource(BODY, cuts=[1_000_000] + [0] * 9)
    with pytest.raises(InputError, match=r"127.0.0.1 could not be reached .*do this"):
        fetch(server, tmp_path / "x", sha256=SHA256, remedy="do this")
    assert not (tmp_path / "x").exists()
    resource.cuts.clear()
    server.seen.clear()
    first: list[int] = []
    fetch(server, tmp_path / "x", sha256=SHA256, progress=lambda done, total: first.append(done))
    assert (tmp_path / "x").read_bytes() == BODY
    assert first[0] == 1_000_000
    assert sum(seen.sent for seen in server.gets("/file")) == len(BODY) - 1_000_000
    assert leftovers(tmp_path / "x") == ["x"]


@pytest.mark.parametrize(
    "changed",
    [{"etag": '"2"'}, {"ranges": False}, {"etag": None}, {"etag": 'W/"1"'}],
    ids=["another version", "no ranges", "no validator", "weak validator"],
)
def test_starts_over_when_it_cannot_go_on(
    server: FileServer, tmp_path: Path, changed: dict
) -> None:
    server.resources["/file"] = Resource(b"old" * 500_000, cuts=[1_000_000] + [0] * 9)
    with pytest.raises(InputError):
        fetch(server, tmp_path / "x")
    server.resources["/file"] = Resource(BODY, **changed)
    fetch(server, tmp_path / "x", sha256=SHA256)
    assert (tmp_path / "x").read_bytes() == BODY


def test_server_without_validator_cut_once(server: FileServer, tmp_path: Path) -> None:
    server.resources["/file"] = Resource(BODY, etag=None, cuts=[1_000_000])
    fetch(server, tmp_path / "x", sha256=SHA256)
    assert (tmp_path / "x").read_bytes() == BODY


def test_shrunken_file_starts_over(server: FileServer, tmp_path: Path) -> None:
    server.resources["/file"] = Resource(BODY, cuts=[1_000_000] + [0] * 9)
    with pytest.raises(InputError):
        fetch(server, tmp_path / "x")
    server.resources["/file"] = Resource(BODY[:1000])  # the same ETag, so Range gets a 416
    fetch(server, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == BODY[:1000]


def test_a_server_that_always_cuts_does_not_hold_us_forever(
    server: FileServer, tmp_path: Path
) -> None:
    server.resources["/file"] = Resource(BODY, ranges=False, cuts=[1_000_000] * 50)
    with pytest.raises(InputError, match=r"broke off after 1,000,000 of 3,000,000 bytes"):
        fetch(server, tmp_path / "x")
    assert len(server.seen) < 10


def test_wrong_checksum_is_thrown_away(server: FileServer, tmp_path: Path) -> None:
    server.resources["/file"] = Resource(BODY)
    with pytest.raises(InputError, match=f"has sha256 {SHA256}, expected 00"):
        fetch(server, tmp_path / "x", sha256="00" * 32)
    assert leftovers(tmp_path / "x") == []


def test_complete_part_needs_no_network(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(BODY)
    fetch(server, tmp_path / "x", sha256=SHA256)
    assert (tmp_path / "x").read_bytes() == BODY
    assert server.seen == []


def test_passing_failures_are_retried_and_lasting_ones_are_not(
    server: FileServer, tmp_path: Path
) -> None:
    server.resources["/file"] = Resource(BODY, failures=[503, 429])
    fetch(server, tmp_path / "x", sha256=SHA256)
    assert len(server.seen) == 3
    with pytest.raises(InputError, match=r"/gone answered HTTP 404"):
        download(f"{server.url}/gone", tmp_path / "y")
    assert len(server.seen) == 4


def test_nothing_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_DELAYS", (0.0,))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
    with pytest.raises(InputError, match=r"^127.0.0.1 could not be reached .*; put it there$"):
        download(url, tmp_path / "x", remedy="put it there")


def test_unknown_host_is_given_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_address(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pytest.fail("waited"))
    with pytest.raises(InputError, match=r"^models.invalid could not be reached"):
        download("http://models.invalid/file", tmp_path / "x")


def test_full_disk_while_writing(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.resources["/file"] = Resource(BODY)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"no space left on the disk of .*free some") as caught:
        fetch(server, tmp_path / "x", sha256=SHA256)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_too_small_a_disk_is_refused_before_writing(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.resources["/file"] = Resource(BODY)
    usage = module.shutil.disk_usage(tmp_path)._replace(free=1234)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"needs 3,000,000 more bytes and its disk has 1,234 left"):
        fetch(server, tmp_path / "x")


def test_unwritable_directory(server: FileServer, tmp_path: Path) -> None:
    server.resources["/file"] = Resource(BODY)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write"):
        fetch(server, tmp_path / "file" / "x")


def test_password_goes_into_a_header_and_not_into_messages(
    server: FileServer, tmp_path: Path
) -> None:
    server.resources["/file"] = Resource(BODY)
    url = server.url.replace("//", "//me:s%20cret@") + "/file"
    download(url, tmp_path / "x")
    assert server.seen[0].headers["authorization"] == "Basic bWU6cyBjcmV0"  # me:s cret
    with pytest.raises(InputError) as caught:
        download(url.replace("/file", "/gone"), tmp_path / "y")
    assert "cret" not in str(caught.value)


def test_only_http(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file:///etc/passwd is not an http or https address"):
        download("file:///etc/passwd", tmp_path / "x")


def test_read_url(server: FileServer) -> None:
    server.resources["/page"] = Resource(b"hello", failures=[502])
    assert read_url(f"{server.url}/page", accept="text/plain") == b"hello"
    assert server.seen[-1].headers["accept"] == "text/plain"
