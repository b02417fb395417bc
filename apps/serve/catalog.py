"""The models of this server, and how it is: GET /v1/models, /health, /metrics."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from .errors import ApiError
from .service import Service, json_response


async def models(service: Service, request: Request) -> Response:
    """All models; to a client of Anthropic's in its own form."""
    names = _names(service)
    if "anthropic-version" in request.headers:
        entries = [_anthropic(service, name) for name in names]
        ends = {"first_id": names[0], "last_id": names[-1]}
        return json_response({"data": entries, "has_more": False, **ends})
    return json_response({"object": "list", "data": [_openai(service, name) for name in names]})


async def model(service: Service, request: Request) -> Response:
    """One model."""
    name = request.path_params["name"]
    if name not in _names(service):
        raise ApiError(
            404,
            f"there is no model {name!r:.80} here; this server has {', '.join(_names(service))}",
            param="model",
            code="model_not_found",
        )
    form = _anthropic if "anthropic-version" in request.headers else _openai
    return json_response(form(service, name))


async def health(service: Service, request: Request) -> Response:
    """200 while the engine's thread runs; 503 when it has ended."""
    alive = service.scheduler.alive
    state = service.scheduler.state()
    document = {
        "status": "ok" if alive else "failed",
        "model": service.name,
        "slots": state["slots"],
        "busy": state["busy"],
        "queued": state["queued"],
    }
    status = 200 if alive else 503
    return JSONResponse(document, status, headers={"Cache-Control": "no-store"})


async def metrics(service: Service, request: Request) -> Response:
    """Counts for Prometheus."""
    text = service.metrics.render(service.scheduler.state())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _names(service: Service) -> list[str]:
    names = list(service.names)
    return names + ([service.embedder_name] if service.embedder else [])


def _openai(service: Service, name: str) -> dict[str, Any]:
    entry = {"id": name, "object": "model", "created": service.created, "owned_by": "pippin"}
    if name in service.names:
        entry["context_length"] = service.scheduler.capacity
    return entry


def _anthropic(service: Service, name: str) -> dict[str, Any]:
    made = datetime.fromtimestamp(service.created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": made}
