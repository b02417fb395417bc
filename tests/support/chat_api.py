"""A stub of `pippin serve`: the web page's files, and replies as a test has written them."""

import json
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pippin.apps.serve import page_files

_SECONDS = 20  # a gate that nobody opens ends a reply, so that a failed test ends


class HangUp:
    """In a reply: the connection ends here."""


@dataclass(frozen=True)
class Thought:
    """In a reply: a piece of its thinking part."""

    text: str


@dataclass
class Refusal:
    """An error instead of a reply."""

    status: int
    error: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class ScriptedReply:
    """Pieces of text in their order; an Event among them is waited for."""

    pieces: list[str | Thought | HangUp | threading.Event | dict[str, Any]]
    finish: str = "stop"
    cached: int = 0
    gone: threading.Event = field(default_factory=threading.Event)  # the client has hung up


@dataclass
class ChatApi:
    """Replies are taken from `replies` in their order; `asked` has the bodies of requests."""

    url: str = ""
    models: list[str] = field(default_factory=lambda: ["tiny"])
    key: str | None = None
    replies: list[ScriptedReply | Refusal] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def will_say(self, *pieces: Any, **options: Any) -> ScriptedReply:
        """Script the next reply."""
        reply = ScriptedReply(list(pieces), **options)
        self.replies.append(reply)
        return reply

    def will_refuse(self, status: int, message: str, code: str | None = None, **headers: str):
        """Script an error as the next answer; `Retry_After` stands for Retry-After."""
        error = {"message": message, "type": "error", "param": None, "code": code}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.replies.append(Refusal(status, error, named))


@contextmanager
def chat_api() -> Iterator[ChatApi]:
    """The stub on a free port of 127.0.0.1."""
    api = ChatApi(files=page_files.page_contents())
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    api: ChatApi

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.lstrip("/") or "index.html"
        if name == "v1/models":
            models = [{"id": model, "context_length": 4096} for model in self.api.models]
            models.append({"id": "for embeddings"})
            if self._may():
                self._json(200, {"object": "list", "data": models})
        elif name in self.api.files:
            kind = page_files._TYPES[Path(name).suffix]
            self._send(200, kind, self.api.files[name], page_files._HEADERS)
        else:
            self._send(404, "text/plain", b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._may():
            return
        self.api.asked.append(body)
        reply = self.api.replies.pop(0)
        if isinstance(reply, Refusal):
            self._json(reply.status, {"error": reply.error}, reply.headers)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self._stream(reply)
        except OSError:
            reply.gone.set()

    def _may(self) -> bool:
        if self.api.key is None or self.headers["Authorization"] == f"Bearer {self.api.key}":
            return True
        self._json(401, {"error": {"message": "an API key is needed", "code": "invalid_api_key"}})
        return False

    def _stream(self, reply: ScriptedReply) -> None:
        self.wfile.write(b": keep-alive\n\n")
        said = 0
        for piece in reply.pieces:
            match piece:
                case threading.Event():
                    self._wait(piece)
                    continue
                case HangUp():
                    return
                case Thought(text):
                    chunk = _chunk({"reasoning_content": text})
                case str():
                    chunk = _chunk({"content": piece})
                case _:
                    chunk = piece
            said += 1
            self._event(chunk)
        self._event(_chunk({}, reply.finish))
        usage = {"prompt_tokens": 20, "completion_tokens": said, "total_tokens": 20 + said}
        usage["prompt_tokens_details"] = {"cached_tokens": reply.cached}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _wait(self, gate: threading.Event) -> None:
        for _ in range(_SECONDS * 50):
            if gate.wait(0.02):
                return
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable:  # nothing more is to come from the client but its end
                raise ConnectionAbortedError
        raise ConnectionAbortedError

    def _event(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, "application/json", json.dumps(body).encode(), headers)

    def _send(
        self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
