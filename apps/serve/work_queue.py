"""Long work for one request at a time, beside the event loop and the engine."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from starlette.requests import Request

from .errors import ApiError
from .sse import unless_gone

T = TypeVar("T")
_RETRY_SECONDS = 5

Check = Callable[[], None]  # raises Stopped when nobody waits for the result any more


class Stopped(Exception):
    """The client has gone, its time is over, or the server ends."""


class WorkQueue:
    """One thread, and a few requests that may wait for it; for the event loop.

    with queue.place():  # refused where too many have one
        result = await queue.run(request, work)
    """

    def __init__(self, name: str, what: str, waiting: int) -> None:
        """`what` is being done, in the words of an error: "another document is being read"."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._what, self._most = what, waiting + 1
        self._count = 0
        self._closing = threading.Event()

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue. Raises ApiError (429) when all are taken."""
        if self._count >= self._most:
            raise ApiError(
                429,
                f"{self._what}, and {self._most - 1} more requests wait; try again later",
                code="busy",
                headers={"Retry-After": str(_RETRY_SECONDS)},
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    async def run(self, request: Request, work: Callable[[Check], T]) -> T:
        """What `work` returns; it has to call what it is given now and then.

        Raises ClientGone when the client goes away before.
        """
        gone = threading.Event()

        def check() -> None:
            if gone.is_set() or self._closing.is_set():
                raise Stopped

        def run() -> T:
            check()
            return work(check)

        future = self._thread.submit(run)
        try:
            return await unless_gone(request.receive, asyncio.wrap_future(future))
        finally:
            gone.set()

    def close(self) -> None:
        """Work under way ends at its next check."""
        self._closing.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
