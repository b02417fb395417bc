"""Continuous batching: one thread that runs the engine, and a queue in front of it.

Requests join and leave the running batch between two steps. Each round of the thread admits what
has waited longest, reads one chunk of a prompt (or several prompts that fit into one), then takes
one step for every reply under way: a long prompt never holds up the others for more than one chunk,
and no prompt the next one. What a reply says does not depend on its company: its tokens are drawn
by its own seed.
"""

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...runtime.errors import PippinError
from .errors import ApiError, QueueFull, shutting_down
from .metrics import Metrics
from .run import Ask, Piece, Run
from .slots import Slot, SlotPool
from .ticket import Ticket

if TYPE_CHECKING:
    from ...runtime.engine import Engine
    from ...runtime.tokenizer import Tokenizer

Delivery = tuple[Ticket, Piece | Exception]


class Scheduler:
    """Runs `engine` for all requests; `submit`, `cancel` and `call` are for the event loop."""

    def __init__(
        self,
        engine: "Engine",
        tokenizer: "Tokenizer",
        *,
        slots: int,
        capacity: int,
        queue: int,
        chunk: int,
        metrics: Metrics | None = None,
    ) -> None:
        """`slots` replies at once, each with its prompt within `capacity` tokens; `queue` more may
        wait; prompts are read `chunk` tokens at a time.

        Raises InputError when the slots do not fit into memory.
        """
        self.capacity, self.metrics = capacity, metrics or Metrics()
        self._engine, self._tokenizer = engine, tokenizer
        self._queue_size, self._chunk = queue, chunk
        self._pool = SlotPool(engine.open_batch(slots, capacity))
        self._lock = threading.Condition()
        self._inbox: deque[Run] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future]] = deque()
        self._waiting: deque[Run] = deque()  # admitted by the queue, not yet by a slot
        self._reading: deque[Slot] = deque()  # slots whose prompts are being read, next first
        self._writing: list[Slot] = []  # slots whose replies are being written
        self._queued = 0
        self._ending = False
        self._seconds = 1.0  # that a reply takes, of late
        self._deliveries: list[Delivery] = []
        self._thread = threading.Thread(target=self._work, name="pippin-engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, *asks: Ask) -> Ticket:
        """Queue a request; its replies are numbered through all `asks`.

        Raises QueueFull, and ApiError when the server ends or never takes so many replies.
        """
        wanted = [(ask, sequence) for ask in asks for sequence in range(ask.count)]
        most = self._queue_size + self._pool.batch.slots
        if len(wanted) > most:
            raise ApiError(
                400,
                f"the request asks for {len(wanted)} replies, and this server takes {most} at "
                "once; ask for fewer, or start it with a larger --queue",
                code="too_many_replies",
            )
        ticket = Ticket(len(wanted))
        runs = [
            Run(ask, sequence, index, ticket, self._tokenizer)
            for index, (ask, sequence) in enumerate(wanted)
        ]
        with self._lock:
            if self._ending:
                raise shutting_down()
            if self._queued + len(runs) > self._queue_size + self._pool.free:
                self.metrics.rejected += 1
                raise QueueFull(self._queued, self._retry_after())
            self._queued += len(runs)
            self._inbox.extend(runs)
            self._lock.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for these replies any more: their slots are free after the current step."""
        ticket.cancelled = True
        with self._lock:
            self._lock.notify()

    def call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Run `function` in the engine's thread between two steps."""
        future: Future[Any] = Future()
        with self._lock:
            if self._ending:
                raise shutting_down()
            self._calls.append((function, future))
            self._lock.notify()
        return future

    def go_on(self) -> None:
        """Take a step for every reply under way; for a function given to `call` that takes long.

        Raises ApiError when the server ends.
        """
        with self._lock:
            self._waiting.extend(self._inbox)
            self._inbox.clear()
            if self._ending:
                raise shutting_down()
        self._turn()

    def stop(self) -> None:
        """End: replies under way get an error, and the thread is gone when this returns."""
        with self._lock:
            self._ending = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    def state(self) -> dict[str, int]:
        """What is going on, for health and metrics."""
        return {
            "slots": self._pool.batch.slots,
            "busy": len(self._pool.busy),
            "queued": self._queued,
            "kv_tokens": self._pool.tokens,
            "kv_bytes": self._engine.memory_needed(1) * self._pool.tokens,
        }

    def _retry_after(self) -> int:
        rounds = (self._queued + 1) / self._pool.batch.slots
        return min(max(math.ceil(rounds * self._seconds), 1), 60)

    def _work(self) -> None:
        try:
            while self._wait():
                self._round()
        except BaseException:
            traceback.print_exc()  # a fault of ours; health says that the thread is gone
        finally:
            self._end()

    def _wait(self) -> bool:
        """Wait for something to do; False when it is time to end."""
        with self._lock:
            while not (self._ending or self._inbox or self._calls or self._active):
                self._lock.wait()
            self._waiting.extend(self._inbox)
            self._inbox.clear()
            return not self._ending

    @property
    def _active(self) -> bool:
        return bool(self._waiting or self._reading or self._writing)

    def _round(self) -> None:
        self._run_call()
        self._turn()

    def _turn(self) -> None:
        self._drop_cancelled()
        self._admit()
        self._read()
        if self._writing:
            self._step()
        self._deliver()

    def _drop_cancelled(self) -> None:
        for slot in [slot for slot in self._pool.busy if slot.run.ticket.cancelled]:
            self.metrics.count("cancelled", slot.run)
            self._leave(slot)
        dropped = [run for run in self._waiting if run.ticket.cancelled]
        for run in dropped:
            self._waiting.remove(run)
            self.metrics.count("cancelled", run)
        self._queued_less(len(dropped))

    def _admit(self) -> None:
        """Give free slots to those that have waited longest.

        One whose beginning another prompt is about to compute waits for that; nobody waits for it.
        """
        passed: list[Run] = []
        while self._waiting and self._pool.free:
            run = self._waiting.popleft()
            if self._pool.about_to_share(run):
                passed.append(run)
                continue
            self._queued_less(1)
            try:
                run.begin(self._engine.info.vocab_size, self._engine.xp)
                self._reading.append(self._pool.take(run))
            except Exception as error:
                self._fail(run, error)
        self._waiting.extendleft(reversed(passed))

    def _run_call(self) -> None:
        with self._lock:
            function, future = self._calls.popleft() if self._calls else (None, None)
        if function is None or not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    def _read(self) -> None:
        """Read one chunk of the next prompt; of further ones what fits beside it whole."""
        room = self._chunk
        while self._reading:
            slot = self._reading[0]
            left = len(slot.run.prompt) - len(slot.tokens)
            if left > room and room < self._chunk:
                return
            self._reading.popleft()
            room -= min(left, room)
            self._read_chunk(slot)
            if room == 0:
                return

    def _read_chunk(self, slot: Slot) -> None:
        run = slot.run
        part = run.prompt[len(slot.tokens) : len(slot.tokens) + self._chunk]
        try:
            logits = slot.session.prefill(part)
            slot.append(part)
            self.metrics.prompt_tokens += len(part)
            if len(slot.tokens) < len(run.prompt):
                self._reading.append(slot)  # behind the others
                return
            self._take(slot, int(run.choose(logits)), logits)
        except Exception as error:
            self._drop(slot, error)
            return
        if slot.run is not None:
            self._writing.append(slot)

    def _step(self) -> None:
        """One token for every reply under way."""
        slots = list(self._writing)
        tokens = [slot.run.reply[-1] for slot in slots]
        started = time.perf_counter()
        try:
            logits = self._pool.batch.step([slot.session for slot in slots], tokens)
        except Exception as error:  # whose fault it was cannot be known
            for slot in slots:
                self._drop(slot, error)
            return
        for slot, token in zip(slots, tokens, strict=True):
            slot.append([token])
        # All are chosen before the first is read, so that a device gets them in one go.
        chosen = [self._choose(slot, row) for slot, row in zip(slots, logits, strict=True)]
        for slot, token, row in zip(slots, chosen, logits, strict=True):
            try:
                if isinstance(token, Exception):
                    raise token
                self._take(slot, int(token), row)
            except Exception as error:
                self._drop(slot, error)
        self.metrics.step(len(slots), time.perf_counter() - started)

    def _choose(self, slot: Slot, logits: Any) -> Any:
        try:
            return slot.run.choose(logits)
        except Exception as error:
            return error

    def _take(self, slot: Slot, token: int, logits: Any) -> None:
        run = slot.run
        piece = run.take(token, logits)
        if len(run.reply) == 1:
            run.first_token = time.perf_counter()
        if piece is not None:
            self._deliveries.append((run.ticket, piece))
        if run.finished:
            took = time.perf_counter() - run.admitted
            self._seconds += 0.2 * (took - self._seconds)
            self.metrics.count(piece.finish_reason, run)
            self._leave(slot)

    def _leave(self, slot: Slot) -> None:
        """The slot's reply has ended; what it holds may serve another."""
        self._forget(slot)
        self._pool.release(slot)

    def _drop(self, slot: Slot, error: Exception) -> None:
        """The slot's reply has failed, and what it holds is not to be trusted."""
        self._fail(slot.run, error)
        self._forget(slot)
        self._pool.discard(slot)

    def _forget(self, slot: Slot) -> None:
        if slot in self._writing:
            self._writing.remove(slot)
        if slot in self._reading:
            self._reading.remove(slot)

    def _fail(self, run: Run, error: Exception) -> None:
        """Tell the client, and end the request's other replies."""
        if not isinstance(error, PippinError):
            traceback.print_exception(error)
        self.metrics.count("error", run)
        run.ticket.cancelled = True
        self._deliveries.append((run.ticket, _as_api_error(error)))

    def _queued_less(self, count: int) -> None:
        with self._lock:
            self._queued -= count

    def _deliver(self) -> None:
        """Hand everything that is ready to the event loop in one go."""
        if not self._deliveries:
            return
        ready, self._deliveries = self._deliveries, []
        try:
            ready[0][0].loop.call_soon_threadsafe(_put_all, ready)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            return

    def _end(self) -> None:
        with self._lock:
            self._ending = True
            left = [*self._waiting, *self._inbox, *(slot.run for slot in self._pool.busy)]
            calls, self._calls = self._calls, deque()
        for ticket in {id(run.ticket): run.ticket for run in left}.values():
            self._deliveries.append((ticket, shutting_down()))
        self._deliver()
        for _, future in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(shutting_down())


def _put_all(deliveries: list[Delivery]) -> None:
    for ticket, item in deliveries:
        ticket.put(item)


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PippinError):
        return ApiError(500, f"the model failed: {error}", code="model_error")
    return ApiError(500, f"the server failed: unexpected {type(error).__name__}")
