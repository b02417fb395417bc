"""Bad input ends in one clear line on stderr, nothing on stdout, and exit code 2."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support.command_line import PIPPIN, one_line, run_pippin


@pytest.fixture
def broken(model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may break."""
    return Path(shutil.copytree(model, tmp_path / "broken"))


def _config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _weights(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def _truncate(file: Path, share: float) -> None:
    os.truncate(file, int(file.stat().st_size * share))


def _write_gguf(file: Path) -> None:
    """A llama GGUF with one tensor, as the public writer writes it."""
    from gguf import GGUFWriter

    writer = GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_tensor("token_embd.weight", np.zeros((32, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
BREAKAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated weights": (lambda f: _truncate(f / "model.safetensors", 0.5), "is truncated"),
    "truncated header": (lambda f: _truncate(f / "model.safetensors", 0.0005), "is truncated"),
    "weights that are none": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 999),
        "model.safetensors",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no *.safetensors"),
    "unknown architecture": (lambda f: _config(f, model_type="llamb"), "'llamb'"),
    "unimplemented key": (lambda f: _config(f, sliding_window=64), "'sliding_window'"),
    "unimplemented value": (lambda f: _config(f, hidden_act="tanh3"), "hidden_act = 'tanh3'"),
    "damaged config": (lambda f: (f / "config.json").write_text("{"), "not valid JSON at line 1"),
    "no config": (lambda f: (f / "config.json").unlink(), "is not a model directory"),
    "missing weight": (lambda f: _weights(f, lambda w: w.pop(Q_PROJ)), f"lacks {Q_PROJ}"),
    "extra weight": (
        lambda f: _weights(f, lambda w: w.update({"model.extra": w[Q_PROJ]})),
        "has model.extra, which",
    ),
    "wrong shape": (
        lambda f: _weights(f, lambda w: w.update({Q_PROJ: w[Q_PROJ][:-8].copy()})),
        f"{Q_PROJ} has shape [88, 48]; its config.json calls for [96, 48]",
    ),
    "damaged tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json"),
}


@pytest.mark.parametrize("backend", ["mlx", "onnx"])
@pytest.mark.parametrize("what", BREAKAGES)
def test_a_damaged_checkpoint(broken: Path, home: Path, what: str, backend: str) -> None:
    damage, part = BREAKAGES[what]
    damage(broken)
    run = run_pippin("generate", broken, "Hi", "--backend", backend)
    assert part in one_line(run)
    assert run.code == 2
    assert not list(home.glob("exports/*/*"))


@pytest.mark.parametrize("what", [n for n in BREAKAGES if n != "damaged tokenizer"])
def test_exporting_a_damaged_checkpoint(broken: Path, tmp_path: Path, what: str) -> None:
    damage, part = BREAKAGES[what]
    damage(broken)
    before = sorted(tmp_path.iterdir())
    run = run_pippin("export", broken, "-o", tmp_path / "out")
    assert part in one_line(run)
    assert run.code == 2
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("share", [0.98, 0.5, 0.2, 0.01])
def test_a_truncated_gguf(tmp_path: Path, share: float) -> None:
    file = tmp_path / "model.gguf"
    _write_gguf(file)
    _truncate(file, share)
    for args in (["generate", file, "Hi"], ["inspect", file], ["export", file]):
        run = run_pippin(*args, cwd=tmp_path)
        assert "truncated" in one_line(run)
        assert run.code == 2
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no-such-model", "there is no model 'no-such-model'"),
        ("smolm2", "did you mean 'smollm2'?"),
        ("../nowhere", "../nowhere"),
        ("", "there is no model ''"),
        ("pypi:name", "pypi:NAME==VERSION"),
        ("x\x1b[31mred", "x\\x1b[31mred"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "inspect", "pull", "bench", "export", "chat"])
def test_an_unknown_name(name: str, part: str, command: str) -> None:
    args = [name, "Hi"] if command == "generate" else [name]
    run = run_pippin(command, *args)
    assert part in one_line(run)
    assert run.code == 2


@pytest.mark.parametrize("command", ["generate", "inspect", "export", "verify", "chat", "bench"])
def test_a_directory_that_is_no_model(tmp_path: Path, command: str) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    args = [tmp_path, "Hi"] if command == "generate" else [tmp_path]
    run = run_pippin(command, *args)
    assert str(tmp_path) in one_line(run)
    assert run.code == 2


@pytest.mark.parametrize(
    ("stdin", "part"),
    [
        (b"", "the prompt is empty"),
        (b"\n", "the prompt is empty"),
        (b"a\0b", "the prompt on stdin has a NUL character at offset 1"),
        (b"a\xffb", "the prompt on stdin is not UTF-8: byte 0xff at offset 1"),
        (b"caf\xc3", "the prompt on stdin is not UTF-8: byte 0xc3 at offset 3"),
        (b"\xed\xa0\x80", "the prompt on stdin is not UTF-8: byte 0xed at offset 0"),
    ],
)
def test_stdin_that_is_no_prompt(stdin: bytes, part: str) -> None:
    run = run_pippin("generate", "smollm2", "--offline", stdin=stdin)
    assert part in one_line(run)
    assert run.code == 2


@pytest.mark.skipif(os.name == "nt", reason="POSIX shell")
def test_a_stdin_that_is_closed() -> None:
    command = shlex.join([*PIPPIN, "generate", "smollm2", "-"]) + " <&-"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"pippin: no prompt; ")


def test_an_empty_argument() -> None:
    run = run_pippin("generate", "smollm2", "", "--offline")
    assert "the prompt is empty" in one_line(run)
    assert run.code == 2


@pytest.mark.skipif(os.name == "nt", reason="arguments are Unicode there")
def test_an_argument_that_is_not_utf8() -> None:
    done = subprocess.run(
        [*PIPPIN, "generate", "smollm2", b"caf\xe9"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == b"pippin: the prompt is not UTF-8 at offset 3; convert it first\n"


@pytest.mark.parametrize("backend", ["mlx", "onnx"])
def test_a_prompt_longer_than_the_context(model: Path, backend: str) -> None:
    run = run_pippin("generate", model, "x" * 600, "--backend", backend)
    line = one_line(run)
    assert "512" in line
    assert "621" in line or "619" in line
    assert run.code == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", "-0.1"),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("top-k", "-1"),
        ("top-p", "0"),
        ("top-p", "1.1"),
        ("min-p", "2"),
        ("typical-p", "0"),
        ("xtc-probability", "-1"),
        ("repetition-penalty", "0"),
        ("presence-penalty", "2.5"),
        ("frequency-penalty", "-3"),
        ("dry-base", "0.5"),
        ("dry-allowed-length", "0"),
        ("seed", "-1"),
        ("max-tokens", "0"),
    ],
)
def test_a_sampling_value_out_of_range(option: str, value: str) -> None:
    run = run_pippin("generate", "smollm2", "Hi", "--offline", f"--{option}", value)
    name = option.replace("-", "_")
    assert one_line(run).startswith(f"{name} is ")
    assert run.code == 2


@pytest.mark.parametrize(("option", "value"), [("temperature", "warm"), ("top-k", "1.5")])
def test_a_sampling_value_that_is_no_number(option: str, value: str) -> None:
    run = run_pippin("generate", "smollm2", "Hi", f"--{option}", value)
    assert f"--{option}" in one_line(run)
    assert run.code == 2


def test_an_empty_stop_text(model: Path) -> None:
    run = run_pippin("generate", model, "Hi", "--stop", "")
    assert one_line(run).startswith("stop is ")
    assert run.code == 2


def test_a_bias_for_a_token_that_is_not_there(model: Path) -> None:
    run = run_pippin("generate", model, "Hi", "--backend", "mlx", "--logit-bias", "999=1")
    assert "999" in one_line(run)
    assert run.code == 2


def test_an_output_directory_that_is_not_ours(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    for extra in ([], ["--overwrite"]):
        run = run_pippin("export", model, "-o", out, *extra)
        assert str(out) in one_line(run)
        assert run.code == 2
    assert [file.name for file in out.iterdir()] == ["precious.txt"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out"]


def test_an_output_that_is_a_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    run = run_pippin("export", model, "-o", out, "--overwrite")
    assert str(out) in one_line(run)
    assert run.code == 2
    assert out.read_text() == "mine"


def test_offline_says_what_to_do(home: Path) -> None:
    run = run_pippin("generate", "smollm2", "Hi", "--offline")
    assert "`pippin pull smollm2`" in one_line(run)
    assert run.code == 2
    assert not home.exists() or not list(home.rglob("*.gguf"))


def test_an_exported_folder_on_mlx(folder: Path) -> None:
    run = run_pippin("generate", folder, "Hi", "--backend", "mlx")
    assert "is an exported folder, which onnxruntime runs" in one_line(run)
    assert run.code == 2


@pytest.mark.parametrize("option", [("--weights", "q4"), ("--threads", "1")])
def test_options_of_onnx_with_mlx(model: Path, option: tuple[str, str]) -> None:
    run = run_pippin("generate", model, "Hi", "--backend", "mlx", *option)
    assert f"{option[0]} is for --backend onnx" in one_line(run)
    assert run.code == 2


def test_removing_without_a_terminal_to_ask_on() -> None:
    run = run_pippin("rm", "smollm2")
    assert "--yes" in one_line(run)
    assert run.code == 2
    run = run_pippin("rm", "smollm2", "--yes")
    assert "smollm2 is not in the store" in one_line(run)
    assert run.code == 2


@pytest.mark.parametrize("context", ["0", "-5", "513"])
def test_a_context_that_the_model_does_not_have(model: Path, context: str) -> None:
    run = run_pippin("inspect", model, "--context", context)
    assert f"a context of {context} tokens was asked for" in one_line(run)
    assert run.code == 2


def test_rounds_below_one(model: Path) -> None:
    run = run_pippin("bench", model, "--rounds", "0")
    assert "0 rounds" in one_line(run)
    assert run.code == 2
