"""What the batches of both engines share: who sits in which slot, and stepping one by one."""

from collections.abc import Callable, Sequence
from typing import Protocol

from .engine import Array, Engine, EngineInfo, Session, check_room, check_tokens
from .errors import InputError
from .memory import check_memory

_STRANGER = "the session is closed or belongs to another batch"


class Seated(Protocol):
    """A session that has a slot."""

    slot: int

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""


class Slots:
    """Which session has which slot; those of a step sit side by side, to be bound as one array."""

    def __init__(self, count: int) -> None:
        self._held: list[Seated | None] = [None] * count

    def seat(self, session: Seated) -> None:
        """Give `session` the first free slot. Raises InputError when all are taken."""
        if None not in self._held:
            raise _full(len(self._held))
        session.slot = self._held.index(None)
        self._held[session.slot] = session

    def leave(self, session: Seated) -> None:
        """Free the slot of `session`. Raises ValueError as `check` does."""
        self.check([session])
        self._held[session.slot] = None

    def check(self, sessions: Sequence[Seated]) -> None:
        """Raise ValueError for a session that has no slot here."""
        if any(session not in self._held for session in sessions):
            raise ValueError(_STRANGER)

    def gather(self, sessions: Sequence[Seated], swap: Callable[[int, int], None]) -> int:
        """Bring `sessions` into neighbouring slots, where that moves the fewest tokens; the first
        of these slots. `swap(a, b)` exchanges what two slots hold, while both still have their
        sessions.
        """
        taken = {session.slot for session in sessions}
        size, lowest = len(taken), min(taken)
        if max(taken) - lowest < size:
            return lowest
        firsts = range(len(self._held) - size + 1)
        first = min(firsts, key=lambda first: self._moved(taken, first))
        window = set(range(first, first + size))
        for here, there in zip(sorted(taken - window), sorted(window - taken), strict=True):
            swap(here, there)
            held = self._held
            held[here], held[there] = held[there], held[here]
            for slot in (here, there):
                if held[slot] is not None:
                    held[slot].slot = slot
        return first

    def length(self, slot: int) -> int:
        """Tokens in `slot`; 0 in a free one."""
        session = self._held[slot]
        return session.length if session else 0

    def _moved(self, taken: set[int], first: int) -> int:
        """Tokens that change places when the slots from `first` on are to hold those `taken`."""
        window = set(range(first, first + len(taken)))
        return sum(self.length(slot) for slot in taken ^ window)


class Closed:
    """Stands where the caches of a closed session were."""

    def __getattr__(self, name: str) -> None:
        raise ValueError("the session is closed; open another")


class SequentialBatch:
    """Fulfils `runtime.engine.Batch` with sessions that step one after the other."""

    def __init__(self, engine: Engine, slots: int, capacity: int) -> None:
        """Raises InputError as `check_batch` does."""
        check_batch(engine, slots, capacity)
        self.slots = slots
        self._engine, self._capacity = engine, capacity
        self._open: list[Session] = []

    def open(self) -> Session:
        return self._seat(lambda: self._engine.open(self._capacity))

    def _seat(self, make: Callable[[], Session]) -> Session:
        """A session that `make` gives; its forks take slots, too. Raises InputError."""
        if len(self._open) == self.slots:
            raise _full(self.slots)
        session = make()
        fork = session.fork
        session.fork = lambda: self._seat(fork)
        self._open.append(session)
        return session

    def step(self, sessions: Sequence[Session], tokens: Sequence[int]) -> Array:
        check_step(self._engine.info, sessions, tokens)
        if any(session not in self._open for session in sessions):
            raise ValueError(_STRANGER)
        rows = [session.step(token) for session, token in zip(sessions, tokens, strict=True)]
        return self._engine.xp.stack(rows)

    def close(self, session: Session) -> None:
        if session not in self._open:
            raise ValueError(_STRANGER)
        self._open.remove(session)
        del session.fork  # it refers to the session, whose memory would wait for the collector


def check_batch(engine: Engine, slots: int, capacity: int) -> None:
    """Raise InputError for a batch that cannot be or does not fit into memory."""
    if slots < 1 or capacity < 1:
        raise InputError(f"a batch of {slots} slots of {capacity} tokens; give at least 1 of each")
    check_room(0, capacity, engine.info.context)
    needed = slots * capacity * engine.info.kv_bytes_per_token
    check_memory(needed, f"a KV cache of {capacity} tokens in each of {slots} slots")


def check_step(info: EngineInfo, sessions: Sequence[Session], tokens: Sequence[int]) -> None:
    """Raise what `Batch.step` raises for all that can be told from its arguments."""
    if not sessions or len(sessions) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens were given for {len(sessions)} sessions")
    if len({id(session) for session in sessions}) < len(sessions):
        raise ValueError("a session is named twice in one step")
    check_tokens(tokens, info.vocab_size)
    for session in sessions:
        check_room(session.length, 1, info.context)


def _full(slots: int) -> InputError:
    return InputError(f"all {slots} slots of the batch are taken; close a session first")
