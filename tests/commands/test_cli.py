"""The command line itself: help, exit codes, streams, laziness."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version

import click
import pytest

from pippin import cli
from support.command_line import PIPPIN, one_line, run_pippin

HEAVY = (
    "gguf",
    "huggingface_hub",
    "jinja2",
    "mlx",
    "numpy",
    "onnx",
    "onnxruntime",
    "rich",
    "starlette",
    "tokenizers",
    "uvicorn",
)
COMMANDS = [
    *("ask", "bench", "chat", "completion", "doctor", "embed", "eval", "explain", "export"),
    *("generate", "inspect", "list", "parity", "pull", "quantize", "rm", "serve", "verify"),
]


@pytest.mark.parametrize("args", [[], *([name] for name in COMMANDS)])
def test_help_names_what_there_is_and_imports_nothing_heavy(args: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pippin", *args, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert imported & {"pippin.cli", "click"} == {"pippin.cli", "click"}
    assert not [name for name in imported if name.partition(".")[0] in HEAVY]
    if args:
        assert done.stdout.startswith(f"Usage: pippin {args[0]} ")
    else:
        listed = done.stdout.partition("Commands:\n")[2].split("\n")
        assert sorted(line.split()[0] for line in listed if line) == COMMANDS
        assert "PIPPIN_GENERATE_MAX_TOKENS" in done.stdout


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import pippin, sys; print(sorted(m for m in sys.modules if m.startswith('pippin')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['pippin']\n"


def test_public_names_are_there() -> None:
    import pippin

    for name in pippin.__all__:
        assert getattr(pippin, name) is not None
        assert name in dir(pippin)
    assert callable(pippin.load)
    assert callable(pippin.export)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = pippin.lode


def test_version() -> None:
    run = run_pippin("--version")
    assert (run.code, run.out, run.err) == (0, f"pippin {version('pippin')}\n", "")


def test_version_is_not_taken_from_the_environment() -> None:
    assert run_pippin("list", env={"PIPPIN_VERSION": "1.2"}).code == 0


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["genrate"], "no command 'genrate'; did you mean 'generate'?"),
        (["xyzzy"], "no command 'xyzzy'; choose from chat, generate,"),
        (["generate"], "Missing argument 'MODEL'"),
        (["list", "--jsn"], "--jsn"),
        (["list", "--jsn"], "see 'pippin list --help'"),
        (["generate", "smollm2", "hi", "--backend", "cuda"], "'cuda' is not one of"),
        (["generate", "smollm2", "hi", "there"], "unexpected extra argument (there)"),
        (["generate", "smollm2", "hi", "--logit-bias", "x"], "'x' does not read ID=BIAS"),
    ],
)
def test_wrong_usage_is_one_line(args: list[str], part: str) -> None:
    run = run_pippin(*args)
    assert part in one_line(run)
    assert run.code == 2


def test_options_come_from_the_environment(tmp_path) -> None:
    run = run_pippin("list", env={"PIPPIN_LIST_JSON": "1", "PIPPIN_HOME": str(tmp_path)})
    assert (run.code, run.out, run.err) == (0, "[]\n", "")
    run = run_pippin("generate", "nope", "hi", env={"PIPPIN_GENERATE_TOP_P": "7"})
    assert "top_p is 7.0" in one_line(run)


def _main(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The exit code of a `main` whose command raises `error`."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli.cli, "invoke", fail)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # this process keeps its own
    with pytest.raises(SystemExit) as left:
        cli.main(["list"])
    return left.value.code


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (cli.InputError("bad\nfile"), 2, "pippin: bad file\n"),
        (cli.InputError("name \x1b[31m\udcff"), 2, "pippin: name \\x1b[31m\\udcff\n"),
        (cli.PippinError("failed"), 1, "pippin: failed\n"),
        (cli.Cancelled("stopped"), 130, "pippin: stopped\n"),
        (OSError(28, "No space left", "/x"), 2, "pippin: no space left to write /x: "),
        (PermissionError(13, "Permission denied", "/x"), 1, "pippin: cannot access /x: Permission"),
        (MemoryError(), 1, "pippin: not enough memory"),
        (ZeroDivisionError("by zero"), 1, "pippin: unexpected ZeroDivisionError: by zero; PIPPIN"),
        (KeyboardInterrupt(), 130, "\n"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
    ],
)
def test_exceptions_become_a_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    monkeypatch.delenv("PIPPIN_DEBUG", raising=False)
    # click exchanges both streams when it meets a broken pipe
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    assert _main(monkeypatch, error) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(line)
    assert err.count("\n") == line.count("\n") or err.count("\n") == 1


def test_debug_lets_the_traceback_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPPIN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        _main(monkeypatch, ZeroDivisionError())


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*PIPPIN, "--help"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*PIPPIN, "--help"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"pippin: no space left")
    assert done.stderr.count(b"\n") == 1


def test_characters_that_the_terminal_lacks_do_not_end_a_run() -> None:
    run = run_pippin("🙂", env={"PYTHONIOENCODING": "ascii"})
    assert run.err.startswith("pippin: no command '?'")
    assert run.code == 2


@pytest.mark.parametrize(("args", "named"), [([], "generate"), (["eval"], "perplexity")])
def test_without_a_command_the_help_is_shown_as_help(args: list[str], named: str) -> None:
    run = run_pippin(*args)
    lines = run.err.splitlines()
    assert lines[0].startswith("Usage: pippin")
    assert any(line.strip().startswith(named) for line in lines)
    assert (run.out, run.code) == ("", 2)


@pytest.mark.parametrize("name", COMMANDS)
def test_variables_are_named_after_command_and_option(name: str) -> None:
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command.name == name
    for option in command.params:
        if isinstance(option, click.Option):
            prefix = f"PIPPIN_{name.upper()}_"
            variable = option.envvar or prefix + option.name.upper()
            spelled = [opt.strip("-").replace("-", "_").upper() for opt in option.opts]
            assert variable in [prefix + opt for opt in spelled]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interrupt_while_reading_stdin() -> None:
    child = subprocess.Popen(
        [*PIPPIN, "generate", "smollm2", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(2)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out, err.strip()) == (130, b"", b"")
