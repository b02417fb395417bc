"""The ASGI application: which path leads where."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from . import catalog, documents
from .chat_completions import chat_completions
from .completions import completions
from .document_store import MAX_BYTES
from .embeddings import embeddings
from .fields import Fields, parse_body
from .guard import Guard
from .insight import explain
from .messages import count_tokens, messages
from .page_files import page_routes
from .responses import responses
from .service import Service

Handler = Callable[[Service, Request, Fields], Awaitable[Response]]

_POSTS: dict[str, Handler] = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/embeddings": embeddings,
    "/v1/messages": messages,
    "/v1/messages/count_tokens": count_tokens,
    "/v1/responses": responses,
    "/pippin/explain": explain,
    "/pippin/passages": documents.passages,
    "/pippin/sources": documents.sources,
}
_GETS = {
    "/v1/models": catalog.models,
    "/v1/models/{name:path}": catalog.model,
    "/health": catalog.health,
    "/metrics": catalog.metrics,
    "/pippin/documents/{id}/pages/{number:int}.png": documents.page_picture,
}
_UPLOADS = "/pippin/documents"
_EXPOSED = ("Retry-After", "x-request-id", "request-id")


def build_app(service: Service) -> ASGIApp:
    """The application of one service."""
    page = page_routes()
    routes = [
        *(
            Route(path, _post(service, handler), methods=["POST"])
            for path, handler in _POSTS.items()
        ),
        *(Route(path, _get(service, handler), methods=["GET"]) for path, handler in _GETS.items()),
        Route(_UPLOADS, _timed(service, documents.upload), methods=["POST"]),
        Route(f"{_UPLOADS}/{{id}}", _get(service, documents.remove), methods=["DELETE"]),
        *page,
    ]
    paths = [route.path for route in routes]
    guard = Middleware(
        Guard,
        settings=service.settings,
        metrics=service.metrics,
        open_paths=["/health", *(route.path for route in page)],
        routes=paths,
        uploads={_UPLOADS: MAX_BYTES},
    )
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(service.settings.origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=list(_EXPOSED),
    )
    outer = [cors, guard] if service.settings.origins else [guard]
    # Guard answers errors, each in its path's own form.
    handlers = {HTTPException: _pass_on}
    return Starlette(routes=routes, middleware=outer, exception_handlers=handlers)


async def _pass_on(request: Request, error: Exception) -> Response:
    raise error


def _post(service: Service, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def read(service: Service, request: Request) -> Response:
        return await handler(service, request, parse_body(await request.body()))

    return _timed(service, read)


def _timed(
    service: Service, handler: Callable[[Service, Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    async def run(request: Request) -> Response:
        seconds = service.settings.timeout
        request.state.deadline = asyncio.get_running_loop().time() + seconds
        async with asyncio.timeout(seconds):
            return await handler(service, request)

    return run


def _get(
    service: Service, handler: Callable[[Service, Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    async def run(request: Request) -> Response:
        return await handler(service, request)

    return run
