"""What the model attended to when it chose a token of its last reply.

The query is the token before the chosen one: from its logits the choice was made. The model reads
the conversation up to there once more, without the KV cache.
"""

from dataclasses import dataclass

from ...runtime.engine import Progress
from ...runtime.errors import InputError
from ...runtime.tokenizer import Tokenizer
from ..insight.explanation import (
    DEFAULT_TOP,
    Likely,
    StepReport,
    TokenText,
    choose_view,
    find_token,
    likeliest,
    report_step,
    token_texts,
    traced_apart,
)
from ..insight.heads import token_spans
from .session import ChatSession

_CANDIDATES = 5


@dataclass(frozen=True)
class Why:
    """One token of the last reply."""

    chosen: TokenText  # its index counts the conversation's tokens
    place: int  # of it in the reply, from 0
    step: StepReport  # of the token before
    candidates: tuple[Likely, ...]  # the likeliest, and the chosen one where it is none of them
    other_graph: bool  # the reply was made by another graph than attention is shown of


def why(session: ChatSession, wanted: str | None = None, progress: Progress | None = None) -> Why:
    """The attention behind the token of the last reply that `wanted` means, and its rivals.

    `wanted` is a number of a token of the reply, from its end when negative, or a piece of the
    reply's text: the token with which its last occurrence begins; None is the reply's last word.
    Raises InputError when there is no such thing, and for a model whose attention cannot be shown.
    """
    exchange = session.last_exchange()
    generator = session.model.generator
    place = _find(generator.tokenizer, exchange.tokens, wanted)
    read = [*exchange.prompt, *exchange.tokens[:place]]
    texts = token_texts(generator.tokenizer, [*read, exchange.tokens[place]])
    view = choose_view(generator, read, len(read) - 1, progress=progress)
    return Why(
        chosen=texts[-1],
        place=place,
        step=report_step(texts, view, DEFAULT_TOP),
        candidates=likeliest(generator.tokenizer, view.logits, texts[-1].id, _CANDIDATES),
        other_graph=traced_apart(generator),
    )


def _find(tokenizer: Tokenizer, reply: tuple[int, ...], wanted: str | None) -> int:
    if not reply:
        raise InputError("the last reply has no text; /regen asks for another one")
    text = tokenizer.decode(reply)
    if wanted is None:
        words = text.split()
        words = [word for word in words if any(map(str.isalnum, word))] or words
        if not words:
            return len(reply) - 1
        wanted = words[-1]
    else:
        end = find_token(tokenizer, reply, wanted)  # which says what is wrong
        if wanted.lstrip("+-").isdecimal() or wanted not in text:
            return end
    begin = text.rfind(wanted)
    return next(i for i, (_, end) in enumerate(token_spans(tokenizer, reply)) if end > begin)
