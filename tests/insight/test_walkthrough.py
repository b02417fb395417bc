"""A reply token by token: the same as `generate`, and each step as the sampler's order has it."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from pippin.apps.insight.page_data import walk_data
from pippin.apps.insight.walkthrough import Walkthrough, walk
from pippin.apps.models import load_generator
from pippin.runtime.errors import ContextError, InputError, PippinError
from pippin.runtime.generator import Generator
from pippin.runtime.sampling import SamplingParams
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import IM_END, VOCAB, write_tokenizer
from support.fake_engine import FakeEngine, hashed, scripted

PROMPT = [*b"The capital of France is"]
SETTINGS = {
    "greedy": {},
    "penalties, greedy": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "temperature": {"temperature": 1.3},
    "top-k, top-p, min-p": {"temperature": 1.1, "top_k": 30, "top_p": 0.8, "min_p": 0.05},
    "typical": {"temperature": 0.9, "typical_p": 0.7},
    "xtc": {"temperature": 1.0, "xtc_probability": 0.6, "xtc_threshold": 0.02},
    "all penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "penalty_last_n": 9,
        "dry_multiplier": 0.8,
        "top_p": 0.9,
    },
    "bias": {"temperature": 1.0, "logit_bias": {97: 3.0, 98: float("-inf")}},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def fake(tokenizer: Tokenizer) -> Generator:
    return Generator(FakeEngine(hashed(VOCAB), VOCAB), tokenizer)


@pytest.fixture(scope="module", params=["onnx", "mlx"])
def generator(request: pytest.FixtureRequest) -> Generator:
    name = "chat_folder" if request.param == "onnx" else "chat_model"
    return load_generator(str(request.getfixturevalue(name)), request.param)


def same_as_generate(generator: Generator, params: SamplingParams) -> Walkthrough:
    found, wanted = walk(generator, PROMPT, params), generator.generate(PROMPT, params)
    assert found.tokens == wanted.tokens
    assert (found.text, found.finish_reason) == (wanted.text, wanted.finish_reason)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_the_reply_is_that_of_generate(generator: Generator, name: str) -> None:
    same_as_generate(generator, SamplingParams(**SETTINGS[name], seed=11, max_tokens=10))


@settings(max_examples=40, deadline=None)
@given(
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.4, 1.0, 2.5]),
        top_k=st.sampled_from([0, 1, 7, 500]),
        top_p=st.sampled_from([0.05, 0.6, 1.0]),
        min_p=st.sampled_from([0.0, 0.2]),
        typical_p=st.sampled_from([0.3, 1.0]),
        xtc_probability=st.sampled_from([0.0, 0.5]),
        repetition_penalty=st.sampled_from([1.0, 1.4]),
        dry_multiplier=st.sampled_from([0.0, 0.7]),
        logit_bias=st.dictionaries(
            st.integers(0, VOCAB - 1), st.sampled_from([-5.0, -np.inf, 9.0])
        ),
        stop=st.sampled_from([(), ("a",)]),
        seed=st.integers(0, 2**64 - 1),
        max_tokens=st.integers(1, 8),
    )
)
def test_so_it_is_with_any_parameters(fake: Generator, params: SamplingParams) -> None:
    found = same_as_generate(fake, params)
    for step in found.steps:
        chosen = step.chosen
        assert chosen.cut_by is None
        assert chosen.final > 0
        if step.draw is not None:
            assert step.draw.low <= step.draw.number
            assert step.draw.number < step.draw.high or step.draw.high == 1.0
            assert step.draw.high - step.draw.low == pytest.approx(chosen.final)
        for one in step.candidates:
            assert (one.cut_by is None) == (one.final > 0) or params.temperature == 0
    json.dumps(walk_data(found), allow_nan=False)


def processors(name: str) -> LogitsProcessorList:
    """The same settings as `transformers` applies them, in its order."""
    given = SETTINGS[name]
    makers = {
        "repetition_penalty": RepetitionPenaltyLogitsProcessor,
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
        "typical_p": TypicalLogitsWarper,
    }
    return LogitsProcessorList([make(given[k]) for k, make in makers.items() if k in given])


@pytest.mark.parametrize("name", ["temperature", "top-k, top-p, min-p", "typical"])
def test_what_is_left_is_what_transformers_leaves(fake: Generator, name: str) -> None:
    params = SamplingParams(**SETTINGS[name], seed=5, max_tokens=6)
    found = walk(fake, PROMPT, params, candidates=VOCAB)
    for index, step in enumerate(found.steps):
        tokens = [*PROMPT, *found.tokens[:index]]
        logits = fake.engine.model(tokens)
        scores = processors(name)(torch.tensor([tokens]), torch.tensor(logits)[None])[0]
        wanted = torch.softmax(scores, -1).numpy()
        final = {one.token: one.final for one in step.candidates}
        assert len(final) == VOCAB
        ours = np.array([final[token] for token in range(VOCAB)])
        assert (ours > 0).sum() == step.stages[-1].left
        assert ours == pytest.approx(wanted, abs=2e-6)
        model = torch.softmax(torch.tensor(logits), -1).numpy()
        assert [one.probability for one in step.candidates] == pytest.approx(
            sorted(model, reverse=True), abs=1e-6
        )


def test_each_filter_says_what_it_cut(fake: Generator) -> None:
    settings = {**SETTINGS["top-k, top-p, min-p"], "logit_bias": {98: float("-inf")}}
    found = walk(fake, PROMPT, SamplingParams(**settings, seed=2, max_tokens=4), candidates=VOCAB)
    for step in found.steps:
        names = [stage.name for stage in step.stages]
        assert names == ["logit_bias", "temperature", "top_k", "top_p", "min_p"]
        cut = [one.cut_by for one in step.candidates]
        left = VOCAB
        for stage in step.stages:
            assert stage.removed == cut.count(stage.name)
            left -= stage.removed
            assert stage.left == left
        assert cut.count(None) == left
        assert next(one for one in step.candidates if one.token == 98).cut_by == "logit_bias"
        top_k = step.stages[2]
        assert top_k.left == 30
        assert top_k.settings == {"top_k": 30}


def test_a_token_outside_the_list_is_still_described(fake: Generator) -> None:
    params = SamplingParams(logit_bias={3: 60.0}, max_tokens=1)
    step = walk(fake, PROMPT, params, candidates=2).steps[0]
    assert step.chosen.token == 3
    assert step.chosen.adjusted == pytest.approx(step.chosen.logit + 60)
    assert len(step.candidates) == 2
    assert step.draw is None
    assert [(stage.name, stage.changed) for stage in step.stages] == [("logit_bias", 1)]


def test_positions_and_end(tokenizer: Tokenizer) -> None:
    reply = [*b"Hi!", IM_END]
    engine = FakeEngine(scripted(reply, len(PROMPT), VOCAB), VOCAB)
    found = walk(Generator(engine, tokenizer), PROMPT, SamplingParams(max_tokens=9))
    assert found.tokens == tuple(reply)
    assert (found.text, found.finish_reason) == ("Hi!", "stop")
    assert [step.position for step in found.steps] == [len(PROMPT) - 1 + t for t in range(4)]
    assert [step.chosen.text for step in found.steps] == ["H", "i", "!", "<|im_end|>"]
    assert found.params.seed is not None


def test_what_cannot_be_is_refused(fake: Generator, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="the prompt is empty"):
        walk(fake, [], SamplingParams())
    with pytest.raises(ContextError, match="exceed the context"):
        walk(fake, PROMPT, SamplingParams(max_tokens=512))
    with pytest.raises(InputError, match="candidates is 0"):
        walk(fake, PROMPT, SamplingParams(), candidates=0)
    empty = FakeEngine(lambda _: np.full(VOCAB, np.nan, np.float32), VOCAB)
    with pytest.raises(PippinError, match="all NaN"):
        walk(Generator(empty, tokenizer), PROMPT, SamplingParams(max_tokens=2))


def test_json_keeps_what_was_set(fake: Generator) -> None:
    params = SamplingParams(temperature=0.7, logit_bias={5: float("-inf")}, seed=9, max_tokens=2)
    data = walk_data(walk(fake, PROMPT, params))
    assert data["params"] == {
        "temperature": 0.7,
        "logit_bias": {"5": "-inf"},
        "seed": 9,
        "max_tokens": 2,
    }
    assert data["steps"] == [asdict(step) for step in walk(fake, PROMPT, params).steps]


@pytest.mark.slow
def test_on_the_default_model(tmp_path: Path) -> None:
    from support.wheels import smollm2_gguf

    generator = load_generator(str(smollm2_gguf()), "onnx")
    prompt = generator.encode([{"role": "user", "content": "Name three apples."}])
    for values in ({}, {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "seed": 4}):
        params = SamplingParams(**values, max_tokens=40)
        found = walk(generator, prompt, params)
        assert found.tokens == generator.generate(prompt, params).tokens
