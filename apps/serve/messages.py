"""POST /v1/messages, as Anthropic's clients know it, and /v1/messages/count_tokens."""

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..reasoning import Reasoning
from ..tools import CallArguments, CallStart, Content
from .content import Part, Reply
from .errors import ApiError
from .fields import Fields
from .messages_request import read_count, read_message_request
from .service import Service, json_response, parts
from .sse import data
from .structure import Prepared, prepare, render
from .ticket import Ticket

_STOP = {
    "stop": "end_turn",
    "stop_string": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


async def messages(service: Service, request: Request, fields: Fields) -> Response:
    """One reply to a conversation, whole or as a stream of events."""
    asked = read_message_request(fields)
    service.check_model(asked.model)
    prepared = await service.in_worker(prepare, service, asked)
    ticket = service.scheduler.submit(prepared.ask)
    (reply,) = replies = prepared.new_replies()
    document = {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": len(prepared.ask.tokens), "output_tokens": 0},
    }
    if asked.stream:
        events = _events(ticket, reply, document, prepared)
        return service.stream(request, ticket, events, failed)
    await service.collect(request, ticket, replies)
    document["content"] = _blocks(reply)
    return json_response({**document, **_ending(reply), "usage": _usage(prepared, reply)})


async def count_tokens(service: Service, request: Request, fields: Fields) -> Response:
    """How many tokens a conversation takes."""
    asked = read_count(fields)
    service.check_model(asked.model)
    prompt = await service.in_worker(render, service.model.generator, asked)
    return json_response({"input_tokens": len(prompt.tokens)})


def failed(error: ApiError) -> bytes:
    """The last event of a stream that cannot go on."""
    return data(error.as_anthropic(), "error")


class _Stream:
    """The events of one message; at most one content block is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open: Any = None  # what kind of block it is, and of which call

    def add(self, part: Part) -> bytes:
        """The events of one part."""
        match part:
            case Content():
                start = {"type": "text", "text": ""}
                delta = {"type": "text_delta", "text": part.text}
                return self._enter("text", start) + self._delta(delta)
            case Reasoning():
                start = {"type": "thinking", "thinking": "", "signature": ""}
                delta = {"type": "thinking_delta", "thinking": part.text}
                return self._enter("thinking", start) + self._delta(delta)
            case CallStart():
                start = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
                return self._enter(("call", part.index), start)
            case CallArguments():
                return self._delta({"type": "input_json_delta", "partial_json": part.text})

    def close(self) -> bytes:
        """End the open block."""
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", index=self._index)

    def _enter(self, kind: Any, block: dict[str, Any]) -> bytes:
        if self._open == kind:
            return b""
        out = self.close()
        self._open = kind
        self._index += 1
        return out + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


async def _events(
    ticket: Ticket, reply: Reply, document: dict[str, Any], prepared: Prepared
) -> AsyncIterator[bytes]:
    yield _event("message_start", message=document)
    yield _event("ping")
    stream = _Stream()
    async for _, _, new in parts(ticket, [reply]):
        if new:
            yield b"".join([stream.add(part) for part in new])
    if not (reply.text or reply.thought or reply.calls):
        yield stream.add(Content(""))
    yield stream.close()
    yield _event("message_delta", delta=_ending(reply), usage=_usage(prepared, reply))
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return data({"type": kind, **fields}, kind)


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.thought:
        blocks.append({"type": "thinking", "thinking": reply.thought, "signature": ""})
    if reply.text or not reply.calls:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        arguments = json.loads(call.arguments or "{}")
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _ending(reply: Reply) -> dict[str, Any]:
    return {"stop_reason": _STOP[reply.finish_reason], "stop_sequence": reply.stop}


def _usage(prepared: Prepared, reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": len(prepared.ask.tokens) - reply.cached,
        "cache_read_input_tokens": reply.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": reply.tokens,
    }
