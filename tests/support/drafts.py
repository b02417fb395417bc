"""Plain decoding, decoding with drafts, and drafters that no text would give."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from pippin.runtime.prompt_lookup import PromptLookup
from pippin.runtime.sampling import Sampler, SamplingParams
from pippin.runtime.speculation import Cost, Drafter, Speculation

ENDLESS = 1 << 20  # tokens of a reply


class Scripted:
    """A `Drafter` that drafts `right` tokens of `reply`, then wrong ones, always."""

    def __init__(self, reply: Sequence[int], right: int, vocab_size: int, longest: int = 7):
        self._longest = longest
        self._reply, self._right, self._vocab_size = reply, right, vocab_size
        self._count = 0

    def append(self, token: int) -> None:
        self._count += 1

    def draft(self, longest: int, cost: Cost) -> list[int]:
        """As many tokens as asked for, while `reply` lasts."""
        longest = min(longest, self._longest)
        following = self._reply[self._count : self._count + longest]
        return [
            token if index < self._right else (token + 1) % self._vocab_size
            for index, token in enumerate(following)
        ]

    def close(self) -> None:
        pass


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
) -> tuple[list[int], Any, Speculation]:
    """The same with drafts of `drafter`, or else by prompt lookup."""
    session = engine.open()
    logits = session.prefill(prompt)
    speculation = Speculation(engine.info, [drafter or PromptLookup(prompt, longest)], ENDLESS)
    sampler = Sampler(params, engine.info.vocab_size, engine.xp, prompt)
    steps = speculation.decode(session, logits, sampler)
    tokens = list(islice(steps, count))
    steps.close()
    return tokens, session, speculation
