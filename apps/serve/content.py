"""What a reply consists of, as it comes: text, thinking, calls of functions."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..reasoning import Reasoning
from ..tools import CallArguments, CallStart, Content
from .run import Piece, TokenLogprob

if TYPE_CHECKING:
    from .parsers import Parser


Part = Content | Reasoning | CallStart | CallArguments


@dataclass
class Call:
    """A call of a function, as far as it is known."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Reply:
    """One reply, put together from its pieces."""

    parser: "Parser"
    parallel: bool = True  # False: the reply ends with its first call
    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tokens: int = 0
    thought_tokens: int = 0  # of them, those of thinking
    finish_reason: str | None = None  # the scheduler's, or "tool_calls"
    stop: str | None = None
    cached: int = 0  # tokens of the prompt that were known before

    def take(self, piece: Piece) -> list[Part]:
        """Add a piece; the parts that are new with it."""
        self.tokens += len(piece.tokens)
        self.cached = piece.cached
        self.logprobs += piece.logprobs
        parts = self.parser.feed(piece.text)
        if piece.finish_reason is not None:
            parts += self.parser.finish()
        if parts and all(isinstance(part, Reasoning) for part in parts):
            self.thought_tokens += len(piece.tokens)
        kept = []
        for part in parts:
            if isinstance(part, CallStart) and self.calls and not self.parallel:
                self.finish_reason = "tool_calls"
                return kept
            self._add(part)
            kept.append(part)
        if piece.finish_reason is not None:
            called = self.calls and piece.finish_reason == "stop"
            called = called and all(is_json(call.arguments) for call in self.calls)
            self.finish_reason = "tool_calls" if called else piece.finish_reason
            self.stop = piece.stop
        return kept

    def _add(self, part: Part) -> None:
        match part:
            case Content():
                self.text += part.text
            case Reasoning():
                self.thought += part.text
            case CallStart():
                self.calls.append(Call(part.id, part.name))
            case CallArguments():
                self.calls[part.index].arguments += part.text


def is_json(text: str) -> bool:
    """Whether it is; the arguments of a call that is streamed may break off."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
