"""Structured output on both engines: the same text for the same seed, guesses or none."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pippin.apps.models import load_generator
from pippin.apps.structured import choice, constraint_for, json_schema, regex
from pippin.runtime.generator import Generator
from pippin.runtime.sampling import SamplingParams
from support.command_line import make_chat_model, one_line, run_pippin
from support.wheels import smollm2_gguf

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "é"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": json_schema(PERSON),
    "regex": regex("[A-Z][a-z]{2,6}, [0-9]{2}"),
    "choice": choice(["yes", "no", "yes and no"]),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat", vocab_size=300)


@pytest.fixture(scope="module")
def generators(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Generator]:
    from pippin.export.folder import export_folder
    from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint

    out = tmp_path_factory.mktemp("exports") / "tiny-onnx"
    folder = export_folder(open_checkpoint(model), out, weights="fp32")
    return {"mlx": load_generator(str(model), "mlx"), "onnx": Generator.from_folder(folder)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS.keys())
def test_engines_say_the_same_within_a_grammar(generators, grammar, temperature: float) -> None:
    results = []
    for generator in generators.values():
        constraint = constraint_for(generator, grammar)
        for guesses in (0, 6):
            params = SamplingParams(
                temperature=temperature, seed=5, max_tokens=300, prompt_lookup=guesses
            )
            results.append(generator.generate("name, age", params, constraint=constraint))
    assert {result.finish_reason for result in results} == {"stop"}
    assert len({result.tokens for result in results}) == 1
    if grammar is GRAMMARS["schema"]:
        Draft202012Validator(PERSON).validate(json.loads(results[0].text))


@pytest.mark.parametrize(
    ("options", "known"),
    [
        (["--schema", json.dumps(PERSON)], lambda text: json.loads(text)["age"] <= 150),
        (["--choice", "yes", "--choice", "no"], ["yes\n", "no\n"].__contains__),
        (["--regex", "[0-9]{4}"], lambda text: text.strip().isdigit() and len(text) == 5),
    ],
    ids=["schema", "choice", "regex"],
)
def test_generate_prints_what_was_asked_for(model: Path, options, known) -> None:
    run = run_pippin("generate", model, "Hi", "--backend", "mlx", "--offline", *options)
    assert (run.code, run.err) == (0, "")
    assert known(run.out)


def test_generate_says_that_a_reply_is_incomplete(model: Path) -> None:
    args = ("generate", model, "Hi", "--backend", "mlx", "--offline", "--max-tokens", 3)
    run = run_pippin(*args, "--regex", "[a-z]{9}")
    assert run.code == 0
    assert "incomplete (length)" in run.err
    document = json.loads(run_pippin(*args, "--json-object", "--json").out)
    assert document["finish_reason"] == "length"
    assert document["text"].startswith("{")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--schema", "absent.json"], "'absent.json' cannot be read"),
        (["--schema", '{"not": {}}'], '"not"'),
        (["--regex", "(?=a)"], "look-around"),
        (["--choice", ""], "at least one character"),
        (["--choice", "a", "--json-object"], "--json-object and --choice exclude each other"),
    ],
    ids=["file", "schema", "regex", "choice", "two"],
)
def test_generate_refuses_before_the_model_is_looked_for(options, named: str) -> None:
    run = run_pippin("generate", "no/such-model", "Hi", *options)
    assert run.code == 2
    assert named in one_line(run)


def test_the_default_model_fills_in_a_schema() -> None:
    generator = load_generator(str(smollm2_gguf()), "onnx")
    constraint = constraint_for(generator, json_schema(PERSON | {"title": "Person"}))
    prompt = [{"role": "user", "content": "Describe Anna, who is 41, as JSON."}]
    for seed in range(3):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=200)
        result = generator.generate(prompt, params, constraint=constraint)
        assert result.finish_reason == "stop"
        Draft202012Validator(PERSON).validate(json.loads(result.text))
