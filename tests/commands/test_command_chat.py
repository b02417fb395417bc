"""`pippin chat`: lines of a pipe, and a terminal with Ctrl-C."""

import os
import re
import signal
import sys
from pathlib import Path

import pexpect
import pytest

from pippin.apps.chat import ChatSession
from pippin.apps.models import load_model
from pippin.commands.terminal import stop_on_interrupt
from support.command_line import one_line, run_pippin

MLX = ("--backend", "mlx", "--offline")


def _replies(model: Path, turns: list[str], **sampling) -> list[str]:
    session = ChatSession(load_model(str(model), "mlx"), sampling=sampling)
    return ["".join(chunk.text for chunk in session.reply(turn)) for turn in turns]


def test_each_line_of_a_pipe_is_a_turn(model: Path) -> None:
    stdin = b"Hello\n\n  \r\nAnd again\r\nno line end"
    run = run_pippin("chat", model, *MLX, "--max-tokens", 8, stdin=stdin)
    wanted = _replies(model, ["Hello", "And again", "no line end"], max_tokens=8)
    assert (run.code, run.err) == (0, "")
    assert run.out == "".join(reply + "\n" for reply in wanted)


def test_statistics_count_what_the_cache_gave(model: Path) -> None:
    run = run_pippin(
        "chat", model, *MLX, "--max-tokens", 4, "--ignore-eos", "--stats", stdin=b"a\nb\n"
    )
    lines = [line for line in run.err.splitlines() if line]
    assert len(lines) == 2
    assert "cached" not in lines[0]
    assert re.search(r"prompt \d+ tokens \(\d\d+ cached\)", lines[1])


def test_prompt_lookup_says_the_same(model: Path) -> None:
    args = (
        "chat",
        model,
        *MLX,
        "--max-tokens",
        40,
        "--ignore-eos",
        "--stats",
        "--logit-bias",
        "97=99",
    )
    plain, looked = (
        run_pippin(*args, *more, stdin=b"aaaa\nbbbb\n") for more in ((), ("--prompt-lookup",))
    )
    assert looked.out == plain.out
    assert "drafted" not in plain.err
    assert re.search(r"\(\d+ of \d+ drafted tokens accepted\)", looked.err)


@pytest.mark.parametrize(
    ("stdin", "part"),
    [
        (b"caf\xe9\n", "the message on stdin is not UTF-8: byte 0xe9 at offset 3"),
        (b"a\0b\n", "the message on stdin has a NUL character at offset 1"),
        (b"x" * 600 + b"\n", "512"),
    ],
)
def test_a_line_that_cannot_be_used_ends_a_pipe(model: Path, stdin: bytes, part: str) -> None:
    run = run_pippin("chat", model, *MLX, stdin=stdin)
    assert part in one_line(run)
    assert run.code == 2


def test_a_model_that_is_not_made_for_chat(model: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in model.iterdir():
        if file.name != "tokenizer_config.json":
            (plain / file.name).symlink_to(file)
    run = run_pippin("chat", plain, *MLX, stdin=b"Hi\n")
    assert "no chat template" in one_line(run)
    assert run.code == 2


def _spawn(model: Path, *args: str) -> pexpect.spawn:
    args = ["-m", "pippin", "chat", str(model), *MLX, *args]
    env = os.environ | {"TERM": "dumb"}
    return pexpect.spawn(sys.executable, args, env=env, timeout=60, echo=False, encoding="utf-8")


def _wait(child: pexpect.spawn) -> int:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def test_the_end_of_input_leaves(model: Path) -> None:
    child = _spawn(model, "--max-tokens", "5")
    child.expect("> ")
    child.sendline("Hi")
    child.expect("\r\n> ")
    child.sendeof()
    assert _wait(child) == 0


def test_interrupt_at_the_prompt_leaves(model: Path) -> None:
    child = _spawn(model)
    child.expect("> ")
    child.sendintr()
    assert _wait(child) == 130


def test_a_terminal_gets_another_try(model: Path) -> None:
    child = _spawn(model, "--max-tokens", "5")
    child.expect("> ")
    child.sendline("x" * 600)
    child.expect("not said: .*512.*\r\n> ")
    child.sendline("Hi")
    child.expect("\r\n> ")
    child.sendeof()
    assert _wait(child) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_the_second_interrupt_is_not_held_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_stops_the_reply_and_the_chat_goes_on(model: Path, tmp_path: Path) -> None:
    # A reply without an end: 200,000 tokens would take minutes.
    slow = tmp_path / "slow"
    slow.mkdir()
    for file in model.iterdir():
        (slow / file.name).symlink_to(file)
    config = (model / "config.json").read_text()
    (slow / "config.json").unlink()
    (slow / "config.json").write_text(
        config.replace('"max_position_embeddings": 512', '"max_position_embeddings": 400000')
    )
    child = _spawn(slow, "--max-tokens", "200000", "--ignore-eos", "--stats")
    child.expect("> ")
    child.sendline("Hi")
    child.expect(r"[^\s]{3}")
    child.kill(signal.SIGINT)
    child.expect(r"reply (\d+) tokens")
    assert int(child.match[1]) < 200000
    child.expect("> ")
    child.sendline("Go on")
    child.expect(r"[^\s]{3}")
    child.kill(signal.SIGINT)
    child.expect(r"prompt \d+ tokens \(\d+ cached\)")
    child.expect("> ")
    child.sendeof()
    assert _wait(child) == 0
