"""`pippin generate`, on a tiny model: what goes to which stream, what reaches the model."""

import json
from pathlib import Path

import pytest

from pippin.apps.models import load_generator, load_model
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import IM_END
from support.command_line import run_pippin

MLX = ("--backend", "mlx", "--offline")


@pytest.fixture(scope="module")
def generator(model: Path):
    return load_generator(str(model), "mlx")


def _expected(generator, prompt, **params) -> str:
    return generator.generate(prompt, SamplingParams(**params)).text


def test_the_answer_alone_is_on_stdout(model: Path, generator) -> None:
    run = run_pippin("generate", model, "Hi", *MLX, "--max-tokens", 12)
    turn = [{"role": "user", "content": "Hi"}]
    assert (run.code, run.err) == (0, "")
    assert run.out == _expected(generator, turn, max_tokens=12) + "\n"


def test_statistics_are_on_stderr(model: Path) -> None:
    run = run_pippin("generate", model, "Hi", *MLX, "--max-tokens", 3, "--ignore-eos", "--stats")
    assert run.err.startswith("prompt 21 tokens, ")
    assert "; reply 3 tokens, " in run.err
    assert run.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "stdin"),
    [
        (["a b"], b""),
        ([], b"a b"),
        (["-"], b"a b\n"),
        (["-"], b"a b\r\n"),
    ],
)
def test_the_prompt_comes_from_the_argument_or_stdin(
    model: Path, generator, invoke, args: list[str], stdin: bytes
) -> None:
    result = invoke("generate", model, *args, *MLX, "--raw", "--max-tokens", 8, stdin=stdin)
    assert result.stdout == _expected(generator, "a b", max_tokens=8) + "\n"


def test_a_second_line_break_is_part_of_the_prompt(model: Path, generator, invoke) -> None:
    result = invoke(
        "generate", model, "-", *MLX, "--raw", "--json", "--max-tokens", 1, stdin=b"a\n\n"
    )
    assert json.loads(result.stdout)["prompt_tokens"] == 2


def test_system_prompt(model: Path, generator, invoke) -> None:
    result = invoke("generate", model, "Hi", *MLX, "--system", "Be brief.", "--max-tokens", 8)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert result.stdout == _expected(generator, turns, max_tokens=8) + "\n"


def test_json_is_one_document_with_all_that_is_known(model: Path, generator, invoke) -> None:
    result = invoke("generate", model, "Hi", *MLX, "--raw", "--max-tokens", 6, "--json")
    document = json.loads(result.stdout)
    wanted = generator.generate("Hi", SamplingParams(max_tokens=6))
    assert document["text"] == wanted.text
    assert document["tokens"] == list(wanted.tokens)
    assert document["finish_reason"] == wanted.finish_reason
    assert (document["model"], document["backend"]) == (str(model), "mlx")
    assert document["prompt_tokens"] == 2
    assert document["reply_tokens"] == len(wanted.tokens)
    for seconds in ("load_seconds", "prefill_seconds", "decode_seconds"):
        assert document[seconds] >= 0


def test_the_same_seed_gives_the_same_text(model: Path, generator, invoke) -> None:
    args = ("generate", model, "Hi", *MLX, "--raw", "--json", "--temperature", "1.5")
    args += ("--max-tokens", 30, "--ignore-eos")
    first, second, third = (
        json.loads(invoke(*args, "--seed", seed).stdout) for seed in ("7", "7", "8")
    )
    assert first["tokens"] == second["tokens"] != third["tokens"]
    drawn = json.loads(invoke(*args).stdout)
    again = json.loads(invoke(*args, "--seed", drawn["seed"]).stdout)
    assert drawn["tokens"] == again["tokens"]


def test_every_sampling_option_reaches_the_model(model: Path, invoke, monkeypatch) -> None:
    given = {
        "temperature": 0.9, "top_k": 30, "top_p": 0.8, "min_p": 0.02, "typical_p": 0.9,
        "xtc_probability": 0.1, "xtc_threshold": 0.2, "repetition_penalty": 1.1,
        "presence_penalty": 0.3, "frequency_penalty": 0.4, "penalty_last_n": 9,
        "dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 99,
        "seed": 4, "max_tokens": 3,
    }  # fmt: skip
    seen = []

    def load(*args, **options):
        loaded = load_model(*args, **options)
        original = loaded.generator.stream
        loaded.generator.stream = lambda tokens, params, **rest: (
            seen.append(params) or original(tokens, params, **rest)
        )
        return loaded

    monkeypatch.setattr("pippin.apps.models.load_model", load)
    options = [x for n, v in given.items() for x in ("--" + n.replace("_", "-"), v)]
    options += ["--stop", "a b", "--stop", "c", "--logit-bias", "65=-inf", "--logit-bias", "66=2"]
    result = invoke("generate", model, "Hi", *MLX, *options, "--ignore-eos")
    assert result.exit_code == 0
    bias = {65: float("-inf"), 66: 2.0}
    assert seen == [SamplingParams(**given, stop=("a b", "c"), logit_bias=bias, ignore_eos=True)]


def test_the_models_own_sampling_is_the_default(model: Path, tmp_path: Path, invoke) -> None:
    folder = tmp_path / "sampled"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").unlink()
    config = {"do_sample": True, "temperature": 1.3, "eos_token_id": IM_END}
    (folder / "generation_config.json").write_text(json.dumps(config))
    args = ("Hi", *MLX, "--raw", "--json", "--max-tokens", 20, "--seed", 1, "--ignore-eos")
    drawn = json.loads(invoke("generate", folder, *args).stdout)
    greedy = json.loads(invoke("generate", folder, *args, "--temperature", 0).stdout)
    asked = json.loads(invoke("generate", model, *args, "--temperature", 1.3).stdout)
    assert drawn["tokens"] == asked["tokens"] != greedy["tokens"]


def test_options_from_the_environment(model: Path, generator) -> None:
    env = {"PIPPIN_GENERATE_MAX_TOKENS": "4", "PIPPIN_GENERATE_RAW": "1"}
    env |= {"PIPPIN_GENERATE_BACKEND": "mlx", "PIPPIN_GENERATE_STOP": "x y"}
    run = run_pippin("generate", model, "Hi", env=env)
    assert run.out == _expected(generator, "Hi", max_tokens=4, stop=("x", "y")) + "\n"


def test_the_exported_folder_says_the_same(folder: Path, model: Path, invoke) -> None:
    args = ("Hi", "--max-tokens", 40, "--ignore-eos", "--json")
    ours = json.loads(invoke("generate", folder, *args).stdout)
    theirs = json.loads(invoke("generate", model, *args, *MLX).stdout)
    assert ours["backend"] == "onnx"
    assert ours["tokens"] == theirs["tokens"]


def test_prompt_lookup_is_counted_and_changes_no_text(folder: Path, invoke) -> None:
    favourite = ("--logit-bias", "97=9", "--temperature", 0.5, "--seed", 3)  # "a", over and over
    args = ("generate", folder, "Hi", "--raw", "--max-tokens", 60, "--ignore-eos", *favourite)
    plain, looked = (
        json.loads(invoke(*args, more, "--json").stdout)
        for more in ("--no-prompt-lookup", "--prompt-lookup")
    )
    assert looked["text"] == plain["text"]
    assert looked["tokens"] == plain["tokens"]
    assert plain["drafted_tokens"] == plain["accepted_tokens"] == 0
    assert 0 < looked["accepted_tokens"] <= looked["drafted_tokens"]
    run = run_pippin(*args, "--prompt-lookup", "--stats")
    counts = "{accepted_tokens} of {drafted_tokens} drafted tokens accepted".format(**looked)
    assert f"; reply 60 tokens ({counts}), " in run.err
    assert "drafted" not in run_pippin(*args, "--no-prompt-lookup", "--stats").err


@pytest.mark.parametrize("backend", [(), MLX], ids=["onnx", "mlx"])
def test_a_draft_changes_no_text(folder: Path, model: Path, invoke, backend) -> None:
    """Both ways, an exported folder drafts; the model itself is on either backend."""
    args = ("generate", model if backend else folder, "Hi", "--max-tokens", 30, "--ignore-eos")
    args += (*backend, "--no-prompt-lookup", "--temperature", 0.5, "--seed", 3, "--json")
    plain, drafted = (json.loads(invoke(*args, *m).stdout) for m in ((), ("--draft", folder)))
    assert drafted["tokens"] == plain["tokens"]


@pytest.mark.slow
def test_the_default_model_answers_alike_on_both_backends(smollm2: Path) -> None:
    args = ("generate", smollm2, "What is the capital of France?", "--json", "--max-tokens", 12)
    ours = json.loads(run_pippin(*args, "--backend", "onnx", "--weights", "fp32").out)
    theirs = json.loads(run_pippin(*args, "--backend", "mlx").out)
    assert (ours["backend"], theirs["backend"]) == ("onnx", "mlx")
    assert ours["tokens"] == theirs["tokens"]
    assert ours["finish_reason"] == "stop"
    assert "Paris" in ours["text"]
