"""Server-sent events to a client that may read slowly, or go away."""

import asyncio
import contextlib
import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, too_late

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would collect events otherwise
}


class ClientGone(Exception):
    """Nobody is left to answer."""


class EventStream(Response):
    """Sends `events` until they end; `close` runs when they have, or when the client has gone.

    After `keep_alive` seconds without an event a comment is sent, so that proxies keep the
    connection. An ApiError among the events, and the `deadline` (of the loop's clock, `timeout`
    seconds after the request), are told by `failed`.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        failed: Callable[[ApiError], bytes],
        close: Callable[[], None],
        keep_alive: float,
        deadline: float,
        timeout: float,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events, self._failed, self._close = events, failed, close
        self._keep_alive, self._deadline, self._timeout = keep_alive, deadline, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self.raw_headers
        try:
            async with asyncio.timeout_at(self._deadline):
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await self._send_all(receive, send)
        except ApiError as error:
            await self._send_last(send, error)
        except TimeoutError:
            await self._send_last(send, too_late(self._timeout))
        except ClientGone:
            pass
        except Exception as error:  # a fault of ours
            traceback.print_exception(error)
            kind = type(error).__name__
            await self._send_last(send, ApiError(500, f"the server failed: unexpected {kind}"))
        finally:
            self._close()

    async def _send_all(self, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_until_gone(receive))
        following = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(self._events, None))
                done, _ = await asyncio.wait(
                    (following, gone),
                    timeout=self._keep_alive,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if gone in done:
                    raise ClientGone
                if not done:
                    await _send_body(send, b": still here\n\n")
                    continue
                event, following = following.result(), None
                if event is None:
                    await _send_body(send, b"", more=False)
                    return
                await _send_body(send, event)
        finally:
            for task in (gone, following):
                if task is not None:
                    task.cancel()

    async def _send_last(self, send: Send, error: ApiError) -> None:
        """An event that says why the stream ends here; a client that does not read is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await _send_body(send, self._failed(error), more=False)


async def unless_gone(receive: Receive, awaited: Awaitable[Any]) -> Any:
    """The result of `awaited`. Raises ClientGone when the client goes away before."""
    work = asyncio.ensure_future(awaited)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


def data(document: Any, event: str | None = None) -> bytes:
    """One event with a JSON document."""
    head = f"event: {event}\n" if event else ""
    return b"%bdata: %b\n\n" % (head.encode(), encode(document))


def encode(document: Any) -> bytes:
    """Compact JSON in UTF-8."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_body(send: Send, body: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
