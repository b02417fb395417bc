"""The model that is served, and how the interfaces use it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ..models import Model
from .content import Part, Reply
from .document_store import DocumentStore
from .errors import ApiError
from .metrics import Metrics
from .run import Piece
from .scheduler import Scheduler
from .settings import ServeSettings
from .sse import EventStream, encode, unless_gone
from .ticket import Ticket
from .work_queue import WorkQueue

if TYPE_CHECKING:
    from ...runtime.embedder import Embedder

T = TypeVar("T")


@dataclass
class Service:
    """What every endpoint gets."""

    model: Model
    scheduler: Scheduler
    settings: ServeSettings
    metrics: Metrics
    name: str  # of the model, as clients call it
    documents: DocumentStore
    embedder: "Embedder | None" = None
    embedder_name: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    insight: WorkQueue = field(
        default_factory=lambda: WorkQueue("pippin-insight", "another reply is being explained", 4)
    )
    reading: WorkQueue = field(
        default_factory=lambda: WorkQueue("pippin-reading", "another document is being read", 8)
    )
    # Templates and tokenizers take their time with long prompts; streams go on meanwhile.
    _workers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="pippin-prompt")
    )

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model that writes text."""
        return (self.name, *self.settings.aliases)

    def check_model(self, name: str) -> None:
        """Raise ApiError unless `name` is the model that writes text."""
        if name not in self.names:
            raise ApiError(
                404,
                f"model: there is no model {name!r:.80} here; this server has "
                f"{', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )

    async def in_worker(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function` beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *args)

    async def in_engine(self, function: Callable[[], T]) -> T:
        """Run `function` in the engine's thread, between two steps."""
        return await asyncio.wrap_future(self.scheduler.call(function))

    async def collect(self, request: Request, ticket: Ticket, replies: list[Reply]) -> None:
        """Fill `replies` to their ends. Raises ClientGone when the client goes away before."""
        try:
            await unless_gone(request.receive, _drain(ticket, replies))
        finally:
            self.scheduler.cancel(ticket)

    def stream(
        self,
        request: Request,
        ticket: Ticket,
        events: AsyncIterator[bytes],
        failed: Callable[[ApiError], bytes],
    ) -> Response:
        """The response that sends `events`, made from the ticket's pieces."""
        return EventStream(
            events,
            failed=failed,
            close=lambda: self.scheduler.cancel(ticket),
            keep_alive=self.settings.keep_alive,
            deadline=request.state.deadline,
            timeout=self.settings.timeout,
        )

    def close(self) -> None:
        """End the engine's thread and the workers, and delete the documents."""
        self.scheduler.stop()
        self.insight.close()
        self.reading.close()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self.documents.close()


async def parts(
    ticket: Ticket, replies: list[Reply]
) -> AsyncIterator[tuple[Piece, Reply, list[Part]]]:
    """Each piece with its reply, once it has been added, and the parts that are new with it.

    Ends when all replies have.
    """
    async with aclosing(ticket.pieces()) as pieces:
        async for piece in pieces:
            reply = replies[piece.index]
            if reply.finish_reason is None:
                yield piece, reply, reply.take(piece)
            if all(reply.finish_reason is not None for reply in replies):
                return


async def _drain(ticket: Ticket, replies: list[Reply]) -> None:
    async for _ in parts(ticket, replies):
        pass


def json_response(document: Any) -> Response:
    """A JSON answer that no proxy keeps."""
    headers = {"Cache-Control": "no-store"}
    return Response(encode(document), media_type="application/json", headers=headers)
