"""HTTP servers on loopback that misbehave on request: plain files, a package index, a model hub."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Resource:
    """What a path answers, and how badly."""

    body: bytes
    etag: str | None = '"1"'
    ranges: bool = True  # False: a Range header is ignored
    content_type: str = "application/octet-stream"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # bytes to send before hanging up, per request
    failures: list[int] = field(default_factory=list)  # statuses to answer with first; 0: none
    hold: threading.Event | None = None  # after the first half, wait for this


@dataclass
class Seen:
    """One request as the server got it."""

    method: str
    path: str
    headers: dict[str, str]  # lower-case names
    sent: int = 0  # bytes of body


@dataclass
class FileServer:
    """Resources by path; `seen` records every request."""

    url: str = ""
    resources: dict[str, Resource] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)

    def gets(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "GET" and seen.path == path]


@contextmanager
def serve() -> Iterator[FileServer]:
    """A server on a free port of 127.0.0.1."""
    files = FileServer()
    handler = type("Handler", (_Handler,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    files.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield files
    finally:
        for resource in files.resources.values():
            if resource.hold:
                resource.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    files: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_GET(self) -> None:
        self._answer("GET")

    def _answer(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(method, path, headers)
        self.files.seen.append(seen)
        resource = self.files.resources.get(path)
        if resource is None:
            return self._send(404, {"Content-Length": "0"})
        if resource.failures and (status := resource.failures.pop(0)):
            return self._send(status, {"Content-Length": "0"})
        status, answer, body = self._body(resource, headers)
        self._send(status, answer)
        if method == "GET":
            self._write(resource, body, seen)
        return None

    def _body(self, resource: Resource, headers: dict[str, str]) -> tuple[int, dict, bytes]:
        answer = {"Content-Type": resource.content_type, **resource.headers}
        if resource.etag:
            answer["ETag"] = resource.etag
        start, size = 0, len(resource.body)
        asked = headers.get("range", "").removeprefix("bytes=").rstrip("-")
        if resource.ranges and asked.isdigit() and headers.get("if-range") in {resource.etag, None}:
            start = int(asked)
            if start >= size:
                return (
                    416,
                    answer | {"Content-Range": f"bytes */{size}", "Content-Length": "0"},
                    b"",
                )
            answer["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        answer["Content-Length"] = str(size - start)
        return 206 if start else resource.status, answer, resource.body[start:]

    def _send(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, resource: Resource, body: bytes, seen: Seen) -> None:
        if resource.cuts:
            body = body[: resource.cuts.pop(0)]
            self.close_connection = True
        parts = [body]
        if resource.hold:
            parts = [body[: len(body) // 2], body[len(body) // 2 :]]
        for number, part in enumerate(parts):
            if number:
                resource.hold.wait(30)
            try:
                self.wfile.write(part)
                self.wfile.flush()
            except OSError:  # the client has hung up
                self.close_connection = True
                return
            seen.sent += len(part)


def add_to_index(server: FileServer, project: str, filename: str, body: bytes) -> Resource:
    """Serve a file on a package index at `<server>/simple` (PEP 691); returns its resource."""
    page = server.resources.setdefault(
        f"/simple/{project}/",
        Resource(b'{"files": []}', content_type="application/vnd.pypi.simple.v1+json"),
    )
    listing = json.loads(page.body)
    entry = {
        "filename": filename,
        "url": f"../../files/{filename}",
        "hashes": {"sha256": hashlib.sha256(body).hexdigest()},
    }
    listing |= {"meta": {"api-version": "1.1"}, "name": project}
    listing["files"].append(entry)
    page.body = json.dumps(listing).encode()
    resource = Resource(body)
    server.resources[f"/files/{filename}"] = resource
    return resource


def add_to_hub(
    server: FileServer,
    repo: str,
    files: dict[str, bytes],
    *,
    revision: str = "main",
    commit: str = COMMIT,
) -> None:
    """Serve a model as a hub does: its listing, and each file under `resolve/`."""
    siblings = []
    for name, body in files.items():
        digest = hashlib.sha256(body).hexdigest()
        sibling = {"rfilename": name, "size": len(body), "blobId": digest[:40]}
        if name.endswith((".safetensors", ".gguf", ".bin")):
            sibling["lfs"] = {"sha256": digest, "size": len(body), "pointerSize": 134}
        siblings.append(sibling)
        server.resources[f"/{repo}/resolve/{commit}/{name}"] = Resource(
            body, etag=f'"{digest}"', headers={"X-Repo-Commit": commit}
        )
    info = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []}
    info |= {"private": False, "downloads": 0, "likes": 0}
    server.resources[f"/api/models/{repo}/revision/{revision}"] = Resource(
        json.dumps(info).encode(), content_type="application/json"
    )
