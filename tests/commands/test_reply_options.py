"""What the user's options, the model's own and our defaults make of a reply."""

from pathlib import Path

import pytest

from pippin.apps.models import Model
from pippin.apps.reply import DEFAULT_MAX_TOKENS, as_prompt, sampling_params, stream_reply
from pippin.runtime.errors import ContextError, InputError
from pippin.runtime.generator import Generator
from pippin.runtime.sampling import SamplingParams
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import VOCAB, write_tokenizer
from support.fake_engine import FakeEngine, scripted

CHATTY = {"do_sample": True, "temperature": 0.7, "top_k": 40, "top_p": 0.9}


@pytest.mark.parametrize(
    ("config", "given", "wanted"),
    [
        ({}, {}, {}),
        ({}, {"seed": 3, "stop": ("a",)}, {"seed": 3, "stop": ("a",)}),
        (CHATTY, {}, {"temperature": 0.7, "top_k": 40, "top_p": 0.9}),
        (CHATTY, {"temperature": 0}, {"temperature": 0, "top_k": 40, "top_p": 0.9}),
        (CHATTY, {"top_k": 0}, {"temperature": 0.7, "top_k": 0, "top_p": 0.9}),
        (CHATTY | {"do_sample": False}, {}, {}),
        ({"temperature": 0.6, "min_p": 0.1}, {}, {"temperature": 0.6, "min_p": 0.1}),
        ({"do_sample": True}, {}, {"temperature": 1.0}),
        ({"do_sample": True, "top_p": None}, {}, {"temperature": 1.0}),
        ({"repetition_penalty": 1.1}, {}, {"repetition_penalty": 1.1}),
        ({"top_p": 0.5}, {}, {}),
        ({}, {"top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}),
        ({}, {"top_p": 0.5, "temperature": 0}, {"temperature": 0, "top_p": 0.5}),
        (CHATTY, {"min_p": 0.2}, {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.2}),
        ({"eos_token_id": [1], "max_length": 20}, {}, {}),
    ],
)
def test_sampling_of_the_user_over_that_of_the_model(
    config: dict, given: dict, wanted: dict
) -> None:
    assert sampling_params(config, given) == SamplingParams(**wanted)


def test_values_out_of_range_are_refused_whoever_gave_them() -> None:
    with pytest.raises(InputError, match=r"top_p is 1\.5; it must be above 0, up to 1"):
        sampling_params({}, {"top_p": 1.5})
    with pytest.raises(InputError, match=r"temperature is -1"):
        sampling_params({"temperature": -1}, {})


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer(tmp_path))


def _model(tokenizer: Tokenizer, context: int) -> Model:
    """Says "." for ever."""
    engine = FakeEngine(scripted([ord(".")], 0, VOCAB), VOCAB, context)
    return Model(Generator(engine, tokenizer), {})


@pytest.mark.parametrize(
    ("context", "given", "length"),
    [
        (5000, {}, DEFAULT_MAX_TOKENS),
        (100, {}, 97),
        (100, {"max_tokens": 5}, 5),
        (5000, {"max_tokens": 2000}, 2000),
        (4, {}, 1),
    ],
)
def test_a_reply_ends_by_default_after_what_fits(
    tokenizer: Tokenizer, context: int, given: dict, length: int
) -> None:
    chunks = list(stream_reply(_model(tokenizer, context), "abc", given))
    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].stats.reply_tokens == length


@pytest.mark.parametrize(("context", "given"), [(3, {}), (100, {"max_tokens": 98})])
def test_what_does_not_fit_is_refused(tokenizer: Tokenizer, context: int, given: dict) -> None:
    with pytest.raises(ContextError, match=str(context)):
        stream_reply(_model(tokenizer, context), "abc", given)


def test_a_prompt_becomes_a_turn_where_there_is_a_template(tokenizer: Tokenizer) -> None:
    generator = _model(tokenizer, 100).generator
    assert as_prompt(generator, "a") == [{"role": "user", "content": "a"}]
    assert as_prompt(generator, "a", "b") == [
        {"role": "system", "content": "b"},
        {"role": "user", "content": "a"},
    ]
    assert as_prompt(generator, "a", raw=True) == "a"
    with pytest.raises(InputError, match="a raw prompt has no place for a system prompt"):
        as_prompt(generator, "a", "b", raw=True)
    tokenizer.chat_template = None
    assert as_prompt(generator, "a") == "a"
    with pytest.raises(InputError, match="a model without a chat template has no place"):
        as_prompt(generator, "a", "b")
