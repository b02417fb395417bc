"""The places of a batch, and what idle ones still know.

A slot keeps its tokens and their keys and values when its reply has ended. The next request takes
the slot that shares the longest beginning with it: a system prompt, the turns before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...runtime.engine import Session
from ...runtime.prompt_cache import common_prefix
from .run import Run

_WORTH_A_COPY = 16  # tokens; a shorter shared beginning is computed again


@dataclass
class Slot:
    """A session of the batch, the tokens in its KV cache, and who uses it."""

    session: Session
    tokens: list[int] = field(default_factory=list)
    run: Run | None = None
    used: int = 0  # the larger, the later it was last used

    def append(self, tokens: Sequence[int]) -> None:
        """Note what the session has taken in."""
        self.tokens.extend(tokens)


class SlotPool:
    """The slots of `batch`; only the engine's thread uses it."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.slots: list[Slot] = []
        self._clock = 0

    @property
    def busy(self) -> list[Slot]:
        """Those that a reply uses."""
        return [slot for slot in self.slots if slot.run is not None]

    @property
    def free(self) -> int:
        """How many replies could begin now."""
        return self.batch.slots - len(self.busy)

    @property
    def tokens(self) -> int:
        """Tokens in all KV caches."""
        return sum(len(slot.tokens) for slot in self.slots)

    def about_to_share(self, run: Run) -> bool:
        """Whether a prompt being read will soon share more with `run` than any slot does now."""
        now = max((common_prefix(slot.tokens, run.prompt) for slot in self.slots), default=0)
        soon = max(
            (
                common_prefix(slot.run.prompt, run.prompt)
                for slot in self.busy
                if len(slot.tokens) < len(slot.run.prompt)
            ),
            default=0,
        )
        return soon > now and soon >= _WORTH_A_COPY

    def take(self, run: Run) -> Slot:
        """A slot for `run`, holding as much of its prompt as is known; one must be free.

        At least one token is left to be computed, since its logits are needed.
        """
        slot, shared = self._place(run.prompt)
        shared = min(shared, len(run.prompt) - 1)
        slot.session.rollback(shared)
        del slot.tokens[shared:]
        slot.run, run.cached = run, shared
        self._touch(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Its reply has ended; the slot keeps what it knows."""
        slot.run = None
        self._touch(slot)

    def discard(self, slot: Slot) -> None:
        """Forget a slot whose state is not certain after an error."""
        slot.run = None
        self.slots.remove(slot)
        self.batch.close(slot.session)

    def _place(self, prompt: list[int]) -> tuple[Slot, int]:
        idle = [slot for slot in self.slots if slot.run is None]
        best, shared = self._best(prompt)
        if best is not None and best.run is None:
            rest = len(best.tokens) - shared  # what taking it would throw away
            if shared and (rest <= shared or (len(idle) == 1 and not self._unopened)):
                return best, shared
        if best is not None and shared >= _WORTH_A_COPY:
            return self._copy(best, shared)
        if self._unopened:
            return self._open(self.batch.open()), 0
        return min(idle, key=lambda slot: slot.used), 0

    def _best(self, prompt: list[int]) -> tuple[Slot | None, int]:
        """The slot that shares most with `prompt`: of equal ones an idle one, then the shortest."""
        ranked = [
            (common_prefix(slot.tokens, prompt), slot.run is None, -len(slot.tokens), index)
            for index, slot in enumerate(self.slots)
        ]
        if not ranked:
            return None, 0
        shared, _, _, index = max(ranked)
        return self.slots[index], shared

    def _copy(self, slot: Slot, shared: int) -> tuple[Slot, int]:
        """Another slot that starts as `slot` did."""
        if not self._unopened:
            idle = [other for other in self.slots if other.run is None and other is not slot]
            self.discard(min(idle, key=lambda other: other.used))
        copy = self._open(slot.session.fork())
        copy.tokens = list(slot.tokens)
        return copy, shared

    def _open(self, session: Session) -> Slot:
        slot = Slot(session)
        self.slots.append(slot)
        return slot

    @property
    def _unopened(self) -> int:
        return self.batch.slots - len(self.slots)

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used = self._clock
