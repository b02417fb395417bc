"""POST /v1/chat/completions, as OpenAI's clients know it."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..reasoning import Reasoning
from ..tools import CallArguments, CallStart, Content
from .chat_request import read_chat
from .content import Part, Reply
from .errors import ApiError
from .fields import Fields
from .prompts import token_entry
from .run import TokenLogprob
from .service import Service, json_response, parts
from .sse import data
from .structure import Prepared, prepare
from .ticket import Ticket

_FINISH = {"stop": "stop", "stop_string": "stop", "length": "length", "tool_calls": "tool_calls"}
DONE = b"data: [DONE]\n\n"


async def chat_completions(service: Service, request: Request, fields: Fields) -> Response:
    """One reply or several to a conversation, whole or as a stream of chunks."""
    asked = read_chat(fields)
    service.check_model(asked.model)
    prepared = await service.in_worker(prepare, service, asked)
    ticket = service.scheduler.submit(prepared.ask)
    replies = prepared.new_replies()
    head = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": asked.model,
        "system_fingerprint": fingerprint(service),
    }
    if asked.stream:
        events = _events(service, ticket, replies, head, prepared)
        return service.stream(request, ticket, events, failed)
    await service.collect(request, ticket, replies)
    return json_response(
        {
            **head,
            "object": "chat.completion",
            "choices": [
                {
                    "index": index,
                    "message": _message(reply),
                    "logprobs": logprobs(service, reply.logprobs, prepared),
                    "finish_reason": _FINISH[reply.finish_reason],
                }
                for index, reply in enumerate(replies)
            ],
            "usage": usage(prepared, replies),
        }
    )


def failed(error: ApiError) -> bytes:
    """The last events of a stream that cannot go on."""
    return data(error.as_openai()) + DONE


def fingerprint(service: Service) -> str:
    """Equal ones say the same for the same seed."""
    return f"fp_{service.model.generator.engine.info.fingerprint[:40]}"


async def _events(
    service: Service,
    ticket: Ticket,
    replies: list[Reply],
    head: dict[str, Any],
    prepared: Prepared,
) -> AsyncIterator[bytes]:
    head = {**head, "object": "chat.completion.chunk"}
    include_usage = prepared.asked.include_usage
    if include_usage:
        head["usage"] = None

    def chunk(
        index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return data({**head, "choices": [choice]})

    for index in range(len(replies)):
        yield chunk(index, {"role": "assistant", "content": ""})
    async for piece, reply, new in parts(ticket, replies):
        entries = logprobs(service, piece.logprobs, prepared)
        out = [chunk(piece.index, {}, entries)] if piece.logprobs and not new else []
        for part in new:
            out.append(chunk(piece.index, _delta(part), entries))
            entries = None  # with the first part of the piece, once
        if reply.finish_reason is not None:
            out.append(chunk(piece.index, {}, finish=_FINISH[reply.finish_reason]))
        if out:
            yield b"".join(out)
    if include_usage:
        yield data({**head, "choices": [], "usage": usage(prepared, replies)})
    yield DONE


def _delta(part: Part) -> dict[str, Any]:
    match part:
        case Content():
            return {"content": part.text}
        case Reasoning():
            return {"reasoning_content": part.text}
        case CallStart():
            function = {"name": part.name, "arguments": ""}
            call = {"index": part.index, "id": part.id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments():
            call = {"index": part.index, "function": {"arguments": part.text}}
            return {"tool_calls": [call]}


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text if reply.text or not reply.calls else None,
        "refusal": None,
    }
    if reply.thought:
        message["reasoning_content"] = reply.thought
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    return message


def logprobs(
    service: Service, entries: Sequence[TokenLogprob], prepared: Prepared
) -> dict[str, Any] | None:
    """The tokens of a message with their probabilities; None when they were not asked for."""
    if prepared.ask.top_logprobs is None:
        return None
    tokenizer = service.model.generator.tokenizer
    return {"content": [token_entry(tokenizer, entry) for entry in entries], "refusal": None}


def usage(prepared: Prepared, replies: list[Reply]) -> dict[str, Any]:
    """Tokens of the prompt, counted once, and of all replies."""
    prompt = len(prepared.ask.tokens)
    written = sum(reply.tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": replies[0].cached},
        "completion_tokens_details": {
            "reasoning_tokens": sum(reply.thought_tokens for reply in replies)
        },
    }
