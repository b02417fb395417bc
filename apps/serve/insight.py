"""POST /pippin/explain: what the model read when it chose the tokens of a reply.

The token before a chosen one is the query: from its logits the choice was made.

Shapes: S tokens · H query heads · n queries · k keys that are told of a query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from .chat_request import ChatRequest, read_messages, read_template
from .errors import ApiError
from .fields import Fields
from .service import Service
from .sse import encode
from .structure import render
from .work_queue import Check

if TYPE_CHECKING:
    from ...runtime.generator import Generator
    from ..insight.explanation import View
    from ..insight.trace import LayerTrace, Trace

MAX_REPLY = 2048  # tokens of a reply that are explained; of a longer one the last
_TOP = 8  # keys of a query
_MOST_TOP = 32
_CANDIDATES = 8
_MOST_LAYERS = 1 << 12
_DIGITS = 5


@dataclass(frozen=True)
class _Asked:
    chat: ChatRequest
    reply: dict[str, Any]  # the last message
    layer: int | None
    token: int | None  # of the reply
    top: int


async def explain(service: Service, request: Request, fields: Fields) -> Response:
    """The keys of the reply's tokens in one layer, all heads; of one token also its rivals."""
    asked = _read(fields)
    service.check_model(asked.chat.model)
    with service.insight.place():
        body = await service.insight.run(request, lambda check: _explain(service, asked, check))
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


def _read(fields: Fields) -> _Asked:
    model = fields.text("model", required=True)
    *before, reply = read_messages(fields)
    if reply["role"] != "assistant" or "tool_calls" in reply or not before:
        raise fields.bad("messages", "must end with the reply of the assistant, as text")
    asked = _Asked(
        ChatRequest(model, before, {}, template=read_template(fields)),
        reply,
        fields.integer("layer", 0, _MOST_LAYERS),
        fields.integer("token", 0, 2**31),
        fields.integer("top", 1, _MOST_TOP) or _TOP,
    )
    fields.done()
    return asked


def _explain(service: Service, asked: _Asked, check: Check) -> bytes:
    from ..insight.explanation import CAVEAT, choose_view, token_texts, traced_apart

    generator = service.model.generator
    tokens, start = _tokens(service, asked)
    if asked.token is not None:
        tokens = tokens[: start + asked.token + 1]
    first = max(start, len(tokens) - (MAX_REPLY if asked.token is None else 1))
    read = _Reader(service, check)
    texts = token_texts(generator.tokenizer, tokens)
    shown = _last_word([text.text for text in texts], first)
    count = len(read(generator, tokens[:1]).layers)
    view = choose_view(generator, tokens[:-1], shown - 1, asked.layer, read=read)
    check()
    document = {
        "model": asked.chat.model,
        "backend": generator.engine.info.backend,
        "caveat": CAVEAT,
        "other_graph": traced_apart(generator),
        "tokens": [text.text for text in texts],
        "reply": start,
        "layers": count,
        "heads": view.trace.spec.heads,
        "layer": view.trace.layer,
        "head": view.head,
        "why": view.why,
        "token": shown,
        "first": first,
    } | _keys(view.trace, range(first - 1, len(tokens) - 1), asked.top)
    if asked.token is not None:
        document["candidates"] = _candidates(generator, view, tokens[-1])
    return encode(document)


def _tokens(service: Service, asked: _Asked) -> tuple[list[int], int]:
    """The conversation's tokens, and where the reply begins.

    The reply is tokenized anew: where a model wrote a text in an unusual way, tokens differ.
    """
    from ..reasoning import find_marks

    generator = service.model.generator
    prompt = render(generator, asked.chat)
    text, thought = asked.reply["content"], asked.reply.get("reasoning_content")
    marks = find_marks(generator.tokenizer.chat_template)
    if thought and marks:
        opened = prompt.text.rstrip().endswith(marks.begin)
        header = marks.headers[0] if marks.headers else "\n\n"
        text = f"{'' if opened else marks.begin}\n{thought}\n{marks.end}{header}{text}"
    reply = generator.tokenizer.encode(text, add_special_tokens=False)
    if not reply:
        raise ApiError(400, "messages: the reply is empty; there is nothing to explain")
    if asked.token is not None and asked.token >= len(reply):
        raise ApiError(
            400, f"token: is {asked.token}, the reply has {len(reply)} tokens", param="token"
        )
    tokens = [*prompt.tokens, *reply]
    if len(tokens) > (most := service.scheduler.capacity):
        raise ApiError(
            400,
            f"the conversation has {len(tokens)} tokens, and the server's context {most}",
            code="context_length_exceeded",
        )
    return tokens, len(prompt.tokens)


class _Reader:
    """Traces beside the replies under way.

    On onnxruntime the trace has a session of its own, in this thread. MLX computes in the engine's
    thread alone: there the replies take a step after each chunk.
    """

    def __init__(self, service: Service, check: Check) -> None:
        self._scheduler, self._check = service.scheduler, check

    def __call__(
        self,
        generator: "Generator",
        tokens: Sequence[int],
        layers: Sequence[int] | None = None,
        progress: Any = None,
    ) -> "Trace":
        from ..insight.trace import trace

        if generator.engine.info.backend != "mlx":
            return trace(generator, tokens, layers, lambda done, total: self._check())

        def between(done: int, total: int) -> None:
            self._check()
            self._scheduler.go_on()

        return self._scheduler.call(lambda: trace(generator, tokens, layers, between)).result()


def _last_word(texts: Sequence[str], first: int) -> int:
    """The last token from `first` on that has a letter or digit, or else the last one."""
    words = (n for n in reversed(range(first, len(texts))) if any(map(str.isalnum, texts[n])))
    return next(words, len(texts) - 1)


def _keys(layer: "LayerTrace", queries: range, top: int) -> dict[str, Any]:
    """Keys and weights [H + 1, n, k], the last row the mean of all heads; shares [H + 1, n]."""
    from ..insight.attention import blocks, largest, with_mean

    heads = layer.spec.heads
    keys: list[list[Any]] = [[] for _ in range(heads + 1)]
    weights: list[list[Any]] = [[] for _ in range(heads + 1)]
    first: list[list[float]] = [[] for _ in range(heads + 1)]
    sinks: list[list[float]] = [[] for _ in range(heads + 1)]
    for block in blocks(layer, queries):
        found = with_mean(block.weights)
        ids, values = largest(found, top)
        taken = with_mean(block.sinks)
        for head in range(heads + 1):
            for row, its in zip(ids[head], values[head], strict=True):
                seen = [(k, w) for k, w in zip(row, its, strict=True) if w > 0]
                keys[head].append([block.first + int(key) for key, _ in seen])
                weights[head].append([round(float(weight), _DIGITS) for _, weight in seen])
            idle = found[head, :, 0] if block.first == 0 else np.zeros(len(block.queries))
            first[head] += [round(float(share), _DIGITS) for share in idle]
            sinks[head] += [round(float(share), _DIGITS) for share in taken[head]]
    sunk = None if layer.sinks is None else sinks
    return {"keys": keys, "weights": weights, "first_token": first, "sinks": sunk}


def _candidates(generator: "Generator", view: "View", chosen: int) -> list[dict[str, Any]]:
    from ..insight.explanation import likeliest

    return [
        {
            "rank": one.rank,
            "text": one.text,
            "probability": one.probability,
            "chosen": one.token == chosen,
        }
        for one in likeliest(generator.tokenizer, view.logits, chosen, _CANDIDATES)
    ]
