"""One HTTP download: resumed where it broke off, checksummed, renamed into place when complete.

Proxies and certificates are what `urllib` and `ssl` take from the environment (`HTTPS_PROXY`,
`SSL_CERT_FILE`). Resuming follows RFC 9110, sections 13.1.5 (If-Range) and 14 (Range).
"""

import base64
import errno
import http.client
import os
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from ...runtime.errors import InputError
from .files import file_sha256

T = TypeVar("T")

# called as progress(done, total) in bytes; total is None while it is unknown
Progress = Callable[[int, int | None], None]

CHUNK = 1 << 18  # bytes read at once
TIMEOUT = 15.0  # seconds without a byte until a connection counts as lost
RETRY_DELAYS = (0.5, 1.0, 2.0)  # seconds before each further try that brings nothing new
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_RANGE_NOT_SATISFIABLE = 416


class _LostError(Exception):
    """The connection or the server failed in a way that a new try may mend."""

    def __init__(self, reason: object, done: int = 0) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.done = done  # bytes at hand by now


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    authorization: str = "",
    progress: Progress | None = None,
    remedy: str = "",
) -> str:
    """Fetch `url` into the file `target` and return its sha256 (hex).

    What arrives is kept in `<target>.part`; a later call goes on from there, unless the server
    has another version by then. `authorization` is a header that no redirect carries on; `remedy`
    ends the message when the host cannot be reached: what the user can do without it. Raises
    InputError: host unreachable, HTTP error, wrong checksum, disk full.
    """
    part = _Part(url, target, authorization)
    digest = part.sha256() if sha256 else None
    if digest is None or digest != sha256:
        _retry(url, remedy, lambda: _receive(part, progress, remedy))
        digest = part.sha256() or ""
    if sha256 and digest != sha256:
        part.discard()
        raise InputError(
            f"{shown(url)} has sha256 {digest}, expected {sha256}; it was thrown away: try again, "
            "and do not trust the source if this repeats"
        )
    part.finish()
    return digest


def read_url(url: str, *, accept: str, remedy: str = "") -> bytes:
    """The body of a small resource. Raises InputError as `download` does."""

    def receive() -> bytes:
        with _open(url, {"Accept": accept}, remedy) as response:
            return b"".join(_chunks(response))

    return _retry(url, remedy, receive)


def disk_error(error: OSError, path: Path) -> InputError:
    """The one-line message for a write below `path` that failed."""
    if error.errno in DISK_FULL:
        return InputError(
            f"no space left on the disk of {path}: free some and run the same command again, "
            "it goes on from what is there"
        )
    return InputError(f"cannot write {error.filename or path}: {error.strerror or error}")


def require_space(folder: Path, size: int) -> None:
    """Raise InputError, with both numbers, when `folder`'s disk has less than `size` bytes free."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"{folder} needs {size:,} more bytes and its disk has {free:,} left: free some, or "
            "set PIPPIN_HOME to a directory on another disk"
        )


class _Part:
    """What has arrived so far, in a file, and in another the version of the resource it is of."""

    def __init__(self, url: str, target: Path, authorization: str) -> None:
        self.url = url
        self.target = target
        self.authorization = authorization
        self.path = target.with_name(target.name + ".part")
        self._validator = target.with_name(target.name + ".part.tag")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def validator(self) -> str | None:
        """The ETag or date for If-Range; None when these bytes cannot be continued."""
        if not self.size or not self._validator.exists():
            return None
        return self._validator.read_text("utf-8") or None

    def restart(self, validator: str | None) -> None:
        self.path.write_bytes(b"")
        self._validator.write_text(validator or "", "utf-8")

    def sha256(self) -> str | None:
        return file_sha256(self.path) if self.path.exists() else None

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)

    def finish(self) -> None:
        os.replace(self.path, self.target)
        self._validator.unlink(missing_ok=True)


def _receive(part: _Part, progress: Progress | None, remedy: str) -> None:
    """One request: append what the server sends to the part, until it is complete."""
    headers = {}
    if validator := part.validator():
        headers = {"Range": f"bytes={part.size}-", "If-Range": validator}
    with _open(part.url, headers, remedy, part.authorization) as response:
        try:
            if response.status == _RANGE_NOT_SATISFIABLE:
                part.discard()
                raise _LostError("it has fewer bytes than before")
            if response.status != 206 or _range_start(response) != part.size:
                _start_over(part, response)
            total = _append(part, response, progress)
        except OSError as error:
            raise disk_error(error, part.path) from error
    if total is not None and part.size < total:
        raise _LostError(f"broke off after {part.size:,} of {total:,} bytes", part.size)


def _start_over(part: _Part, response: Any) -> None:
    if response.status == 206:
        part.discard()
        raise _LostError("it sent another range than asked for")
    part.path.parent.mkdir(parents=True, exist_ok=True)
    part.restart(_validator(response))


def _append(part: _Part, response: Any, progress: Progress | None) -> int | None:
    """Write the response's body behind the part; the bytes the whole must have, if known."""
    done = part.size
    total = None
    if (length := response.headers.get("Content-Length", "")).isdigit():
        total = done + int(length)
        require_space(part.path.parent, int(length))
    if progress:
        progress(done, total)
    with part.path.open("ab") as file:
        for chunk in _chunks(response, done):
            file.write(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    return total


def _chunks(response: Any, done: int = 0) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK)
        except (http.client.HTTPException, OSError) as error:
            raise _LostError(error, done) from error
        if not chunk:
            return
        done += len(chunk)
        yield chunk


def _range_start(response: Any) -> int | None:
    """First byte of a 206 answer, from `Content-Range: bytes 5-9/10`."""
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    first = span.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdigit() else None


def _validator(response: Any) -> str | None:
    """What may stand in If-Range: a strong ETag, or else the modification date."""
    etag = response.headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return etag
    return response.headers.get("Last-Modified")


def _request(url: str, headers: dict[str, str], authorization: str) -> urllib.request.Request:
    """A GET; a user and password in the address become an authorization."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise InputError(f"{shown(url)} is not an http or https address")
    headers = {"User-Agent": "pippin", "Accept-Encoding": "identity", **headers}
    request = urllib.request.Request(_without_login(url), headers=headers)
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    return request


def shown(url: str) -> str:
    """An address fit for a message: without password, and without the signature in its query."""
    return urlunsplit(urlsplit(_without_login(url))._replace(query=""))


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _open(url: str, headers: dict[str, str], remedy: str, authorization: str = "") -> Any:
    request = _request(url, headers, authorization)
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_NOT_SATISFIABLE and "Range" in headers:
            return error  # an HTTPError is a response too
        error.close()
        if error.code in _TRANSIENT_STATUS:
            raise _LostError(f"HTTP {error.code}") from error
        raise InputError(f"{shown(url)} answered HTTP {error.code} ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        _refuse_or_lose(url, error, remedy)


def _refuse_or_lose(url: str, error: Exception, remedy: str) -> NoReturn:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise InputError(
            f"the certificate of {urlsplit(url).hostname} is not trusted "
            f"({reason.verify_message}); set SSL_CERT_FILE to your authority's certificates"
        ) from error
    if isinstance(reason, socket.gaierror):
        raise unreachable(url, reason, remedy) from error
    raise _LostError(reason) from error


def unreachable(url: str, reason: object, remedy: str) -> InputError:
    """The one-line message for a host that does not answer."""
    message = f"{urlsplit(url).hostname} could not be reached ({reason})"
    return InputError(f"{message}; {remedy}" if remedy else message)


def _retry(url: str, remedy: str, attempt: Callable[[], T]) -> T:
    failures = most = 0
    while True:
        try:
            return attempt()
        except _LostError as lost:
            failures = 1 if lost.done > most else failures + 1
            most = max(most, lost.done)
            if failures > len(RETRY_DELAYS):
                raise unreachable(url, lost, remedy) from lost
            time.sleep(RETRY_DELAYS[failures - 1])
