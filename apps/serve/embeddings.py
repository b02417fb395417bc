"""POST /v1/embeddings: texts to vectors, by the encoder that the server was started with."""

import base64
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from .errors import ApiError
from .fields import Fields
from .service import Service, json_response
from .sse import unless_gone

MAX_TEXTS = 2048
_AT_ONCE = 16  # texts between two steps of the replies under way


async def embeddings(service: Service, request: Request, fields: Fields) -> Response:
    """One vector a text, float32; as numbers, or base64 of little-endian bytes."""
    name = fields.text("model", required=True)
    embedder = service.embedder
    if embedder is None or name != service.embedder_name:
        there = service.embedder_name or "none: start it with --embedder MODEL"
        raise ApiError(
            404,
            f"model: there is no encoder {name!r:.80} here; this server has {there}",
            param="model",
            code="model_not_found",
        )
    texts = _read_texts(fields)
    form = fields.choice("encoding_format", ("float", "base64"), "float")
    fields.refuse(
        "dimensions", embedder.dimension, why=f"is not supported here but {embedder.dimension}"
    )
    fields.harmless({"user": str})
    fields.done()
    vectors, tokens = await unless_gone(request.receive, _embed(service, texts))
    return json_response(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _encode(vector, form)}
                for index, vector in enumerate(vectors)
            ],
            "model": name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


async def _embed(service: Service, texts: list[str]) -> tuple[np.ndarray, int]:
    """Vectors [B, E], and the tokens of all texts; a few texts at a time, so that no reply waits
    for all of them.
    """
    embedder = service.embedder

    def count() -> int:
        return sum(len(embedder.tokens(text)) for text in texts)

    tokens = await service.in_worker(count)
    vectors = np.empty((len(texts), embedder.dimension), np.float32)
    for start in range(0, len(texts), _AT_ONCE):
        part = texts[start : start + _AT_ONCE]
        vectors[start : start + len(part)] = await service.in_engine(
            lambda part=part: embedder.embed(part)
        )
    return vectors, tokens


def _read_texts(fields: Fields) -> list[str]:
    value = fields.take("input", required=True)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise fields.bad("input", "expected a string or a list of strings; token ids do not fit")
    if not all(texts):
        raise fields.bad("input", "has an empty string")
    if len(texts) > MAX_TEXTS:
        raise fields.bad("input", f"has {len(texts)} texts, at most {MAX_TEXTS} are taken at once")
    return texts


def _encode(vector: np.ndarray, form: str) -> Any:
    if form == "float":
        return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
