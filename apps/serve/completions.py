"""POST /v1/completions: plain text continued, as OpenAI's older interface does."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import InputError
from .chat_completions import DONE, failed, fingerprint
from .chat_request import HARMLESS, read_stream_options
from .content import Reply
from .fields import Fields
from .parsers import PlainParser
from .prompts import MAX_COUNT, make_ask, read_sampling
from .run import Ask, TokenLogprob
from .service import Service, json_response, parts
from .sse import data
from .ticket import Ticket

MAX_PROMPTS = 64
_FINISH = {"stop": "stop", "stop_string": "stop", "length": "length"}

Prompt = str | list[int]


async def completions(service: Service, request: Request, fields: Fields) -> Response:
    """One reply or several to each prompt, whole or as a stream of chunks."""
    name = fields.text("model", required=True)
    service.check_model(name)
    prompts = _read_prompts(fields)
    given = read_sampling(fields)
    longest = fields.integer("max_tokens", 1, 2**31)
    if longest is not None:
        given["max_tokens"] = longest
    count = fields.integer("n", 1, MAX_COUNT) or 1
    top = fields.integer("logprobs", 0, 20)
    stream = fields.flag("stream")
    include_usage = read_stream_options(fields, stream)
    fields.refuse("best_of", count)
    fields.refuse("echo", False)
    fields.refuse("suffix", "")
    fields.harmless(HARMLESS)
    fields.done()

    def asks() -> list[Ask]:
        return [_ask(service, prompt, given, count, top) for prompt in prompts]

    made = await service.in_worker(asks)
    ticket = service.scheduler.submit(*made)
    replies = [Reply(PlainParser()) for ask in made for _ in range(ask.count)]
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": fingerprint(service),
    }
    if stream:
        events = _events(service, ticket, replies, head, made, include_usage)
        return service.stream(request, ticket, events, failed)
    await service.collect(request, ticket, replies)
    choices = [
        _choice(service, index, reply.text, reply.logprobs, top, reply.finish_reason, 0)
        for index, reply in enumerate(replies)
    ]
    return json_response({**head, "choices": choices, "usage": _usage(made, replies)})


def _read_prompts(fields: Fields) -> list[Prompt]:
    """A text, token ids, or a list of either."""
    value = fields.take("prompt", required=True)
    if isinstance(value, str) or (value and _is_ids(value)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise fields.bad("prompt", "expected a string, token ids, or a list of either")
    if len(value) > MAX_PROMPTS:
        raise fields.bad("prompt", f"has {len(value)} prompts, at most {MAX_PROMPTS} are taken")
    for prompt in value:
        if not (isinstance(prompt, str) or _is_ids(prompt)) or not prompt:
            raise fields.bad("prompt", "has one that is empty, or no string and no token ids")
    return value


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _ask(
    service: Service, prompt: Prompt, given: dict[str, Any], count: int, top: int | None
) -> Ask:
    generator = service.model.generator
    try:
        tokens = generator.encode(prompt)
    except OverflowError as error:
        raise InputError("prompt: a token id is too large") from error
    capacity = service.scheduler.capacity
    return make_ask(service.model, capacity, tokens, given, count=count, top_logprobs=top)


async def _events(
    service: Service,
    ticket: Ticket,
    replies: list[Reply],
    head: dict[str, Any],
    asks: list[Ask],
    include_usage: bool,
) -> AsyncIterator[bytes]:
    if include_usage:
        head = {**head, "usage": None}
    offsets = [0] * len(replies)
    top = asks[0].top_logprobs
    async for piece, reply, _ in parts(ticket, replies):
        choice = _choice(
            service,
            piece.index,
            piece.text,
            piece.logprobs,
            top,
            reply.finish_reason,
            offsets[piece.index],
        )
        offsets[piece.index] += len(piece.text)
        yield data({**head, "choices": [choice]})
    if include_usage:
        yield data({**head, "choices": [], "usage": _usage(asks, replies)})
    yield DONE


def _choice(
    service: Service,
    index: int,
    text: str,
    entries: Sequence[TokenLogprob],
    top: int | None,
    finish: str | None,
    offset: int,
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None if top is None else _logprobs(service, entries, offset),
        "finish_reason": _FINISH.get(finish) if finish else None,
    }


def _logprobs(service: Service, entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    name = service.model.generator.tokenizer.token_text
    texts = [name(entry.token) for entry in entries]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(entry.logprob, -9999.0) for entry in entries],
        "top_logprobs": [
            {name(token): max(value, -9999.0) for token, value in entry.top} for entry in entries
        ],
        "text_offset": offsets,
    }


def _usage(asks: list[Ask], replies: list[Reply]) -> dict[str, Any]:
    prompt = sum(len(ask.tokens) for ask in asks)
    written = sum(reply.tokens for reply in replies)
    firsts, place = [], 0
    for ask in asks:
        firsts.append(replies[place].cached)
        place += ask.count
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(firsts)},
    }
