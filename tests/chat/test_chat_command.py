"""`pippin chat` itself at a terminal, with a model of its own."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pippin.apps.chat.saved import ChatStore
from support.command_line import one_line, run_pippin
from support.terminal import CTRL_D, Terminal, chat_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
Start = Callable[..., Terminal]

MLX = ("--backend", "mlx", "--offline")
FLAT = ("--ignore-eos", "--max-tokens", "6", "--seed", "7", "--temperature", "0.9")


def test_settings_models_and_resuming(chat: Start, model: Path, store: ChatStore) -> None:
    first = chat(model, *MLX, *FLAT, "--system", "Be brief.", "--keep-cache")
    first.say("Hello")
    first.say("/set temperature 9x")
    assert "temperature is '9x'; it must be a number" in first.lines
    first.say("/set top_p 0.5")
    assert "top_p 0.5" in first.lines
    first.say("/set top_p 1.5")
    assert "top_p is 1.5; it must be above 0, up to 1" in first.lines
    first.say("/system")
    assert "system prompt: Be brief." in first.lines
    first.say("/stats")
    assert any(line.startswith("memory: weights") for line in first.lines)
    first.say("/model nowhere/to-be-found")
    assert "is neither a path here nor in the store" in first.text.replace("\n", " ")
    first.say(f"/model {model}")
    first.say("Go on")
    first.send(CTRL_D)
    assert first.end() == 0
    name = store.find(None)
    assert store.cache_path(name).exists()
    saved = store.read(name)
    assert saved.loading["name"] == str(model)
    assert saved.sampling["top_p"] == 0.5

    again = chat("--resume", "--offline", "--stats")  # the model comes from the conversation
    again.prompt()
    assert "> Go on" in again.lines
    again.say("And now?")
    assert re.search(r"prompt \d+ tokens \(\d+ cached\)", again.text)
    again.send(CTRL_D)
    assert again.end() == 0
    assert len(store.read(name).messages) == 7


def test_replies_held_to_a_schema(
    chat: Start, model: Path, tmp_path: Path, store: ChatStore
) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema |= {"additionalProperties": False}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    terminal = chat(model, *MLX, "--max-tokens", "60", cwd=tmp_path)
    terminal.say("/json none.json")
    assert "the schema 'none.json' cannot be read" in terminal.text
    terminal.say("/json schema.json")
    assert "replies are held to a JSON schema" in terminal.lines
    terminal.say("Is it?")
    reply = json.loads(store.read(store.find(None)).messages[1]["content"])
    assert reply.keys() == {"ok"}
    terminal.say("/json off")
    assert "replies are free" in terminal.lines


def test_a_pipe_goes_on_with_a_conversation(model: Path, store: ChatStore) -> None:
    run = run_pippin("chat", model, *MLX, *FLAT, stdin=b"Hello\n")
    assert store.names() == []  # nobody asked for it to be kept
    terminal = Terminal(chat_command(model, *MLX, *FLAT))
    terminal.say("Hello")
    terminal.send(CTRL_D)
    terminal.end()
    name = store.find(None)
    assert store.read(name).messages[1]["content"] + "\n" == run.out
    run = run_pippin("chat", "--resume", name, "--offline", stdin=b"Go on\n")
    assert (run.code, run.err) == (0, "")
    assert store.read(name).messages[3]["content"] + "\n" == run.out
    assert "\x1b" not in run.out


def test_replies_go_to_a_file_and_the_rest_to_the_terminal(
    terminal: Start, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    command = " ".join(chat_command(model, *MLX, *FLAT))
    one = terminal(["/bin/sh", "-c", f"exec {command} > {out}"], env={"TERM": "dumb"})
    one.wait(lambda t: t.cursor_line == ">")
    one.send("Hello\r")
    one.wait(lambda t: out.read_text("utf-8").endswith("\n"))
    one.send(CTRL_D)
    assert one.end() == 0
    reply = run_pippin("chat", model, *MLX, *FLAT, stdin=b"Hello\n").out
    assert out.read_text("utf-8") == reply


def test_refusals(model: Path, store: ChatStore) -> None:
    assert "there is no saved chat in" in one_line(run_pippin("chat", "--resume", "--offline"))
    store.folder.mkdir(parents=True)
    store.path("bad").write_text("{")
    run = run_pippin("chat", "--resume", "bad", "--offline", stdin=b"Hi\n")
    assert "bad.json cannot be read as a saved chat" in one_line(run)
    assert run.code == 2


@pytest.mark.slow
def test_smollm2_resumes_as_if_never_left(smollm2: Path, chat: Start, store: ChatStore) -> None:
    args = (smollm2, *MLX, "--max-tokens", "12", "--keep-cache", "--stats")
    stayed = chat(*args, timeout=300)
    stayed.say("Name a colour.")
    stayed.say("Name another one.")
    stayed.send(CTRL_D)
    assert stayed.end() == 0
    wanted = store.read(store.find(None)).messages
    left = chat(*args, timeout=300)
    left.say("Name a colour.")
    left.send(CTRL_D)
    assert left.end() == 0
    back = chat("--resume", "--stats", timeout=300)
    back.say("Name another one.")
    back.send(CTRL_D)
    assert back.end() == 0
    assert re.search(r"\(\d\d cached\)", back.text)
    assert store.read(store.find(None)).messages == wanted
