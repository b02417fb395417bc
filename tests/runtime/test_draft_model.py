"""A smaller model drafts, the other one decides: its text is the one without a draft."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.runtime.draft_model import DraftModel
from pippin.runtime.engine import VerifyCost
from pippin.runtime.errors import InputError, PippinError
from pippin.runtime.generator import Generator
from pippin.runtime.prompt_cache import PromptCache
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import VOCAB
from support.drafts import plain, speculated
from support.fake_engine import FakeEngine, hashed

PARAMS = {
    "greedy": SamplingParams(max_tokens=80),
    "sampled": SamplingParams(max_tokens=80, temperature=0.8, seed=11),
    "penalties": SamplingParams(max_tokens=80, temperature=0.5, seed=2, repetition_penalty=1.2),
}
EACH = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())


def engine(model, share=1.0, vocab_size=VOCAB, context=512):
    """`share`: of the time that a step of the model itself takes."""
    made = FakeEngine(model, vocab_size, context)
    cost = VerifyCost(call=0.1, token=0.05)
    made.info = replace(made.info, weight_bytes=int(1e9 * share), verify_cost=cost)
    return made


def mostly(model, share, seed=0):
    """Says what `model` says, but for a `share` of the texts."""

    def other(tokens):
        rng = np.random.default_rng([seed, *tokens[-4:]])
        return model(tokens[:-1]) if rng.random() < share else model(tokens)

    return other


SURE = hashed(VOCAB, spread=8.0)


def replies(target, draft, tokenizer, params, prompt="hello", **options):
    alone = Generator(target, tokenizer)
    together = Generator(target, tokenizer, Generator(draft, tokenizer))
    return [g.generate(prompt, params, **options) for g in (alone, together)]


@EACH
@settings(max_examples=20, deadline=None)
@given(share=st.floats(0, 1), seed=st.integers(0, 999), count=st.integers(1, 70))
def test_tokens_and_caches_are_those_without_a_draft(params, share, seed, count):
    target = engine(SURE)
    small = engine(mostly(SURE, share, seed), 0.1)
    prompt = [seed % VOCAB, 3, 7]
    wanted, _ = plain(target, prompt, params, count)
    cache = PromptCache(small)
    drafter = DraftModel(small, cache, prompt, target.info)
    tokens, session, _ = speculated(target, prompt, params, count, drafter=drafter)
    assert tokens == wanted
    assert session.tokens == [*prompt, *wanted[:-1]]
    if cache.tokens:
        assert cache.tokens == cache._session.tokens
        assert cache.tokens == [*prompt, *wanted][: len(cache.tokens)]


def test_a_draft_that_says_the_same_is_always_right(byte_tokenizer):
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    alone, together = replies(engine(SURE), engine(SURE, 0.05), byte_tokenizer, params)
    assert together.tokens == alone.tokens
    assert together.stats.accepted_tokens == together.stats.drafted_tokens > 80
    assert alone.stats.drafted_tokens == 0


def test_a_draft_that_says_something_else_is_soon_left_alone(byte_tokenizer):
    calls, other = [], hashed(VOCAB, spread=7.0)
    small = engine(lambda tokens: calls.append(1) or other([*tokens, 1]), 0.05)
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    alone, together = replies(engine(SURE), small, byte_tokenizer, params)
    assert together.tokens == alone.tokens
    assert together.stats.accepted_tokens < 5
    assert together.stats.drafted_tokens < 40


def test_a_draft_as_slow_as_the_model_is_not_asked_again_and_again(byte_tokenizer):
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    _, together = replies(engine(SURE), engine(SURE), byte_tokenizer, params)
    assert together.stats.drafted_tokens < 20


@pytest.mark.parametrize("seed", range(5))
def test_seeds_and_sequences(byte_tokenizer, seed):
    params = SamplingParams(temperature=0.6, seed=seed, max_tokens=60, ignore_eos=True)
    small = engine(mostly(SURE, 0.3), 0.1)
    for sequence in (0, 1):
        alone, together = replies(engine(SURE), small, byte_tokenizer, params, sequence=sequence)
        assert together.tokens == alone.tokens
        assert 0 < together.stats.accepted_tokens < together.stats.drafted_tokens


@pytest.mark.parametrize(("own", "other"), [(30, 512), (512, 30), (30, 30)], ids=str)
def test_where_either_context_ends(byte_tokenizer, own, other):
    params = SamplingParams(ignore_eos=True, max_tokens=None if own == 30 else 60)
    small = engine(SURE, 0.05, context=other)
    alone, together = replies(engine(SURE, context=own), small, byte_tokenizer, params)
    assert together.tokens == alone.tokens
    assert together.finish_reason == alone.finish_reason == "length"
    assert 10 < together.stats.accepted_tokens <= 30


def test_a_vocabulary_with_rows_to_spare_on_either_side(byte_tokenizer):
    """Neither model is given an id that it does not have."""
    params = SamplingParams(temperature=2.0, seed=1, max_tokens=60, ignore_eos=True)
    for ours, theirs in ((VOCAB, VOCAB + 40), (VOCAB + 40, VOCAB)):
        target = engine(hashed(ours), vocab_size=ours)
        small = engine(hashed(theirs), 0.05, vocab_size=theirs)
        alone, together = replies(target, small, byte_tokenizer, params)
        assert together.tokens == alone.tokens


def test_stop_strings_end_the_reply_alike(byte_tokenizer):
    text = replies(engine(SURE), engine(SURE), byte_tokenizer, PARAMS["greedy"])[0].text
    params = SamplingParams(stop=(text[20:22],))
    caches = [PromptCache(engine(SURE)) for _ in range(2)]
    results = []
    for cache, draft in zip(caches, (None, engine(SURE, 0.05)), strict=True):
        smaller = draft and Generator(draft, byte_tokenizer)
        generator = Generator(cache._engine, byte_tokenizer, smaller)
        results.append(generator.generate("hello", params, cache=cache))
    assert results[0].text == results[1].text
    assert results[1].finish_reason == "stop_string"
    assert caches[0].tokens == caches[1].tokens


def test_a_next_turn_starts_from_what_the_draft_holds(byte_tokenizer):
    target, small = engine(SURE), engine(SURE, 0.05)
    generator = Generator(target, byte_tokenizer, Generator(small, byte_tokenizer))
    cache, params = PromptCache(target), SamplingParams(max_tokens=40, ignore_eos=True)
    tokens = [*b"hello"]
    tokens += generator.generate(tokens, params, cache=cache).tokens
    before = small.prefilled
    generator.generate([*tokens, *b"more"], params, cache=cache)
    assert small.prefilled - before < 25


@pytest.mark.parametrize("after", [1, 2, 7, 30])
def test_a_stopped_reply_leaves_usable_sessions(byte_tokenizer, after):
    target = engine(SURE)
    generator = Generator(target, byte_tokenizer, Generator(engine(SURE, 0.05), byte_tokenizer))
    cache, seen = PromptCache(target), []
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    for chunk in generator.stream(
        "hello", params, cache=cache, should_stop=lambda: len(seen) == after
    ):
        seen.append(chunk.text)
    wanted = Generator(target, byte_tokenizer).generate("hello", params)
    result = generator.generate("hello", params, cache=cache)
    assert result.tokens == wanted.tokens


def test_logits_of_nan_from_the_draft_are_no_guess(byte_tokenizer):
    small = engine(lambda tokens: np.full(VOCAB, np.nan, np.float32), 0.05)
    alone, together = replies(engine(SURE), small, byte_tokenizer, PARAMS["greedy"])
    assert together.tokens == alone.tokens


def test_an_error_of_the_draft_leaves_the_cache_usable(byte_tokenizer):
    def failing(tokens):
        if len(tokens) > 20:
            raise PippinError("the draft failed")
        return SURE(tokens)

    target = engine(SURE)
    generator = Generator(target, byte_tokenizer, Generator(engine(failing, 0.05), byte_tokenizer))
    cache = PromptCache(target)
    with pytest.raises(PippinError, match="the draft failed"):
        generator.generate("hello", PARAMS["greedy"], cache=cache)
    plain_generator = Generator(target, byte_tokenizer)
    result = plain_generator.generate("hello", PARAMS["greedy"], cache=cache)
    assert result.tokens == plain_generator.generate("hello", PARAMS["greedy"]).tokens


def test_another_tokenizer_is_refused(byte_tokenizer):
    other = Generator(engine(SURE), byte_tokenizer)
    other.tokenizer = type(byte_tokenizer).from_parts(
        '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"},'
        '"decoder":null,"normalizer":null,"pre_tokenizer":null,"post_processor":null,'
        '"added_tokens":[]}',
        {},
        {},
        {},
    )
    with pytest.raises(InputError, match=r"cannot draft for fake: .* other tokens") as caught:
        Generator(engine(SURE), byte_tokenizer, other)
    assert "\n" not in str(caught.value)
