"""uvicorn with our limits, and an end that every client can understand."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...runtime.errors import InputError
from .settings import ServeSettings

_HEADERS = 64 << 10  # bytes of a request's head
_HEAD_SECONDS = 20  # for a request's head to arrive, and between two requests
_LAST_WORDS = 3  # seconds for streams to send their last event
_DRAINED = 16  # times the body limit: what is left of a refused body is read to its end, so that a
# client that sends first and reads then gets the answer; but no more of it than this
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Listener(uvicorn.Server):
    """Serves `app` until it is told to end, or the engine's thread is no longer `alive`.

    `end_streams` then ends what is under way after its time.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        *,
        end_streams: Callable[[], None],
        alive: Callable[[], bool],
    ) -> None:
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="critical",  # faults are told by whoever meets them
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=settings.connections,
            h11_max_incomplete_event_size=_HEADERS,
            timeout_keep_alive=_HEAD_SECONDS,
            timeout_graceful_shutdown=int(settings.shutdown) + _LAST_WORDS,
        )
        config.drained = _DRAINED * settings.body_limit
        super().__init__(config)
        self._grace, self._end_streams, self._alive = settings.shutdown, end_streams, alive
        self.signal: int | None = None  # that told it to end

    async def on_tick(self, counter: int) -> bool:
        """Whether to end; asked ten times a second."""
        return await super().on_tick(counter) or not self._alive()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new connections; replies under way have their time, then are ended."""
        loop = asyncio.get_running_loop()
        end = loop.call_later(self._grace, self._end_streams)
        await super().shutdown(sockets)
        end.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal asks for the end, a second one does not wait for replies."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread only
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit, self.signal = True, sig


class _Connection(H11Protocol):
    """Closes a connection on which no request arrives in time, or whose refused body has no end."""

    _refused = 0  # bytes of a body that nobody wants

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        timer = self.timeout_keep_alive_task
        super().data_received(data)
        answered = self.cycle is not None and self.cycle.response_complete
        self._refused = self._refused + len(data) if answered and self.cycle.more_body else 0
        if self._refused > self.config.drained:
            self.transport.abort()
        waiting = answered or self.cycle is None
        if waiting and timer is not None and self.timeout_keep_alive_task is None:
            self._await_head(timer.when())  # part of a head does not win more time

    def _await_head(self, deadline: float | None = None) -> None:
        when = deadline or self.loop.time() + _HEAD_SECONDS
        self.timeout_keep_alive_task = self.loop.call_at(when, self.timeout_keep_alive_handler)


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InputError when that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, port))
            made.listen(512)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot listen on {host} port {port}: {error}; choose another with --host or --port"
        ) from error
    made.setblocking(False)
    return made
