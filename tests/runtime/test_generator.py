"""The generator above a scripted engine: text, ends, limits, cancellation, errors."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.runtime.errors import ContextError, InputError, PippinError
from pippin.runtime.generator import Generator
from pippin.runtime.prompt_cache import PromptCache
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import END_OF_TEXT, IM_END, IM_START, VOCAB
from support.fake_engine import FakeEngine, hashed, scripted


@pytest.fixture
def replying(byte_tokenizer):
    """replying(reply, prompt) -> a generator whose model answers `prompt` with `reply`."""

    def make(reply, prompt="hi", **engine):
        ids = reply.encode() if isinstance(reply, str) else reply
        model = scripted([*ids, IM_END], len(prompt.encode()), VOCAB)
        return Generator(FakeEngine(model, VOCAB, **engine), byte_tokenizer)

    return make


TEXTS = st.text(
    st.sampled_from("ab# \n\u00e9\u4e2d\U0001f469\u200d\U0001f680\ufe0f\u0301\ufffd"), max_size=30
)


@settings(max_examples=150, deadline=None)
@given(reply=TEXTS)
def test_chunks_join_to_the_text_and_none_ends_inside_a_character(byte_tokenizer, reply):
    model = scripted([*reply.encode(), IM_END], 2, VOCAB)
    generator = Generator(FakeEngine(model, VOCAB), byte_tokenizer)
    chunks = list(generator.stream("hi"))
    assert "".join(chunk.text for chunk in chunks) == reply
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    tokens = [token for chunk in chunks for token in chunk.tokens]
    assert tokens == [*reply.encode(), IM_END]
    seen, text = 0, ""
    for chunk in chunks:
        seen += len(chunk.tokens)
        text += chunk.text
        assert text == reply.encode()[:seen].decode("utf-8", "ignore")


@settings(max_examples=150, deadline=None)
@given(
    reply=TEXTS,
    stops=st.lists(
        st.text(st.sampled_from("ab# \u00e9\u4e2d"), min_size=1, max_size=4), max_size=3
    ),
    limit=st.integers(1, 40),
)
def test_stop_strings_and_limit_against_the_whole_text(byte_tokenizer, reply, stops, limit):
    model = scripted([*reply.encode(), IM_END], 2, VOCAB)
    generator = Generator(FakeEngine(model, VOCAB), byte_tokenizer)
    result = generator.generate("hi", SamplingParams(stop=stops, max_tokens=limit))
    whole = reply.encode()[:limit].decode("utf-8", "ignore")
    places = [whole.find(stop) for stop in stops if stop in whole]
    if places:
        assert (result.text, result.finish_reason) == (whole[: min(places)], "stop_string")
    elif limit > len(reply.encode()):
        assert (result.text, result.finish_reason) == (reply, "stop")
    else:
        assert (result.text, result.finish_reason) == (whole, "length")
        assert result.stats.reply_tokens == limit


def test_a_stop_string_inside_one_that_could_have_come(replying):
    """At the end "xab" is still held for "xabz"; "ab" in it counts then."""
    result = replying("12xab").generate("hi", SamplingParams(stop=["xabz", "ab"]))
    assert (result.text, result.finish_reason) == ("12x", "stop_string")


@pytest.mark.parametrize("eos", [IM_END, END_OF_TEXT])
def test_every_end_of_turn_token_stops_and_none_is_shown(replying, eos):
    result = replying([*b"yes", eos, *b"no"]).generate("hi")
    assert (result.text, result.finish_reason) == ("yes", "stop")
    assert result.tokens == (*b"yes", eos)


def test_ignore_eos_runs_on(replying):
    params = SamplingParams(ignore_eos=True, max_tokens=6)
    result = replying([*b"yes", IM_END, *b"no"]).generate("hi", params)
    assert (result.text, result.finish_reason) == ("yesno", "length")


def test_ids_texts_and_conversations_are_prompts(replying, byte_tokenizer):
    generator = replying("")
    messages = [{"role": "user", "content": "hé"}]
    rendered = byte_tokenizer.encode_chat(messages)
    assert rendered[0] == IM_START
    assert generator.encode(messages) == rendered
    assert generator.encode("hé") == generator.encode(np.array([104, 195, 169])) == [104, 195, 169]


@pytest.mark.parametrize("prompt", ["", [], np.array([], np.int64)])
def test_an_empty_prompt_is_refused_before_anything_runs(replying, prompt):
    with pytest.raises(InputError, match="empty"):
        replying("").stream(prompt)


def test_tokens_outside_the_vocabulary_are_refused(replying):
    with pytest.raises(InputError, match=f"{VOCAB}"):
        replying("").stream([1, VOCAB])


def test_template_settings_without_a_conversation_are_refused(replying):
    generator = replying("")
    messages = [{"role": "user", "content": "hi"}]
    generator.encode(tuple(messages), template={"enable_thinking": False})
    with pytest.raises(InputError, match="need a conversation"):
        generator.stream("hi", template={"enable_thinking": False})
    with pytest.raises(InputError, match="need a conversation"):
        generator.stream("hi", tools=[{"type": "function"}])


def test_a_prompt_and_reply_longer_than_the_context(replying):
    generator = replying("x" * 99, context=64)
    with pytest.raises(ContextError, match=r"60 prompt tokens and 5 .* 64 tokens"):
        generator.stream("p" * 60, SamplingParams(max_tokens=5))
    with pytest.raises(ContextError, match=r"64 tokens .* 64 tokens"):
        generator.stream("p" * 64)
    with pytest.raises(InputError, match="on_overflow"):
        generator.stream("p", on_overflow="truncate")


def test_without_a_limit_a_reply_ends_with_the_context(replying):
    prompt = "p" * 60
    result = replying("x" * 99, prompt, context=64).generate(prompt)
    assert (result.text, result.finish_reason) == ("xxxx", "length")


def test_drop_oldest_keeps_the_first_token_and_the_newest(replying):
    generator = replying("x" * 99, "p" * 48, context=64)
    cache = PromptCache(generator.engine)
    prompt = "".join(chr(33 + i) for i in range(80))
    result = generator.generate(prompt, cache=cache, on_overflow="drop_oldest")
    assert cache.tokens[:48] == [33, *range(33 + 33, 33 + 80)]
    assert result.stats.prompt_tokens == 48  # a quarter of the context is left to the reply
    assert result.stats.reply_tokens == 16
    params = SamplingParams(max_tokens=4)
    result = generator.generate(prompt, params, on_overflow="drop_oldest")
    assert result.stats.prompt_tokens == 60
    short = generator.generate("pq", params, on_overflow="drop_oldest")
    assert short.stats.prompt_tokens == 2


def test_drop_oldest_drops_whole_turns_of_a_conversation(replying, byte_tokenizer):
    turns = [{"role": "system", "content": "S"}]
    for number in range(8):
        turns.append({"role": "user", "content": f"question {number}"})
        turns.append({"role": "assistant", "content": f"answer {number}"})
    turns.append({"role": "user", "content": "last"})
    generator = replying("", context=256)
    cache = PromptCache(generator.engine)
    params = SamplingParams(max_tokens=20)
    generator.generate(turns, params, cache=cache, on_overflow="drop_oldest")
    fitting = [k for k in range(9) if len(byte_tokenizer.encode_chat(kept(turns, k))) <= 236]
    expected = byte_tokenizer.encode_chat(kept(turns, fitting[0]))
    assert 0 < fitting[0] < 8
    assert cache.tokens[: len(expected)] == expected
    with pytest.raises(ContextError):
        generator.stream(
            [turns[0], {"role": "user", "content": "x" * 300}], params, on_overflow="drop_oldest"
        )


def kept(turns, dropped):
    return [turns[0], *turns[1 + 2 * dropped :]]


def test_the_same_seed_gives_the_same_text(byte_tokenizer):
    generator = Generator(FakeEngine(hashed(VOCAB), VOCAB), byte_tokenizer)
    params = SamplingParams(temperature=1.0, max_tokens=30, seed=7, ignore_eos=True)
    first = generator.generate("hi", params)
    assert generator.generate("hi", params).tokens == first.tokens
    assert generator.generate("hi", params, sequence=1).tokens != first.tokens
    unseeded = dataclasses.replace(params, seed=None)
    other = generator.generate("hi", unseeded)
    assert other.tokens != first.tokens
    again = generator.generate("hi", dataclasses.replace(params, seed=other.stats.seed))
    assert again.tokens == other.tokens


def test_logits_of_nan_are_an_error_that_names_the_position(byte_tokenizer):
    def model(tokens):
        good = scripted(b"abc", 2, VOCAB)(tokens)
        return good if len(tokens) < 4 else np.full(VOCAB, np.nan, np.float32)

    engine = FakeEngine(model, VOCAB)
    generator, cache = Generator(engine, byte_tokenizer), PromptCache(engine)
    chunks = generator.stream("hi", cache=cache)
    assert next(chunks).text + next(chunks).text == "ab"
    with pytest.raises(PippinError, match="after 4 tokens are all NaN"):
        next(chunks)
    assert cache.tokens == list(b"hiab")


def test_closing_the_stream_leaves_a_usable_session(replying):
    generator = replying("abcdefghij")
    cache = PromptCache(generator.engine)
    chunks = generator.stream("hi", cache=cache)
    assert [next(chunks).text for _ in range(4)] == list("abcd")
    chunks.close()
    assert cache.tokens == list(b"hiabc")  # the last token was never fed back
    result = generator.generate([*b"hiabcd"], cache=cache)
    assert result.text == "efghij"
    assert result.stats.cached_tokens == 5


def test_should_stop_between_tokens(replying):
    generator = replying("ab#cdef")
    seen = []
    cache = PromptCache(generator.engine)
    stream = generator.stream(
        "hi", SamplingParams(stop="#d"), cache=cache, should_stop=lambda: len(seen) == 2
    )
    for chunk in stream:
        seen.append(chunk)
    assert [chunk.text for chunk in seen] == ["a", "b", ""]
    assert seen[-1].finish_reason == "cancelled"
    assert seen[-1].stats.reply_tokens == 2
    assert generator.generate("hi", cache=cache).text == "ab#cdef"


def test_an_interrupt_inside_the_engine_leaves_a_usable_session(replying, monkeypatch):
    generator = replying("abcdef")
    model, calls = generator.engine.model, []

    def interrupted(tokens):
        calls.append(tokens)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return model(tokens)

    monkeypatch.setattr(generator.engine, "model", interrupted)
    cache = PromptCache(generator.engine)
    with pytest.raises(KeyboardInterrupt):
        generator.generate("hi", cache=cache)
    assert cache.tokens == cache._session.tokens
    result = generator.generate("hi", cache=cache)
    assert (result.text, result.stats.cached_tokens) == ("abcdef", 1)


def test_what_was_held_back_is_shown_when_a_reply_is_cancelled(replying):
    generator = replying("ab#")
    calls = iter([False, False, False, False, True])  # the prompt, then four tokens
    chunks = list(
        generator.stream("hi", SamplingParams(stop="#d"), should_stop=lambda: next(calls))
    )
    assert "".join(chunk.text for chunk in chunks) == "ab#"
    assert chunks[-1].finish_reason == "cancelled"


def test_should_stop_between_chunks_of_the_prompt(replying):
    prompt = "p" * 100
    generator = replying("answer", prompt, chunk=16)
    cache = PromptCache(generator.engine)
    done = []
    (chunk,) = generator.stream(
        prompt,
        cache=cache,
        progress=lambda *at: done.append(at),
        should_stop=lambda: len(done) == 3,
    )
    assert (chunk.text, chunk.finish_reason, chunk.tokens) == ("", "cancelled", ())
    assert chunk.stats.prefill_rate == chunk.stats.decode_rate == 0
    assert done == [(16, 100), (32, 100), (48, 100)]
    assert len(cache.tokens) == 48
    result = generator.generate(prompt, cache=cache)
    assert (result.text, result.stats.cached_tokens) == ("answer", 48)


def test_statistics(replying):
    result = replying("abc").generate("hi")
    stats = result.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.reply_tokens) == (2, 0, 4)
    assert stats.prefill_seconds > 0
    assert stats.decode_rate == pytest.approx(3 / stats.decode_seconds)
    assert stats.prefill_rate == pytest.approx(2 / stats.prefill_seconds)


def test_the_caller_s_own_time_is_not_counted(replying, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("pippin.runtime.generator.perf_counter", lambda: clock[0])
    seen = []
    for chunk in replying("abc").stream("hi"):
        clock[0] += 5.0
        seen.append(chunk)
    assert seen[-1].stats.prefill_seconds + seen[-1].stats.decode_seconds == 0.0


def test_dry_breakers_given_as_text(byte_tokenizer):
    """After "abX" and "ab" DRY forbids "X"; not when "b" breaks sequences."""

    def tenth(breakers):
        wish = scripted(b"X", 5, VOCAB)
        generator = Generator(FakeEngine(wish, VOCAB), byte_tokenizer)
        params = SamplingParams(
            dry_multiplier=1e6, dry_sequence_breakers=breakers, max_tokens=1, ignore_eos=True
        )
        return generator.generate("abXab", params).text

    assert tenth([]) != "X"
    assert tenth(["\n", "c"]) != "X"
    assert tenth(["b"]) == "X"
    assert tenth(["ab"]) == "X"  # no token holds "ab": its own two tokens stand for it
