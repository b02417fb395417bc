"""Drafts leave the text that plain decoding gives, whatever was drafted, and cost little."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pippin.runtime.errors import ContextError, PippinError
from pippin.runtime.generator import Generator
from pippin.runtime.prompt_cache import PromptCache
from pippin.runtime.prompt_lookup import PromptLookup
from pippin.runtime.sampling import Sampler, SamplingParams
from pippin.runtime.speculation import FIRST, Speculation
from support.byte_tokenizer import IM_END, VOCAB
from support.drafts import ENDLESS, Scripted, plain, speculated
from support.fake_engine import FakeEngine, scripted

SMALL = 7  # tokens of a vocabulary in which texts repeat themselves
PARAMS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.8, seed=11),
    "truncated": SamplingParams(temperature=1.2, top_k=5, top_p=0.9, min_p=0.02, seed=3),
    "penalties": SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, penalty_last_n=9
    ),
    "dry": SamplingParams(temperature=0.7, seed=5, dry_multiplier=0.6, dry_sequence_breakers=()),
    "xtc": SamplingParams(temperature=1.0, seed=2, xtc_probability=0.5, xtc_threshold=0.05),
}
EACH = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())


def looping(seed=0, sure=4.0):
    """A model that mostly goes on as after the same two tokens before, and sometimes does not."""

    def model(tokens):
        logits = np.random.default_rng([seed, *tokens[-5:]]).standard_normal(SMALL)
        logits[np.random.default_rng([seed, *tokens[-2:]]).integers(SMALL)] += sure
        return logits.astype(np.float32)

    return model


@EACH
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    prompt=st.lists(st.integers(0, SMALL - 1), min_size=1, max_size=30),
    count=st.integers(0, 80),
    longest=st.integers(1, 16),
)
def test_tokens_and_cache_are_those_of_plain_decoding(params, seed, prompt, count, longest):
    engine = FakeEngine(looping(seed), SMALL)
    wanted, _ = plain(engine, prompt, params, count)
    tokens, session, _ = speculated(engine, prompt, params, count, longest)
    assert tokens == wanted
    assert session.tokens == [*prompt, *wanted[:-1]]


@EACH
def test_the_texts_of_the_test_above_make_it_draft(params):
    lookups = [speculated(FakeEngine(looping(s), SMALL), [1, 2], params, 200)[2] for s in range(9)]
    drafted = sum(lookup.drafted_tokens for lookup in lookups)
    accepted = sum(lookup.accepted_tokens for lookup in lookups)
    assert 0 < accepted < drafted


@EACH
@pytest.mark.parametrize("right", [0, 1, 3, 99])
def test_hostile_drafts(params, right):
    engine = FakeEngine(looping(4), SMALL)
    wanted, _ = plain(engine, [1, 2, 3], params, 60)
    drafter = Scripted(wanted, right, SMALL)
    tokens, session, lookup = speculated(engine, [1, 2, 3], params, 60, 5, drafter)
    assert tokens == wanted
    assert session.tokens == [1, 2, 3, *wanted[:-1]]
    assert (lookup.accepted_tokens == 0) == (right == 0)
    assert (lookup.accepted_tokens == lookup.drafted_tokens) == (right == 99)


@pytest.mark.parametrize("right", [2, 99])
def test_the_context_ends_as_in_plain_decoding(right):
    engine = FakeEngine(looping(), SMALL, context=30)
    wanted = plain(engine, [1, 2], SamplingParams(), 28)[0]
    ends = []
    for drafter in (None, Scripted([*wanted, *wanted], right, SMALL)):
        session = engine.open()
        logits, choose = session.prefill([1, 2]), Sampler(SamplingParams(), SMALL, np, [1, 2])
        lookup = Speculation(engine.info, [drafter], ENDLESS)
        decode = lookup.decode if drafter else type(session).decode
        steps, tokens = decode(session, logits, choose), []
        with pytest.raises(ContextError) as caught:
            tokens.extend(steps)
        ends.append((tokens, session.tokens, str(caught.value)))
    assert ends[0] == ends[1]
    assert lookup.accepted_tokens > 0


def test_nothing_is_drafted_past_the_last_token(byte_tokenizer):
    """What is verified beyond `max_tokens` would be computed for nothing."""
    reply = b"abcabcabcabcabcabcabcabcabcabcabcabc"
    engine = FakeEngine(scripted([*reply, IM_END], 2, VOCAB), VOCAB)
    lengths, step = [], engine.model
    engine.model = lambda tokens: lengths.append(len(tokens)) or step(tokens)
    params = SamplingParams(max_tokens=20, prompt_lookup=10)
    result = Generator(engine, byte_tokenizer).generate("hi", params)
    assert result.tokens == tuple(reply[:20])
    assert result.stats.accepted_tokens > 5
    assert max(lengths) == 2 + 19  # the last token itself is never computed


TEXT = "one two three one two three one two four one two three one two three, " * 3


@pytest.fixture
def repeating(byte_tokenizer):
    """Replies to "hi" with TEXT."""
    return Generator(
        FakeEngine(scripted([*TEXT.encode(), IM_END], 2, VOCAB), VOCAB), byte_tokenizer
    )


@pytest.mark.parametrize(
    "ending", [{}, {"stop": ("four",)}, {"max_tokens": 77}, {"stop": ("o t", "e, o")}], ids=str
)
def test_replies_end_alike(repeating, ending):
    caches = [PromptCache(repeating.engine) for _ in range(2)]
    wanted = repeating.generate("hi", SamplingParams(**ending), cache=caches[0])
    params = SamplingParams(prompt_lookup=10, **ending)
    result = repeating.generate("hi", params, cache=caches[1])
    assert result.text == wanted.text
    assert result.tokens == wanted.tokens
    assert result.finish_reason == wanted.finish_reason
    assert caches[0].tokens == caches[1].tokens == caches[1]._session.tokens
    assert wanted.stats.drafted_tokens == wanted.stats.accepted_tokens == 0
    assert 0 <= result.stats.accepted_tokens <= result.stats.drafted_tokens
    if not ending:
        assert result.stats.accepted_tokens > len(TEXT) / 2


@pytest.mark.parametrize("after", range(40, 60))
def test_a_stream_stopped_amid_a_draft_leaves_a_usable_session(repeating, after):
    cache, seen = PromptCache(repeating.engine), []
    params = SamplingParams(prompt_lookup=10)
    stream = repeating.stream("hi", params, cache=cache, should_stop=lambda: len(seen) == after)
    seen.extend(chunk.text for chunk in stream)
    assert "".join(seen) == TEXT[:after]
    assert cache.tokens == cache._session.tokens == [*b"hi", *TEXT.encode()[: after - 1]]
    result = repeating.generate([*b"hi", *TEXT.encode()[:after]], params, cache=cache)
    assert result.text == TEXT[after:]


def test_an_interrupt_inside_verify_leaves_a_usable_session(repeating, monkeypatch):
    engine, cache = repeating.engine, PromptCache(repeating.engine)
    model = engine.model

    def interrupted(tokens):
        if len(tokens) == 60:
            raise KeyboardInterrupt
        return model(tokens)

    monkeypatch.setattr(engine, "model", interrupted)
    params = SamplingParams(prompt_lookup=10)
    with pytest.raises(KeyboardInterrupt):
        repeating.generate("hi", params, cache=cache)
    assert cache.tokens == cache._session.tokens
    assert [*b"hi", *TEXT.encode()][: len(cache.tokens)] == cache.tokens
    monkeypatch.setattr(engine, "model", model)
    assert repeating.generate("hi", params, cache=cache).text == TEXT


def test_logits_of_nan_amid_a_draft(repeating, monkeypatch):
    model = repeating.engine.model

    def damaged(tokens):
        return model(tokens) if len(tokens) < 60 else np.full(VOCAB, np.nan, np.float32)

    monkeypatch.setattr(repeating.engine, "model", damaged)
    cache = PromptCache(repeating.engine)
    with pytest.raises(PippinError, match="after 60 tokens are all NaN"):
        repeating.generate("hi", SamplingParams(prompt_lookup=10), cache=cache)
    assert cache.tokens == [*b"hi", *TEXT.encode()[:58]]


def test_seeds_and_sequences(byte_tokenizer):
    def model(tokens):
        return np.resize(looping()([t % SMALL for t in tokens]), VOCAB)

    generator = Generator(FakeEngine(model, VOCAB), byte_tokenizer)
    for seed in range(4):
        params = SamplingParams(temperature=0.6, seed=seed, max_tokens=90, ignore_eos=True)
        lookup = dataclasses.replace(params, prompt_lookup=8)
        replies = [
            [generator.generate("hi", p, sequence=n).tokens for n in range(2)]
            for p in (params, lookup)
        ]
        assert replies[0] == replies[1]
        assert replies[0][0] != replies[0][1]


def cost(count: int) -> float:
    return 0.18 * count


def steps_taken(prompt, reply, longest=15):
    """What a reply takes with drafts, in steps."""
    text, place, spent = PromptLookup(prompt, longest), 0, 0.0
    while place < len(reply):
        text.append(reply[place])
        place += 1
        spent += 1
        if draft := text.draft(len(reply) - place - 1, cost):
            spent += cost(len(draft))
            right = next((i for i, t in enumerate(draft) if t != reply[place + i]), len(draft))
            for token in reply[place : place + right]:
                text.append(token)
            place += right
    return spent


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 300), st.integers(1, 12))
@example(496248, 4, 1)  # what drafts on paper would have saved is not what paid ones then save
def test_text_that_does_not_repeat_loses_no_more_than_promised(seed, vocabulary, period):
    """Random tokens, some of which come again and break off where a draft has just begun."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, vocabulary, 200).tolist()
    reply: list[int] = []
    while len(reply) < 300:
        at = rng.integers(0, 200 - period)
        reply += [*prompt[at : at + period], *rng.integers(0, vocabulary, 3).tolist()]
    lost = steps_taken(prompt, reply) - len(reply)
    assert lost <= max(0.015 * len(reply), cost(FIRST)) + 0.015 * len(reply)


def test_a_repeated_text_takes_few_steps():
    prompt = np.random.default_rng(0).integers(0, 500, 300).tolist()
    assert steps_taken(prompt, prompt[100:220]) < 120 / 2.5
    assert steps_taken(prompt, [7] * 120) < 120 / 2.5


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), min_size=1))
def test_a_draft_is_what_followed_the_same_tokens_before(prompt, reply):
    text, tokens = PromptLookup(prompt, 4), [*prompt]
    text._rates = [1.0] * len(text._rates)
    for token in reply:
        text.append(token)
        tokens.append(token)
        draft = text.draft(4, cost)
        if draft:
            places = [i for i in range(2, len(tokens)) if tokens[i - 2 : i] == tokens[-2:]]
            whole = [*tokens, *draft]
            assert draft in [whole[place : place + len(draft)] for place in places]
