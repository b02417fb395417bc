"""Prefix reuse: what is kept, that it changes nothing, and that it is told truly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.runtime.errors import InputError, PippinError
from pippin.runtime.generator import Generator
from pippin.runtime.prompt_cache import PromptCache
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import VOCAB, write_tokenizer
from support.fake_engine import FakeEngine, hashed
from support.graphs import Shape, write_folder

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(prompts=st.lists(TOKENS, min_size=2, max_size=5), limits=st.lists(st.integers(1, 6)))
def test_a_warm_run_gives_what_a_cold_one_gives(byte_tokenizer, prompts, limits):
    engine = FakeEngine(hashed(VOCAB), VOCAB)
    generator, cache = Generator(engine, byte_tokenizer), PromptCache(engine)
    held: list[int] = []
    for number, prompt in enumerate(prompts):
        limit = limits[number] if number < len(limits) else 3
        params = SamplingParams(temperature=1.0, seed=number, max_tokens=limit, ignore_eos=True)
        before = engine.prefilled
        warm = generator.generate(prompt, params, cache=cache)
        prefilled = engine.prefilled - before
        cold = generator.generate(prompt, params)
        assert warm.tokens == cold.tokens
        shared = 0
        while shared < min(len(held), len(prompt) - 1) and held[shared] == prompt[shared]:
            shared += 1
        assert warm.stats.cached_tokens == shared
        assert prefilled == len(prompt) - shared
        held = [*prompt, *warm.tokens[:-1]]
        assert cache.tokens == held
        assert cache._session.tokens == held  # exactly what the KV cache stands for


def test_a_template_that_rewrites_an_earlier_turn(byte_tokenizer):
    """The thinking part of the first reply is gone in the second prompt."""
    engine = FakeEngine(hashed(VOCAB), VOCAB)
    generator, cache = Generator(engine, byte_tokenizer), PromptCache(engine)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    first = [*b"Q: 1 A: <think>hm</think>one"]
    second = [*b"Q: 1 A: one Q: 2 A: "]
    generator.generate(first, params, cache=cache)
    warm = generator.generate(second, params, cache=cache)
    assert warm.tokens == generator.generate(second, params).tokens
    assert warm.stats.cached_tokens == len(b"Q: 1 A: ")


def test_the_same_prompt_again_prefills_one_token():
    engine = FakeEngine(hashed(VOCAB), VOCAB)
    cache = PromptCache(engine)
    session, cached = cache.reuse([1, 2, 3])
    assert cached == 0
    session.prefill([1, 2, 3])
    cache.record([1, 2, 3])
    assert cache.reuse([1, 2, 3])[1] == 2


def test_two_generations_at_once_are_refused(byte_tokenizer):
    engine = FakeEngine(hashed(VOCAB), VOCAB)
    generator, cache = Generator(engine, byte_tokenizer), PromptCache(engine)
    first = generator.stream("hi", cache=cache)
    next(first)
    with pytest.raises(PippinError, match="in use"):
        next(generator.stream("hi", cache=cache))
    first.close()
    generator.generate("hi", SamplingParams(max_tokens=2), cache=cache)


def test_save_and_load(byte_tokenizer, tmp_path):
    engine = FakeEngine(hashed(VOCAB), VOCAB)
    generator, cache = Generator(engine, byte_tokenizer), PromptCache(engine)
    with pytest.raises(InputError, match="empty"):
        cache.save(tmp_path / "nothing.kv")
    generator.generate("hello", SamplingParams(max_tokens=4), cache=cache)
    cache.save(tmp_path / "chat.kv")
    loaded = PromptCache.load(engine, tmp_path / "chat.kv")
    assert loaded.tokens == cache.tokens
    again = generator.generate("hello you", SamplingParams(max_tokens=4), cache=loaded)
    assert again.stats.cached_tokens == 5
    assert again.tokens == generator.generate("hello you", SamplingParams(max_tokens=4)).tokens


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
def test_a_conversation_on_onnxruntime(tmp_path, dialect):
    """Every turn rendered anew; the cache goes to disk and back between the last two."""
    write_tokenizer(write_folder(tmp_path / "m", Shape(vocab=VOCAB), dialect=dialect))
    generator = Generator.from_folder(tmp_path / "m", threads=1)
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=12, repetition_penalty=1.2)
    cache, messages = PromptCache(generator.engine), []
    for turn in range(4):
        messages.append({"role": "user", "content": f"question {turn}"})
        if turn == 3:
            cache.save(tmp_path / "chat.kv")
            cache = PromptCache.load(generator.engine, tmp_path / "chat.kv")
        warm = generator.generate(messages, params, cache=cache)
        cold = generator.generate(messages, params)
        assert (warm.tokens, warm.text) == (cold.tokens, cold.text)
        assert (warm.stats.cached_tokens > 0) == (turn > 0)
        messages.append({"role": "assistant", "content": warm.text})
