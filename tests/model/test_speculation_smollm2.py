"""Drafts on SmolLM2: the same text; in floats, but for choices that rounding decides."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.folder import open_folder
from pippin.runtime.generator import Generator
from pippin.runtime.ort_engine import OrtEngine
from pippin.runtime.sampling import SamplingParams
from pippin.runtime.tokenizer import Tokenizer
from support.drafts import Scripted, plain, speculated
from support.wheels import smollm2_gguf

pytestmark = pytest.mark.slow

LENGTH = 32  # tokens of a reply
ROUNDING = 1e-3  # × the largest logit: one call with several tokens against a call each
PARAGRAPH = (
    "The lighthouse was built in 1828 by Robert Stevenson. It stands 20 metres high and its light "
    "can be seen from 35 kilometres away. Keepers lived there until 1998."
)
PROMPTS = {
    "repeat": f"Repeat the following text word for word:\n\n{PARAGRAPH}",
    "quote": f"When was the lighthouse built? Quote the text:\n\n{PARAGRAPH}",
    "code": "Rename x to total:\n\nx = 0\nfor n in values:\n    x = x + n\nprint(x)",
    "question": "Why is the sky blue?",
    "story": "Tell me a story about a dog who finds a map.",
    "list": "Name five fruits, one on each line.",
}
PARAMS = {
    "greedy": SamplingParams(repetition_penalty=1.1),
    "sampled": SamplingParams(temperature=0.7, top_p=0.9, seed=7),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "q4"
    return export_folder(open_checkpoint(smollm2_gguf()), out, weights="q4")


@pytest.fixture(scope="module", params=["int8", "float"])
def generator(request, folder) -> Generator:
    """On the graph with this KV cache."""
    engine = OrtEngine(open_folder(folder, kv=request.param))
    return Generator(engine, Tokenizer.from_folder(folder))


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_the_text_is_that_of_plain_decoding(generator, prompt, params):
    """With prompt lookup; with drafts that are right for two tokens, then wrong, all along."""
    engine = generator.engine
    prompt = generator.encode([{"role": "user", "content": prompt}])
    wanted, _ = plain(engine, prompt, params, LENGTH)
    for drafter in (None, Scripted(wanted, 2, engine.info.vocab_size)):
        tokens, _, lookup = speculated(engine, prompt, params, LENGTH, 4, drafter)
        assert drafter is None or lookup.accepted_tokens > LENGTH / 3
        assert tokens == wanted or not engine.info.rows_alike
        if tokens != wanted:
            same = next(i for i in range(LENGTH) if tokens[i] != wanted[i])
            check_rounding_alone(engine, prompt, wanted[:same], params, wanted[same], tokens[same])


def test_many_seeds_give_the_same_text_with_prompt_lookup(generator):
    if not generator.engine.info.rows_alike:
        pytest.skip("the choices of so many seeds may be as close as rounding")
    accepted = 0
    for prompt in PROMPTS.values():
        for seed in range(4):
            params = SamplingParams(temperature=0.8, seed=seed, max_tokens=40, ignore_eos=True)
            messages = [{"role": "user", "content": prompt}]
            looked = generator.generate(messages, params)
            wanted = generator.generate(messages, replace(params, prompt_lookup=0))
            assert looked.tokens == wanted.tokens
            accepted += looked.stats.accepted_tokens
    assert accepted > 50


def check_rounding_alone(engine, prompt, reply, params, one, other):
    """Both ways to the logits after `reply` differ by rounding, and choosing greedily the two
    tokens by no more than that."""
    steps, calls = engine.open(), engine.open()
    for session in (steps, calls):
        session.prefill(prompt)
    stepped = np.array([steps.step(token) for token in reply])[-1]
    called = calls.verify(reply)[-1]
    limit = ROUNDING * np.abs(stepped).max()
    assert np.abs(stepped - called).max() <= limit
    if params.temperature == 0:
        assert abs(stepped[one] - stepped[other]) <= 2 * params.repetition_penalty * limit
