"""What stands before every request: who may call, how much may be sent, and how errors look."""

import hmac
import json
import secrets
import traceback
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...runtime.errors import InputError
from .errors import ApiError, is_anthropic, too_late
from .metrics import Metrics
from .settings import LOOPBACK, ServeSettings
from .sse import ClientGone

_CLIENT_GONE = 499  # nginx's number for it; nobody reads it but whoever reads the metrics


class Guard:
    """ASGI middleware: checks, limits, request ids, counts, and errors in the path's own form."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServeSettings,
        metrics: Metrics,
        open_paths: Iterable[str],
        routes: Iterable[str],
        uploads: Mapping[str, int],
    ) -> None:
        """`open_paths` need no key; `routes` are the paths that are counted by name; `uploads` the
        paths that take files, with the bytes of the largest.
        """
        self._app, self._settings, self._metrics = app, settings, metrics
        self._open, self._routes = frozenset(open_paths), frozenset(routes)
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, status = scope["path"], 0
        name = "request-id" if is_anthropic(path) else "x-request-id"
        request_id = f"req_{secrets.token_hex(12)}"

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[name] = request_id
            await send(message)

        try:
            self._check(scope["method"], path, Headers(scope=scope))
            await self._app(scope, self._limited(receive, self._most(path)), watched)
        except (ClientGone, ClientDisconnect):
            status = status or _CLIENT_GONE
        except Exception as error:
            if status:  # the reply had begun: the connection ends
                traceback.print_exception(error)
                raise
            await _send_error(watched, path, self._failure(error))
        finally:
            self._metrics.request(path if path in self._routes else "other", status)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        """Raise ApiError unless the request may go on."""
        self._check_host(headers.get("host"))
        self._check_origin(headers.get("origin"), headers.get("host"))
        if path not in self._open:
            self._check_key(headers)
        self._check_body(method, path, headers)

    def _check_host(self, host: str | None) -> None:
        """A name that is not ours leads here through somebody else's DNS, or a proxy: then a key
        is asked for.
        """
        if not self._settings.loopback or self._settings.api_key is not None or host is None:
            return
        name = _host_name(host)
        if name not in LOOPBACK and name != self._settings.host:
            raise ApiError(
                403,
                f"the host {name[:100]!r} is not this server's; call it as {LOOPBACK[0]}, or start "
                "it with an API key",
            )

    def _check_origin(self, origin: str | None, host: str | None) -> None:
        """A web page of another origin may call only when it is listed."""
        allowed = self._settings.origins
        if origin is None or "*" in allowed or origin in allowed:
            return
        if origin.partition("://")[2] != host:
            raise ApiError(
                403,
                f"pages of {origin[:100]!r} may not call this server; "
                "start it with --cors-origin to permit them",
            )

    def _check_key(self, headers: Headers) -> None:
        wanted = self._settings.api_key
        if wanted is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode()):
            problem = "the API key is wrong" if given else "an API key is needed"
            raise ApiError(
                401,
                f"{problem}; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _most(self, path: str) -> int:
        """Bytes of a request to `path`."""
        return self._uploads.get(path, self._settings.body_limit)

    def _check_body(self, method: str, path: str, headers: Headers) -> None:
        if method not in ("POST", "PUT", "PATCH"):
            return
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared[:20]) > self._most(path):
            raise _too_large(self._most(path))
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        # None that a form of another page could send without being asked about first.
        wanted = "application/octet-stream" if path in self._uploads else "application/json"
        if kind != wanted:
            what = "the file's bytes" if path in self._uploads else "JSON"
            raise ApiError(415, f"the content type is {kind[:60]!r}; send {what} as {wanted}")

    def _limited(self, receive: Receive, most: int) -> Receive:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise _too_large(most)
            return message

        return limited

    def _failure(self, error: Exception) -> ApiError:
        """What to answer when `error` ended a request."""
        match error:
            case ApiError():
                return error
            case InputError():
                return ApiError(400, str(error))
            case HTTPException():
                return ApiError(error.status_code, str(error.detail), headers=error.headers)
            case TimeoutError():
                return too_late(self._settings.timeout)
        traceback.print_exception(error)
        return ApiError(500, f"the server failed: unexpected {type(error).__name__}")


async def _send_error(send: Send, path: str, error: ApiError) -> None:
    body = json.dumps(error.for_path(path), ensure_ascii=True).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    headers |= {name.lower(): value for name, value in error.headers.items()}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _too_large(most: int) -> ApiError:
    return ApiError(
        413,
        f"the request is larger than {most:,} bytes, which is all that this server takes",
        code="request_too_large",
    )


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host
