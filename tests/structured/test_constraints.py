"""What a model of pure noise says under a constraint is what the constraint allows."""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pippin.apps.structured import (
    Grammar,
    choice,
    constraint_for,
    json_object,
    json_schema,
    regex,
)
from pippin.runtime.errors import InputError, PippinError
from pippin.runtime.generator import Generator
from pippin.runtime.sampling import SamplingParams
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import IM_END
from support.corpora import vocabulary
from support.fake_engine import FakeEngine
from support.noise import noisy_generator
from support.vocabularies import tiny_files

SAMPLED = SamplingParams(temperature=1.0, seed=3, max_tokens=4000)
NESTED = {
    "$defs": {
        "leaf": {"type": "string", "maxLength": 3},
        "node": {
            "type": "object",
            "properties": {"name": {"$ref": "#/$defs/leaf"}, "kind": {"enum": ["a", "é", None, 3]}},
            "required": ["name", "kind"],
            "additionalProperties": False,
        },
    },
    "type": "array",
    "items": {"$ref": "#/$defs/node"},
    "minItems": 2,
    "maxItems": 3,
}


def say(generator: Generator, grammar: Grammar, params: SamplingParams = SAMPLED, **options: Any):
    return generator.generate(
        "go", params, constraint=constraint_for(generator, grammar), **options
    )


def bounded(low: int, high: int) -> st.SearchStrategy:
    return st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)


def with_bounds(kind: str, low: str, high: str, limits: st.SearchStrategy) -> st.SearchStrategy:
    return limits.map(lambda pair: {"type": kind, low: pair[0], high: pair[1]})


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.text(max_size=4), st.just([1, "é"])
)
LEAVES = st.one_of(
    with_bounds("integer", "minimum", "maximum", bounded(-1000, 100_000)),
    with_bounds("number", "minimum", "maximum", bounded(-50, 50)),
    with_bounds("string", "minLength", "maxLength", bounded(0, 6)),
    st.sampled_from(["^[a-f]{2,4}$", "x", "^(ab|é){1,2}!", r"^\d\.\d$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 12}
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]}]),
    st.sampled_from(["date", "time", "uuid", "ipv4"]).map(
        lambda name: {"type": "string", "format": name}
    ),
    st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/shared"}),
)


def objects(parts: st.SearchStrategy) -> st.SearchStrategy:
    def make(properties: dict[str, Any], optional: set[str]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name not in optional],
            "additionalProperties": False,
        }

    names = st.text(max_size=3)
    return st.builds(make, st.dictionaries(names, parts, max_size=3), st.sets(names, max_size=2))


def arrays(parts: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(parts, bounded(0, 3)).map(
        lambda made: {
            "type": "array",
            "items": made[0],
            "minItems": made[1][0],
            "maxItems": made[1][1],
        }
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        objects(parts),
        arrays(parts),
        st.lists(parts, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=6,
)


@given(
    schema=SCHEMAS,
    shared=LEAVES.filter(lambda leaf: "$ref" not in leaf),
    seed=st.integers(0, 9),
    greedy=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_noise_gives_json_that_the_schema_allows(
    byte_tokenizer: Tokenizer, schema: Mapping[str, Any], shared: Any, seed: int, greedy: bool
) -> None:
    schema = {**schema, "$defs": {"shared": shared}}
    generator = noisy_generator(byte_tokenizer, seed)
    params = SamplingParams(temperature=0.0 if greedy else 1.0, seed=seed, max_tokens=8000)
    result = say(generator, json_schema(schema), params)
    assert result.finish_reason == "stop"
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    validator.validate(json.loads(result.text))
    assert max(result.tokens) < byte_tokenizer.vocab_size


@pytest.mark.parametrize("seed", range(4))
def test_references_lengths_and_enumerations_hold(byte_tokenizer: Tokenizer, seed: int) -> None:
    result = say(noisy_generator(byte_tokenizer, seed), json_schema(NESTED))
    assert result.finish_reason == "stop"
    Draft202012Validator(NESTED).validate(json.loads(result.text))


WORD = {"type": "string", "maxLength": 3}
KEYWORDS: dict[str, dict[str, Any]] = {
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 500},
    "exclusive": {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^n": {"type": "integer"}, "^s": WORD},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "minProperties": {
        "type": "object",
        "additionalProperties": WORD,
        "minProperties": 2,
        "maxProperties": 3,
    },
    "prefixItems": {"type": "array", "prefixItems": [WORD, {"const": 1}], "items": False},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "oneOf": {"oneOf": [WORD, {"type": "integer"}, {"type": "null"}]},
    "no type": {"minLength": 2, "maxLength": 3, "enum": ["a", "abc", 5, None]},
    "definitions": {
        "definitions": {"w": WORD},
        "type": "array",
        "items": {"$ref": "#/definitions/w"},
    },
    "recursive": {
        "type": "object",
        "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("schema", KEYWORDS.values(), ids=KEYWORDS.keys())
def test_a_keyword_is_enforced(byte_tokenizer: Tokenizer, schema: dict[str, Any]) -> None:
    for seed in range(6):
        closing = [*b'"}]n', IM_END]
        result = say(noisy_generator(byte_tokenizer, seed, closing), json_schema(schema))
        assert result.finish_reason == "stop"
        Draft202012Validator(schema).validate(json.loads(result.text))


@pytest.mark.parametrize("seed", range(4))
def test_any_json_object(byte_tokenizer: Tokenizer, seed: int) -> None:
    closing = [*b'"}], ', IM_END]  # or noise would open one object within another for ever
    result = say(noisy_generator(byte_tokenizer, seed, closing), json_object())
    assert result.finish_reason == "stop"
    assert isinstance(json.loads(result.text), dict)


PATTERNS = {
    "class": "[a-z]{3,9}",
    "alternatives": "(yes|no|vielleicht)",
    "anchored": "^a+b*$",
    "unicode": "[äöü😀]{2}|日本",
    "slash and quotes": r'/"\\ {1,3}x',
    "any text": ".{0,20}",
    "space first": " {1,3}x",
    "one text": "abc 日本語",
    "digits": r"\d{4}-\d{2}",
    "case": "(?i)abc",
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
@pytest.mark.parametrize("name", ["gpt-2", "llama-spm"])  # the latter drops a reply's first space
def test_a_regex_matches_the_whole_text(pattern: str, name: str) -> None:
    tokenizer = vocabulary(name)
    for seed in range(4):
        generator = noisy_generator(tokenizer, seed, sorted(tokenizer.eos_token_ids))
        result = say(generator, regex(pattern))
        assert result.finish_reason == "stop"
        assert re.fullmatch(pattern, result.text), result.text


@given(options=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_one_choice_of_several(byte_tokenizer: Tokenizer, options: list[str]) -> None:
    said = {say(noisy_generator(byte_tokenizer, seed), choice(options)).text for seed in range(3)}
    assert said <= set(options)


def test_the_mask_comes_before_every_filter(byte_tokenizer: Tokenizer) -> None:
    letters = [ord(c) for c in "xyz"]  # far likelier, and not allowed
    generator = noisy_generator(byte_tokenizer, favoured=letters)
    filtered = SamplingParams(
        temperature=0.7, top_k=1, top_p=0.5, min_p=0.5, seed=1, repetition_penalty=1.5
    )
    assert re.fullmatch("[0-9]{5}", say(generator, regex("[0-9]{5}"), filtered).text)
    biased = SamplingParams(logit_bias={ord("7"): 50.0, ord("x"): 1000.0})
    assert say(generator, regex("[0-9]{5}"), biased).text == "77777"


def test_a_bias_that_bans_all_that_is_allowed_fails_in_one_line(byte_tokenizer) -> None:
    banned = SamplingParams(logit_bias={ord(c): -np.inf for c in "ab"})
    with pytest.raises(PippinError, match="NaN or masked"):
        say(noisy_generator(byte_tokenizer), regex("[ab]"), banned)


def test_an_incomplete_reply_says_length(byte_tokenizer: Tokenizer) -> None:
    result = say(noisy_generator(byte_tokenizer), regex("[a-z]{50}"), SamplingParams(max_tokens=7))
    assert result.finish_reason == "length"
    assert re.fullmatch("[a-z]{7}", result.text)


def test_a_stop_string_ends_a_structured_reply_too(byte_tokenizer: Tokenizer) -> None:
    params = SamplingParams(stop=["-"], max_tokens=50)
    result = say(noisy_generator(byte_tokenizer), regex("[0-9]{2}-[0-9]{2}"), params)
    assert result.finish_reason == "stop_string"
    assert re.fullmatch("[0-9]{2}", result.text)


def test_the_end_is_the_only_token_after_a_complete_text(byte_tokenizer: Tokenizer) -> None:
    state = constraint_for(noisy_generator(byte_tokenizer), choice(["a", "ab"])).start()
    assert np.flatnonzero(state.allowed()).tolist() == [ord("a")]
    state.accept(ord("a"))
    ends = sorted(byte_tokenizer.eos_token_ids)
    assert np.flatnonzero(state.allowed()).tolist() == [ord("b"), *ends]
    state.accept(ord("b"))
    assert np.flatnonzero(state.allowed()).tolist() == ends
    state.accept(ends[0])
    assert np.flatnonzero(state.allowed()).tolist() == ends
    with pytest.raises(PippinError, match="the grammar of the reply failed"):
        constraint_for(noisy_generator(byte_tokenizer), choice(["a"])).start().accept(ord("z"))


def test_replies_under_one_constraint_do_not_share_a_state(byte_tokenizer: Tokenizer) -> None:
    constraint = constraint_for(noisy_generator(byte_tokenizer), choice(["ab", "xy"]))
    one, other = constraint.start(), constraint.start()
    one.accept(ord("a"))
    assert np.flatnonzero(one.allowed()).tolist() == [ord("b")]
    assert np.flatnonzero(other.allowed()).tolist() == [ord("a"), ord("x")]


def test_a_token_that_ends_a_reply_is_no_text_in_it(byte_tokenizer: Tokenizer) -> None:
    ordinary = Tokenizer.from_parts(byte_tokenizer.to_json(), {}, {}, {"eos_token_id": ord("e")})
    generator = noisy_generator(ordinary, favoured=[ord("e")])
    result = generator.generate(
        [0], SAMPLED, constraint=constraint_for(generator, regex("[a-z]{5}[a-z]*"))
    )
    assert result.finish_reason == "stop"
    assert len(result.text) >= 5
    assert "e" not in result.text


def test_guesses_leave_a_structured_reply_as_it_is(byte_tokenizer: Tokenizer) -> None:
    items = {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 30, "maxItems": 30}
    vocab_size = byte_tokenizer.vocab_size
    logits = np.linspace(0, 1, vocab_size, dtype=np.float32)  # the same at each place
    generator = Generator(FakeEngine(lambda _: logits, vocab_size, 4096), byte_tokenizer)
    plain = say(generator, json_schema(items), SamplingParams())
    guessed = say(generator, json_schema(items), SamplingParams(prompt_lookup=8))
    assert guessed.tokens == plain.tokens
    assert len(json.loads(plain.text)) == 30
    assert guessed.stats.accepted_tokens > 50


def test_running_on_past_the_end_is_refused(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="ignore_eos"):
        say(noisy_generator(byte_tokenizer), regex("a"), SamplingParams(ignore_eos=True))


def test_a_model_that_cannot_end_a_reply_is_refused(byte_tokenizer: Tokenizer) -> None:
    endless = Tokenizer.from_parts(byte_tokenizer.to_json(), {}, {}, {})
    with pytest.raises(InputError, match="no end-of-turn token"):
        constraint_for(noisy_generator(endless), regex("a"))


@pytest.mark.parametrize("kind", ["word-piece", "metaspace"])
def test_a_tokenizer_of_another_kind_is_refused(kind: str) -> None:
    tokenizer = Tokenizer.from_parts(*tiny_files(kind), {}, {"eos_token_id": 3})
    with pytest.raises(InputError, match="byte-level or SentencePiece"):
        constraint_for(noisy_generator(tokenizer), regex("a"))
