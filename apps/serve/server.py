"""From a loaded model to a running server."""

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING

from ...runtime.errors import PippinError
from ..models import Model, Stages
from .app import build_app
from .document_store import DocumentStore
from .listen import Listener, open_socket
from .metrics import Metrics
from .scheduler import Scheduler
from .service import Service
from .settings import ServeSettings

if TYPE_CHECKING:
    from ...runtime.embedder import Embedder


def make_service(
    model: Model,
    name: str,
    settings: ServeSettings,
    *,
    embedder: "Embedder | None" = None,
    embedder_name: str = "",
) -> Service:
    """A service whose engine's thread is running; `close` ends it.

    The context of a slot is the model's where that is shorter. Raises InputError when the slots
    do not fit into memory.
    """
    if embedder is not None:
        embedder.embed(["a"])  # MLX loads lazily, and only in the thread that began it
    metrics = Metrics()
    generator = model.generator
    scheduler = Scheduler(
        generator.engine,
        generator.tokenizer,
        slots=settings.slots,
        capacity=min(settings.context, generator.engine.info.context),
        queue=settings.queue,
        chunk=settings.chunk,
        metrics=metrics,
    )
    scheduler.start()
    documents = DocumentStore(partial(_load_minilm, settings.fetch))
    return Service(model, scheduler, settings, metrics, name, documents, embedder, embedder_name)


def _load_minilm(fetch: bool, stages: Stages) -> "Embedder":
    """The encoder that documents are searched with: on onnxruntime, which any thread may use, and
    on one core, so that replies go on.
    """
    from ..embedders import load_embedder

    return load_embedder("minilm", "onnx", threads=1, fetch=fetch, stages=stages)


def listen(settings: ServeSettings) -> socket.socket:
    """The socket of the server. Raises InputError."""
    return open_socket(settings.host, settings.port)


def make_listener(service: Service) -> Listener:
    """What serves `service` over HTTP."""
    scheduler = service.scheduler
    return Listener(
        build_app(service),
        service.settings,
        end_streams=scheduler.stop,
        alive=lambda: scheduler.alive,
    )


def run(service: Service, listening: socket.socket) -> int | None:
    """Serve until a signal; its number. All that was under way has ended when this returns.

    Raises PippinError when the engine's thread has failed.
    """
    listener = make_listener(service)
    try:
        asyncio.run(listener.serve(sockets=[listening]))
        if listener.signal is None:
            raise PippinError("the engine's thread has failed; the error is above")
    finally:
        service.close()
    return listener.signal
