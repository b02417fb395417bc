"""POST /v1/responses, OpenAI's newer interface; the server keeps no conversations."""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..reasoning import Reasoning
from ..tools import CallArguments, CallStart, Content
from .content import Part, Reply, is_json
from .errors import ApiError
from .fields import Fields
from .prompts import token_entry
from .responses_request import ResponseRequest, read_response
from .service import Service, json_response, parts
from .sse import data
from .structure import Prepared, prepare
from .ticket import Ticket


async def responses(service: Service, request: Request, fields: Fields) -> Response:
    """One response to a conversation, whole or as a stream of events."""
    asked = read_response(fields)
    service.check_model(asked.chat.model)
    prepared = await service.in_worker(prepare, service, asked.chat)
    ticket = service.scheduler.submit(prepared.ask)
    (reply,) = replies = prepared.new_replies()
    document = _document(asked, prepared)
    output = Output(service, prepared.ask.top_logprobs)
    if asked.chat.stream:
        events = Events(document, output)
        made = _events(ticket, reply, events, prepared)
        return service.stream(request, ticket, made, events.failed)
    await service.collect(request, ticket, replies)
    output.add_logprobs(reply.logprobs)
    for part in _whole(reply):
        output.add(part)
    output.close(_status(reply))
    return json_response(_finished(document, output, reply, prepared))


@dataclass
class Output:
    """The items of a response; the last one may still be open."""

    service: Service
    top_logprobs: int | None
    items: list[dict[str, Any]] = field(default_factory=list)
    open: Any = None  # what kind of item the last one is, and of which call
    pending: list[dict[str, Any]] = field(default_factory=list)  # logprobs of the next text

    def add(self, part: Part) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Add a part; events of an item that ends and one that begins, then its delta."""
        events: list[dict[str, Any]] = []
        kind = part.index if isinstance(part, CallStart | CallArguments) else type(part).__name__
        if kind != self.open:
            events += self.close()
            self.open = kind
            events += self._begin(part)
        item = self.items[-1]
        where = {"item_id": item["id"], "output_index": len(self.items) - 1}
        match part:
            case Content():
                item["content"][0]["text"] += part.text
                entries, self.pending = self.pending, []
                item["content"][0]["logprobs"] += entries
                delta = {"delta": part.text, "logprobs": entries, "content_index": 0}
                return events, {"type": "response.output_text.delta", **where, **delta}
            case Reasoning():
                item["content"][0]["text"] += part.text
                delta = {"delta": part.text, "content_index": 0}
                return events, {"type": "response.reasoning_text.delta", **where, **delta}
            case CallArguments():
                item["arguments"] += part.text
                kind = "response.function_call_arguments.delta"
                return events, {"type": kind, **where, "delta": part.text}
        return events, {}

    def add_logprobs(self, entries: Any) -> None:
        """Note logprobs, which go with the next text."""
        if self.top_logprobs is None:
            return
        tokenizer = self.service.model.generator.tokenizer
        self.pending += [token_entry(tokenizer, entry) for entry in entries]

    def close(self, status: str = "completed") -> list[dict[str, Any]]:
        """End the last item; its events."""
        if self.open is None:
            return []
        self.open = None
        item, index = self.items[-1], len(self.items) - 1
        broken = item["type"] == "function_call" and not is_json(item["arguments"])
        item["status"] = "incomplete" if broken else status
        where = {"item_id": item["id"], "output_index": index}
        events = []
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            kind = "response.function_call_arguments.done"
            events.append({"type": kind, **where, **done})
        else:
            part, at = item["content"][0], {**where, "content_index": 0}
            if self.pending:  # of tokens without a text, such as the end of turn
                part["logprobs"] += self.pending
                self.pending = []
            kind = part["type"]
            ending = {"type": f"response.{kind}.done", **at, "text": part["text"]}
            if kind == "output_text":
                ending["logprobs"] = part["logprobs"]
            events.append(ending)
            events.append({"type": "response.content_part.done", **at, "part": dict(part)})
        done = {"output_index": index, "item": item}
        return [*events, {"type": "response.output_item.done", **done}]

    def _begin(self, part: Part) -> list[dict[str, Any]]:
        item = _new_item(part)
        self.items.append(item)
        index = len(self.items) - 1
        events = [{"type": "response.output_item.added", "output_index": index, "item": item}]
        if item["type"] != "function_call":
            part = {**item["content"][0]}
            at = {"item_id": item["id"], "output_index": index, "content_index": 0}
            events.append({"type": "response.content_part.added", **at, "part": part})
        return [_frozen(event) for event in events]


class Events:
    """Numbers events, and tells the response as it is."""

    def __init__(self, document: dict[str, Any], output: Output) -> None:
        self.document, self.output = document, output
        self._number = -1

    def make(self, *events: dict[str, Any]) -> bytes:
        """The events' bytes; empty ones are left out."""
        out = b""
        for event in filter(None, events):
            self._number += 1
            out += data({**event, "sequence_number": self._number}, event["type"])
        return out

    def failed(self, error: ApiError) -> bytes:
        """The last event of a stream that cannot go on."""
        reason = {"code": error.code or "server_error", "message": error.message}
        document = {
            **self.document,
            "status": "failed",
            "error": reason,
            "output": self.output.items,
        }
        return self.make({"type": "response.failed", "response": document})


async def _events(
    ticket: Ticket, reply: Reply, events: Events, prepared: Prepared
) -> AsyncIterator[bytes]:
    begun, output = {"response": events.document}, events.output
    yield events.make(
        {"type": "response.created", **begun}, {"type": "response.in_progress", **begun}
    )
    async for piece, _, new in parts(ticket, [reply]):
        output.add_logprobs(piece.logprobs)
        out = b""
        for part in new:
            before, delta = output.add(part)
            out += events.make(*before, delta)
        if out:
            yield out
    if not output.items:
        before, delta = output.add(Content(""))
        yield events.make(*before, delta)
    yield events.make(*output.close(_status(reply)))
    document = _finished(events.document, output, reply, prepared)
    yield events.make({"type": f"response.{document['status']}", "response": document})


def _document(asked: ResponseRequest, prepared: Prepared) -> dict[str, Any]:
    """The response before anything is said."""
    params, echo = prepared.ask.params, asked.echo
    return {
        "id": f"resp_{secrets.token_hex(12)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": echo["instructions"],
        "metadata": echo["metadata"] or {},
        "model": asked.chat.model,
        "output": [],
        "parallel_tool_calls": asked.chat.tools.parallel,
        "temperature": params.temperature,
        "tool_choice": echo["tool_choice"] or "auto",
        "tools": echo["tools"] or [],
        "top_p": params.top_p,
        "max_output_tokens": asked.chat.given.get("max_tokens"),
        "previous_response_id": None,
        "reasoning": echo["reasoning"] or {},
        "text": echo["text"] or {"format": {"type": "text"}},
        "truncation": "disabled",
        "store": False,
        "usage": None,
    }


def _finished(
    document: dict[str, Any], output: Output, reply: Reply, prepared: Prepared
) -> dict[str, Any]:
    cut = reply.finish_reason == "length"
    prompt = len(prepared.ask.tokens)
    return {
        **document,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output.items,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": reply.cached},
            "output_tokens": reply.tokens,
            "output_tokens_details": {"reasoning_tokens": reply.thought_tokens},
            "total_tokens": prompt + reply.tokens,
        },
    }


def _status(reply: Reply) -> str:
    return "incomplete" if reply.finish_reason == "length" else "completed"


def _whole(reply: Reply) -> list[Part]:
    """The parts of a reply that has ended, each in one piece."""
    made: list[Part] = []
    if reply.thought:
        made.append(Reasoning(reply.thought))
    if reply.text or not reply.calls:
        made.append(Content(reply.text))
    for index, call in enumerate(reply.calls):
        made += [CallStart(index, call.id, call.name), CallArguments(index, call.arguments)]
    return made


def _new_item(part: Part) -> dict[str, Any]:
    match part:
        case CallStart():
            return {
                "id": f"fc_{secrets.token_hex(12)}",
                "type": "function_call",
                "status": "in_progress",
                "call_id": part.id,
                "name": part.name,
                "arguments": "",
            }
        case Reasoning():
            content: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            item = {"id": f"rs_{secrets.token_hex(12)}", "type": "reasoning", "summary": []}
            return {**item, "status": "in_progress", "content": [content]}
    content = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    item = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
    return {**item, "status": "in_progress", "content": [content]}


def _frozen(event: dict[str, Any]) -> dict[str, Any]:
    """A copy that later parts do not change."""
    item = event.get("item")
    if item is None:
        return event
    content = [dict(part) for part in item.get("content", [])]
    added = {**item, "content": []} if content else dict(item)
    return {**event, "item": added}
