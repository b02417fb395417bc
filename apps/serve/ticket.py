"""A request in the scheduler, as the event loop sees it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from .run import Piece


class Ticket:
    """Receives the pieces of `count` replies; made and read in the event loop.

    What waits here is bounded by the replies' own length, however slowly a client reads.
    """

    def __init__(self, count: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.cancelled = False  # the engine's thread reads it before each step
        self._unfinished = count
        self._pieces: deque[Piece] = deque()
        self._failure: Exception | None = None
        self._ready = asyncio.Event()

    def put(self, item: Piece | Exception) -> None:
        """Take what the engine has made, or why it could not."""
        if isinstance(item, Exception):
            self._failure = item
        else:
            self._pieces.append(item)
        self._ready.set()

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of all replies, as they come. Raises what the engine has failed with."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._unfinished -= piece.finish_reason is not None
                yield piece
            if self._failure is not None:
                raise self._failure
            if self._unfinished == 0:
                return
            self._ready.clear()
            await self._ready.wait()
