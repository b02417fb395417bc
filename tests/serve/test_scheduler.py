"""Continuous batching: what a reply says depends on nobody, and nobody waits for long."""

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.apps.models import Model
from pippin.apps.serve.errors import ApiError, QueueFull
from pippin.apps.serve.run import Ask, Piece
from pippin.apps.serve.scheduler import Scheduler
from pippin.apps.serve.ticket import Ticket
from pippin.runtime.errors import PippinError
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import VOCAB
from support.fake_engine import FakeEngine, hashed
from support.serving import fake_model, wait_until

GREEDY = {"max_tokens": 24, "ignore_eos": True, "seed": 0}


@contextmanager
def scheduling(model: Model, **options: Any) -> Iterator[Scheduler]:
    generator = model.generator
    chosen = {"slots": 3, "capacity": 512, "queue": 64, "chunk": 16, **options}
    scheduler = Scheduler(generator.engine, generator.tokenizer, **chosen)
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()


async def collect(ticket: Ticket) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    async for piece in ticket.pieces():
        found.setdefault(piece.index, []).append(piece)
    return found


def run_all(scheduler: Scheduler, asks: list[Ask]) -> list[dict[int, list[Piece]]]:
    """All asks at once."""

    async def run() -> list[dict[int, list[Piece]]]:
        return await asyncio.gather(*(collect(scheduler.submit(ask)) for ask in asks))

    return asyncio.run(run())


def said(pieces: list[Piece]) -> tuple[str, list[int], str]:
    text = "".join(piece.text for piece in pieces)
    return text, [t for piece in pieces for t in piece.tokens], pieces[-1].finish_reason


def alone(model: Model, ask: Ask, sequence: int = 0) -> tuple[str, list[int], str]:
    """What the generator says, whom the commands use."""
    result = model.generator.generate(ask.tokens, ask.params, sequence=sequence)
    return result.text, list(result.tokens), result.finish_reason


def ask(tokens: Any, count: int = 1, logprobs: int | None = None, **params: Any) -> Ask:
    """Greedy, of a known length, unless `params` say otherwise."""
    return Ask(list(tokens), SamplingParams(**{**GREEDY, **params}), count, logprobs)


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """Prompts that share beginnings, sampled in all ways."""
    shared = draw(st.sampled_from([b"", b"S" * 40, b"S" * 25 + b"T" * 30]))
    rest = draw(st.binary(min_size=1, max_size=50))
    params = {
        "temperature": draw(st.sampled_from([0.0, 0.7, 1.5])),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "max_tokens": draw(st.integers(1, 30)),
        "top_k": draw(st.sampled_from([0, 5])),
        "frequency_penalty": draw(st.sampled_from([0.0, 1.0])),
        "stop": draw(st.sampled_from([(), ("e",), ("ab", "\x00")])),
        "ignore_eos": draw(st.booleans()),
        "logit_bias": draw(st.sampled_from([{}, {101: 5.0}])),
    }
    return Ask(list(shared + rest), SamplingParams(**params), draw(st.integers(1, 3)))


@settings(max_examples=30, deadline=None)
@given(batch=st.lists(asks(), min_size=1, max_size=8), slots=st.integers(1, 4))
def test_a_reply_is_the_same_in_any_company(
    byte_tokenizer: Path, batch: list[Ask], slots: int
) -> None:
    model = fake_model(byte_tokenizer)
    with scheduling(model, slots=slots) as scheduler:
        for _ in range(2):  # the second time with what the first has left in the slots
            for one, found in zip(batch, run_all(scheduler, batch), strict=True):
                assert sorted(found) == list(range(one.count))
                for sequence, pieces in found.items():
                    assert said(pieces) == alone(model, one, sequence)
        assert scheduler.state() | {"kv_tokens": 0, "kv_bytes": 0} == {
            "slots": slots, "busy": 0, "queued": 0, "kv_tokens": 0, "kv_bytes": 0
        }  # fmt: skip


def test_replies_of_a_real_batch_are_those_alone(tiny: Model) -> None:
    batch = [
        ask(f"Prompt {i} ".encode() * (i + 1), temperature=t, seed=i, max_tokens=12)
        for i, t in enumerate([0.0, 0.0, 1.0, 0.8, 0.0])
    ]
    with scheduling(tiny) as scheduler:
        for one, found in zip(batch, run_all(scheduler, batch), strict=True):
            assert said(found[0]) == alone(tiny, one)


def test_what_was_computed_before_is_not_computed_again(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)
    engine = model.generator.engine
    with scheduling(model) as scheduler:
        (first,) = run_all(scheduler, [ask(b"x" * 100, max_tokens=10)])
        assert first[0][-1].cached == 0
        before = engine.prefilled
        turn = [*b"x" * 100, *(t for p in first[0] for t in p.tokens), *b" and on"]
        (second,) = run_all(scheduler, [ask(turn)])
        assert second[0][-1].cached == 109  # all but the last token, which nothing followed
        assert engine.prefilled - before == len(turn) - 109
        (again,) = run_all(scheduler, [ask(turn)])
        assert again[0][-1].cached == len(turn) - 1  # one is needed for its logits


def test_a_prefix_is_computed_once_for_all_that_come_together(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)
    shared = b"You are a helpful assistant. " * 8
    batch = [ask(shared + bytes([65 + i]) * 5) for i in range(6)]
    with scheduling(model, slots=6) as scheduler:
        found = run_all(scheduler, batch)
        assert [pieces[0][-1].cached for pieces in found] == [0] + [len(shared)] * 5
        assert model.generator.engine.prefilled == len(shared) + 6 * 5
        for one, pieces in zip(batch, found, strict=True):
            assert said(pieces[0]) == alone(model, one)


def test_replies_to_one_prompt_share_it(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)
    with scheduling(model, slots=4) as scheduler:
        (found,) = run_all(scheduler, [ask(b"p" * 90, count=4, temperature=1.0)])
        assert model.generator.engine.prefilled == 90 + 3
        assert len({said(pieces)[0] for pieces in found.values()}) == 4


def test_an_old_conversation_is_kept_when_a_short_one_shares_its_system_prompt(
    byte_tokenizer: Path,
) -> None:
    model = fake_model(byte_tokenizer)
    system = b"system prompt of forty characters......."
    with scheduling(model, slots=2) as scheduler:
        run_all(scheduler, [ask(system + b"long" * 50)])
        (other,) = run_all(scheduler, [ask(system + b"short")])
        assert other[0][-1].cached == len(system)
        (back,) = run_all(scheduler, [ask(system + b"long" * 50 + b"!")])
        assert back[0][-1].cached == len(system) + 200


class Watched(FakeEngine):
    """Notes what the engine is asked to do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.done: list[tuple[str, int]] = []

    def open_batch(self, slots: int, capacity: int) -> Any:
        batch = super().open_batch(slots, capacity)
        step, open_ = batch.step, batch.open

        def watched_step(sessions: list, tokens: list) -> Any:
            self.done.append(("step", len(sessions)))
            return step(sessions, tokens)

        def watched_open() -> Any:
            session = open_()
            prefill = session.prefill

            def watched_prefill(tokens: list, **options: Any) -> Any:
                self.done.append(("read", len(tokens)))
                return prefill(tokens, **options)

            session.prefill = watched_prefill
            return session

        batch.step, batch.open = watched_step, watched_open
        return batch


def test_decoding_waits_for_one_chunk_at_most(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)
    engine = Watched(hashed(VOCAB), VOCAB, 2048)
    model = Model(type(model.generator)(engine, model.generator.tokenizer), {})

    async def run(scheduler: Scheduler) -> None:
        first = asyncio.create_task(collect(scheduler.submit(ask(b"a", max_tokens=500))))
        while not engine.done:
            await asyncio.sleep(0)
        asks = [ask(bytes([98 + i]) * 100, max_tokens=2) for i in range(2)]
        await asyncio.gather(first, *(collect(scheduler.submit(one)) for one in asks))

    with scheduling(model) as scheduler:
        asyncio.run(run(scheduler))
    runs = itertools.groupby(engine.done, key=lambda done: done[0])
    read = [sum(count for _, count in run) for kind, run in runs if kind == "read"]
    assert max(read) == 16
    assert sum(read) == 1 + 2 * 100


def test_short_prompts_are_read_together(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)
    engine = Watched(hashed(VOCAB), VOCAB, 2048)
    model = Model(type(model.generator)(engine, model.generator.tokenizer), {})

    async def run(scheduler: Scheduler) -> None:
        begun = threading.Event()
        hold = scheduler.call(begun.wait)  # so that all have come before the first is read
        tickets = [scheduler.submit(ask(bytes([65 + i]) * 5, max_tokens=2)) for i in range(3)]
        begun.set()
        await asyncio.wrap_future(hold)
        await asyncio.gather(*(collect(ticket) for ticket in tickets))

    with scheduling(model) as scheduler:
        asyncio.run(run(scheduler))
    assert engine.done == [("read", 5)] * 3 + [("step", 3)]


def test_prompts_are_read_in_turns(byte_tokenizer: Path) -> None:
    """A short prompt behind a long one does not wait for its end."""
    model = fake_model(byte_tokenizer)

    async def run(scheduler: Scheduler) -> list[str]:
        ended = []

        async def one(name: str, tokens: bytes) -> None:
            await collect(scheduler.submit(ask(tokens, max_tokens=1)))
            ended.append(name)

        await asyncio.gather(one("long", b"l" * 480), one("short", b"s" * 20))
        return ended

    with scheduling(model) as scheduler:
        assert asyncio.run(run(scheduler)) == ["short", "long"]


def test_slots_go_to_those_that_came_first(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)

    async def run(scheduler: Scheduler) -> list[int]:
        ended = []

        async def one(number: int) -> None:
            await collect(scheduler.submit(ask(bytes([65 + number]) * 30, max_tokens=3)))
            ended.append(number)

        await asyncio.gather(*(one(number) for number in range(8)))
        return ended

    with scheduling(model, slots=1) as scheduler:
        assert asyncio.run(run(scheduler)) == list(range(8))


def test_a_full_queue_refuses(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)

    async def run(scheduler: Scheduler) -> None:
        tickets = [scheduler.submit(ask(b"abc", max_tokens=400)) for _ in range(2)]
        with pytest.raises(QueueFull) as refused:
            scheduler.submit(ask(b"abc", max_tokens=400, count=3))
        assert refused.value.status == 429
        assert 1 <= int(refused.value.headers["Retry-After"]) <= 60
        for ticket in tickets:
            await collect(ticket)
        assert len((await collect(scheduler.submit(ask(b"abc"))))[0]) > 0

    with scheduling(model, slots=1, queue=2) as scheduler:
        asyncio.run(run(scheduler))
        assert scheduler.metrics.rejected == 1


def test_without_a_queue_nobody_waits(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)

    async def run(scheduler: Scheduler) -> None:
        ticket = scheduler.submit(ask(b"abc", max_tokens=400))
        await anext(ticket.pieces())
        with pytest.raises(QueueFull):
            scheduler.submit(ask(b"abc"))
        scheduler.cancel(ticket)
        wait_until(lambda: scheduler.state()["busy"] == 0)
        await collect(scheduler.submit(ask(b"abc")))

    with scheduling(model, slots=1, queue=0) as scheduler:
        asyncio.run(run(scheduler))


def test_more_replies_than_are_ever_taken_are_refused_for_good(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)

    async def run(scheduler: Scheduler) -> None:
        with pytest.raises(ApiError, match="6 replies, and this server takes 5") as refused:
            scheduler.submit(ask(b"abc", count=6))
        assert refused.value.status == 400
        assert len(await collect(scheduler.submit(ask(b"abc", count=5)))) == 5

    with scheduling(model, slots=2, queue=3) as scheduler:
        asyncio.run(run(scheduler))


def test_a_cancelled_request_frees_its_slot_within_a_step(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)

    async def run(scheduler: Scheduler) -> None:
        running = scheduler.submit(ask(b"abc", max_tokens=400))
        waiting = scheduler.submit(ask(b"xyz", max_tokens=400))
        await anext(running.pieces())
        for ticket in (waiting, running):
            steps = scheduler.metrics.batch_size._counts[0]
            scheduler.cancel(ticket)
            wait_until(lambda: scheduler.state()["queued"] == 0)
        wait_until(lambda: scheduler.state()["busy"] == 0)
        assert scheduler.metrics.batch_size._counts[0] <= steps + 1
        assert scheduler.metrics.replies["cancelled"] == 2

    with scheduling(model, slots=1) as scheduler:
        asyncio.run(run(scheduler))


def test_a_failing_step_ends_its_replies_and_no_others(byte_tokenizer: Path) -> None:
    def model(tokens: list[int]) -> np.ndarray:
        if tokens[0] == 66 and len(tokens) > 8:
            raise PippinError("the device is gone")
        return hashed(VOCAB)(tokens)

    bad, good = ask(b"B" * 5), ask(b"G" * 5)
    fake = fake_model(byte_tokenizer, model)
    with scheduling(fake) as scheduler:

        async def run() -> None:
            with pytest.raises(ApiError, match="the device is gone"):
                await collect(scheduler.submit(bad))
            assert said((await collect(scheduler.submit(good)))[0]) == alone(fake, good)

        asyncio.run(run())
        assert scheduler.state()["busy"] == 0


def test_logits_without_a_choice_fail_alone(byte_tokenizer: Path) -> None:
    def model(tokens: list[int]) -> np.ndarray:
        logits = hashed(VOCAB)(tokens)
        return logits * np.nan if tokens[0] == 66 and len(tokens) > 8 else logits

    bad, good = ask(b"B" * 5), ask(b"G" * 5)
    fake = fake_model(byte_tokenizer, model)
    with scheduling(fake) as scheduler:

        async def run() -> None:
            fine = asyncio.create_task(collect(scheduler.submit(good)))
            with pytest.raises(ApiError, match="NaN"):
                await collect(scheduler.submit(bad))
            assert said((await fine)[0]) == alone(fake, good)

        asyncio.run(run())


def test_logprobs_are_those_of_the_models_own_logits(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)
    one = ask(b"abc", logprobs=3, temperature=0.9, frequency_penalty=1.0, logit_bias={70: 3.0})
    with scheduling(model) as scheduler:
        (found,) = run_all(scheduler, [one])
    entries = [entry for piece in found[0] for entry in piece.logprobs]
    _, tokens, _ = said(found[0])
    assert [entry.token for entry in entries] == tokens
    for index, entry in enumerate(entries):
        logits = hashed(VOCAB)([*b"abc", *tokens[:index]]).astype(np.float64)
        wanted = logits - np.log(np.exp(logits).sum())
        np.testing.assert_allclose(entry.logprob, wanted[entry.token], rtol=1e-9)
        best = np.argsort(-wanted, kind="stable")[:3]
        assert [token for token, _ in entry.top] == best.tolist()
        np.testing.assert_allclose([v for _, v in entry.top], wanted[best], rtol=1e-9)


def test_what_waits_is_told_when_the_scheduler_ends(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)

    async def run(scheduler: Scheduler) -> None:
        tickets = [scheduler.submit(ask(bytes([65 + i]), max_tokens=400)) for i in range(3)]
        await anext(tickets[0].pieces())
        await asyncio.to_thread(scheduler.stop)
        for ticket in tickets:
            with pytest.raises(ApiError, match="shutting down"):
                await collect(ticket)
        with pytest.raises(ApiError, match="shutting down"):
            scheduler.submit(ask(b"late"))

    with scheduling(model, slots=1) as scheduler:
        asyncio.run(run(scheduler))


def test_a_slot_that_is_given_up_frees_its_memory_at_once(byte_tokenizer: Path) -> None:
    batch = fake_model(byte_tokenizer).generator.engine.open_batch(2, 64)
    gc.disable()
    try:
        session = batch.open()
        gone = weakref.ref(session)
        batch.close(session)
        del session
        assert gone() is None
    finally:
        gc.enable()


def test_calls_run_between_steps_in_the_engines_thread(byte_tokenizer: Path) -> None:
    model = fake_model(byte_tokenizer)
    with scheduling(model) as scheduler:
        assert scheduler.call(lambda: threading.current_thread().name).result(10) == "pippin-engine"
        with pytest.raises(ZeroDivisionError):
            scheduler.call(lambda: 1 / 0).result(10)
        assert run_all(scheduler, [ask(b"still here")])
