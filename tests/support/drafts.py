"""Plain decoding, decoding with prompt lookup, and drafters that no text would give."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from pippin.runtime.sampling import Sampler, SamplingParams
from pippin.runtime.speculation import PromptLookup

ENDLESS = 1 << 20  # tokens of a reply


class Drafter:
    """In the place of `Repeats`: drafts `right` tokens of `reply`, then wrong ones, always."""

    def __init__(self, reply: Sequence[int], right: int, vocab_size: int):
        self._reply, self._right, self._vocab_size = reply, right, vocab_size
        self._count = 0

    def append(self, token: int) -> None:
        self._count += 1

    def draft(self, longest: int) -> list[int]:
        """As many tokens as asked for, while `reply` lasts."""
        following = self._reply[self._count : self._count + max(longest, 0)]
        return [
            token if index < self._right else (token + 1) % self._vocab_size
            for index, token in enumerate(following)
        ]


def plain(
    engine: Any, prompt: list[int], params: SamplingParams, count: int
) -> tuple[list[int], Any]:
    """`count` tokens by the session's own decoding, and the session."""
    session = engine.open()
    logits = session.prefill(prompt)
    sampler = Sampler(params, engine.info.vocab_size, engine.xp, prompt)
    steps = session.decode(logits, sampler)
    tokens = list(islice(steps, count))
    steps.close()
    return tokens, session


def speculated(
    engine: Any,
    prompt: list[int],
    params: SamplingParams,
    count: int,
    longest: int = 10,
    drafter: Drafter | None = None,
) -> tuple[list[int], Any, PromptLookup]:
    """The same by prompt lookup, with drafts of `drafter` if there is one."""
    session = engine.open()
    logits = session.prefill(prompt)
    lookup = PromptLookup(prompt, longest, ENDLESS)
    lookup._text = drafter or lookup._text
    sampler = Sampler(params, engine.info.vocab_size, engine.xp, prompt)
    steps = lookup.decode(session, logits, sampler)
    tokens = list(islice(steps, count))
    steps.close()
    return tokens, session, lookup
