"""`pippin generate` and `pippin.load` with an encoder-decoder, against transformers' generate."""

import json

import pytest
import torch

from pippin.apps.models import load_generator
from pippin.runtime.errors import InputError
from pippin.runtime.generator import Generator
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import IM_END, VOCAB, write_tokenizer
from support.command_line import one_line, run_pippin
from support.drafts import Scripted, plain, speculated
from support.encoders import SEQ2SEQ, make_stack

PROMPT = "translate: Hello, world"
BANNED = 70


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module", params=["t5", "marian"])
def stack(request, tmp_path_factory):
    """A model of bytes that is not made for chat; tests must not change it."""
    kind, config = SEQ2SEQ[request.param]
    changes = {"vocab_size": VOCAB, "eos_token_id": IM_END, "decoder_start_token_id": 0}
    if request.param == "t5":
        # Where the stacks differ in depth, transformers 5.24 cannot generate with a cache.
        changes["num_decoder_layers"] = config["num_layers"]
    if request.param == "marian":
        changes |= {"forced_eos_token_id": IM_END, "pad_token_id": 0}
        changes |= {"max_position_embeddings": 100}
    folder = tmp_path_factory.mktemp("generate") / request.param
    made = make_stack(folder, kind, config | changes, seed=3)
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    generation = {"eos_token_id": IM_END, "decoder_start_token_id": 0, "bad_words_ids": [[BANNED]]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return made


def theirs(stack, prompt: str, count: int) -> list[int]:
    with torch.inference_mode():
        tokens = stack.reference.generate(
            input_ids=torch.tensor([list(prompt.encode())]),
            max_new_tokens=count,
            min_new_tokens=count,  # both are to go on past the end
            do_sample=False,
            num_beams=1,
            bad_words_ids=[[BANNED]],
            forced_eos_token_id=None,
        )
    return tokens[0, 1:].tolist()


@pytest.mark.parametrize("backend", ["mlx", "onnx"])
def test_greedy_tokens_are_those_of_transformers(backend, stack):
    generator = load_generator(str(stack.path), backend, weights={"onnx": "fp32"}.get(backend))
    bias = {IM_END: float("-inf")}  # which is how transformers goes on past the end
    params = SamplingParams(max_tokens=24, ignore_eos=True, logit_bias=bias)
    found = generator.generate(PROMPT, params)
    assert list(found.tokens) == theirs(stack, PROMPT, 24)
    assert found.finish_reason == "length"
    assert found.stats.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("right", [0, 2, 99])
@pytest.mark.parametrize("backend", ["mlx", "onnx"])
def test_prompt_lookup_leaves_the_reply_as_it_is(backend, right, stack):
    weights = {"onnx": "fp32"}.get(backend)
    engine = load_generator(str(stack.path), backend, weights=weights).engine
    prompt, params = list(PROMPT.encode()), SamplingParams(temperature=0.7, seed=3)
    wanted, _ = plain(engine, prompt, params, 24)
    drafter = Scripted(wanted, right, VOCAB)
    tokens, session, lookup = speculated(engine, prompt, params, 24, 5, drafter)
    assert tokens == wanted
    assert session.length == len(prompt) + 23
    assert (lookup.accepted_tokens > 0) == (right > 0)


def test_the_command_says_the_same_on_both_backends(stack, tmp_path):
    options = ("--max-tokens", 20, "--temperature", 0.7, "--seed", 5)
    out = tmp_path / "out"
    assert run_pippin("export", stack.path, "-o", out, "--weights", "fp32").code == 0
    mlx = run_pippin("generate", stack.path, PROMPT, *options, "--backend", "mlx")
    onnx = run_pippin("generate", out, PROMPT, *options)
    assert mlx.code == onnx.code == 0
    assert mlx.out == onnx.out
    portable = Generator.from_folder(out, threads=1)
    params = SamplingParams(max_tokens=20, temperature=0.7, seed=5)
    assert portable.generate(PROMPT, params).text + "\n" == onnx.out


def test_a_checkpoint_is_exported_once(stack, tmp_path):
    for _ in range(2):
        run = run_pippin("generate", stack.path, PROMPT, "--max-tokens", 3, "--backend", "onnx")
        assert run.code == 0
    (folder,) = (tmp_path / "home" / "exports").glob("*/*")
    assert folder.name.startswith("q4-")


def test_what_only_decoders_have_is_refused(stack):
    run = run_pippin("generate", stack.path, "hi", "--backend", "mlx", "--kv-bits", 4)
    assert "--kv-bits" in one_line(run)
    with pytest.raises(InputError, match="chat template"):
        load_generator(str(stack.path), "mlx").generate([{"role": "user", "content": "hi"}])
