"""The chat in a real terminal: what is typed, what is seen."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pippin.apps.chat.saved import ChatStore
from support.terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    CTRL_E,
    CTRL_R,
    CTRL_X,
    ENTER,
    TAB,
    UP,
    Terminal,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
Start = Callable[..., Terminal]

MARKDOWN = "# Title\n\nSome **bold** and `code`.\n\n- one\n- two\n\n```\nx = 1\n```"


def test_the_banner_a_reply_and_the_budget(scripted: Start) -> None:
    chat = scripted()
    chat.wait("fake · onnx · 0 of 4,000 tokens")
    assert chat.lines[0] == "fake · onnx · context 4,000 · /help"
    chat.say("Hello")
    chat.wait("fake · onnx · 52 of 4,000 tokens")  # bytes, with the template's words
    assert chat.lines[1:4] == ["> Hello", "You said: Hello", ">"]
    chat.send(CTRL_D)
    assert chat.end() == 0
    assert re.search(r"^saved; pippin chat --resume \S+$", chat.text, re.MULTILINE)


def test_markdown_is_light(scripted: Start) -> None:
    chat = scripted({"md": MARKDOWN})
    chat.say("md")
    assert chat.lines[2:11] == [
        *("Title", "", "Some bold and code.", "", "• one", "• two", "", "```", "x = 1"),
    ]
    assert chat.style_of("Title").bold
    assert chat.style_of("bold").bold
    assert not chat.style_of("Some").bold
    assert chat.style_of("code").fg == chat.style_of("x = 1").fg == "cyan"
    chat.say("/set markdown off")
    chat.say("md")
    assert MARKDOWN in chat.text


def test_the_first_interrupt_stops_the_reply_and_the_second_leaves(
    scripted: Start, store: ChatStore
) -> None:
    chat = scripted(pace=0.005)
    chat.enter("endless")
    chat.wait("on and on")
    chat.send(CTRL_C)
    chat.prompt()
    assert "(stopped)" in chat.lines
    chat.say("go on")
    chat.send("half a line")
    chat.prompt("half a line")
    chat.send(CTRL_C)  # takes the line away, and does not leave
    chat.prompt()
    chat.send(CTRL_C)
    assert chat.end() == 130
    messages = store.read(store.find(None)).messages
    assert messages[1]["content"].startswith("on and on")
    assert messages[1]["finish_reason"] == "cancelled"
    assert messages[3] == {"role": "assistant", "content": "You said: go on"}


def test_a_second_interrupt_leaves_while_a_reply_hangs(scripted: Start, store: ChatStore) -> None:
    chat = scripted(pace=30)  # seconds a token
    chat.enter("endless")
    chat.wait(lambda _: bool(store.names()))
    assert chat.press_until_it_ends(CTRL_C) == 130
    assert store.names() == []  # not a word was said


def test_resizing_while_a_reply_comes_loses_nothing(scripted: Start) -> None:
    chat = scripted(pace=0.002)
    chat.say("/set max_tokens 3500")
    chat.enter("endless")
    chat.wait("on and on")
    for columns in (40, 100, 23, 80):
        _more_of(chat)
        chat.resize(columns)
    _more_of(chat)
    chat.send(CTRL_C)
    chat.prompt()
    begun = chat.written.index(b"on and on")
    raw = chat.written[begun : chat.written.index(b"\r\n\x1b[2m(stopped)")].decode()
    said = " ".join(raw.split())
    assert said == ("on and " * len(said))[: len(said)]
    assert len(said) > 600
    assert "\x1b" not in raw  # no row was erased or gone back to on the way
    assert {len(row) for row in raw.split("\r\n")} & set(range(94, 101))  # the widest was used


def _more_of(chat: Terminal) -> None:
    """Wait for some rows more of the endless reply."""
    seen = chat.written.count(b"and")
    chat.wait(lambda terminal: terminal.written.count(b"and") > seen + 30)


def test_pasted_lines_are_one_message(scripted: Start, store: ChatStore) -> None:
    chat = scripted()
    chat.prompt()
    chat.paste("one\n  two\nthree")
    chat.wait("  three")
    assert "You said" not in chat.text
    chat.send(ENTER)
    chat.wait("You said: one")
    chat.prompt()
    assert store.read(store.find(None)).messages[0]["content"] == "one\n  two\nthree"


def test_blocks_and_line_breaks(scripted: Start, store: ChatStore) -> None:
    chat = scripted()
    chat.prompt()
    chat.send(f'"""{ENTER}a{ENTER}b"""')
    chat.wait('b"""')
    assert "You said" not in chat.text
    chat.send(ENTER)
    chat.wait("You said: a")
    chat.prompt()
    chat.send(f"c{ALT_ENTER}d")
    chat.wait("  d")
    chat.send(ENTER)
    chat.wait("You said: c")
    chat.prompt()
    messages = store.read(store.find(None)).messages
    assert [m["content"] for m in messages if m["role"] == "user"] == ["a\nb", "c\nd"]


def test_the_editor(scripted: Start, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "second line" >> "$1"\n')
    editor.chmod(0o755)
    chat = scripted(env={"VISUAL": str(editor), "EDITOR": str(editor)})
    chat.prompt()
    chat.send("first line")
    chat.prompt("first line")
    chat.send(CTRL_X + CTRL_E)
    chat.wait("second line")
    if "You said" not in chat.text:
        chat.send(ENTER)
    chat.wait("You said: first line")


def test_history_goes_back_and_outlives_the_process(scripted: Start, store: ChatStore) -> None:
    chat = scripted()
    chat.say("first thing")
    chat.say("second thing")
    chat.send(UP + UP)
    chat.prompt("first thing")
    chat.send(CTRL_C)
    chat.prompt()
    chat.send(CTRL_D)
    assert chat.end() == 0
    assert store.history_file.stat().st_mode & 0o77 == 0
    again = scripted()
    again.prompt()
    again.send(CTRL_R + "first")
    again.wait(lambda t: "first thing" in t.text)


def test_completion(scripted: Start, tmp_path: Path) -> None:
    (tmp_path / "notes of mine.txt").write_text("x")
    chat = scripted(cwd=tmp_path)
    chat.prompt()
    for typed, wanted in (
        ("/reg", "/regen"),
        ("/set tempe", "/set temperature"),
        ("/set think sh", "/set think show"),
        ("/model smoll", "/model smollm2"),
        ("/attach notes", "/attach notes of mine.txt"),
    ):
        chat.send(typed)
        chat.prompt(typed)
        chat.send(TAB)
        chat.prompt(wanted)
        chat.send(CTRL_C)
        chat.prompt()
    chat.send("/u")
    chat.wait("take back the last exchange")  # the menu says what a command does


def test_an_unknown_command_is_one_line(scripted: Start) -> None:
    chat = scripted()
    chat.say("/hepl")
    assert chat.lines[1:3] == ["> /hepl", "there is no command /hepl; did you mean /help?"]
    chat.say("/usr/bin is what?")
    assert "You said: /usr/bin is what?" in chat.lines


def test_help_lists_every_command(scripted: Start) -> None:
    chat = scripted(rows=40)
    chat.say("/help")
    for name in ("attach", "json", "model", "quit", "regen", "undo", "why"):
        assert any(line.startswith(f"/{name}") for line in chat.lines), name
    assert max(map(len, chat.lines)) <= 80


def test_undo_regen_and_edit(scripted: Start, store: ChatStore) -> None:
    chat = scripted()
    chat.say("one")
    chat.say("two")
    chat.say("/undo")
    assert "taken back: two" in chat.lines
    chat.say("/regen")
    assert chat.lines.count("You said: one") == 2
    chat.say("/edit three")
    assert "You said: three" in chat.lines
    chat.enter("/edit")
    chat.wait("edit> three")
    chat.send(" and four" + ENTER)
    chat.wait("You said: three and four")
    chat.prompt()
    messages = store.read(store.find(None)).messages
    assert [m["content"] for m in messages] == ["three and four", "You said: three and four"]


def test_an_edit_can_be_given_up(scripted: Start) -> None:
    chat = scripted()
    chat.say("one")
    chat.enter("/edit")
    chat.wait("edit> one")
    chat.send(CTRL_C)
    chat.wait(lambda t: t.cursor_line == "edit>")
    chat.send(CTRL_C)
    chat.prompt()
    assert "not changed" in chat.lines
    chat.say("/stats")
    assert "of 4,000 tokens" in chat.text


def test_a_regeneration_stopped_at_once_leaves_the_reply(scripted: Start, store: ChatStore) -> None:
    chat = scripted({"think": "<think>" + "hm " * 400}, pace=0.005)
    chat.say("one")
    chat.enter("/edit think")
    chat.wait("thinking …")
    chat.send(CTRL_C)
    chat.prompt()
    messages = store.read(store.find(None)).messages
    assert messages[0]["content"] == "think"
    assert messages[1]["reasoning_content"].startswith("hm")


def test_thinking_is_one_line_until_it_is_asked_for(scripted: Start) -> None:
    chat = scripted({"why": "<think>\nLet me see.\n</think>\n\nBecause."}, pace=0.01)
    chat.enter("why")
    chat.wait(lambda t: re.search(r"thinking … [1-9]", t.text) is not None)
    chat.prompt()
    assert chat.lines[1] == "> why"
    assert re.fullmatch(r"\(thought for \d+ tokens\)", chat.lines[2])
    assert chat.lines[3] == "Because."
    assert "Let me see." not in chat.plain
    chat.say("/set think show")
    chat.say("why")
    assert "Let me see." in chat.lines


def test_the_end_of_the_context_asks(scripted: Start, store: ChatStore) -> None:
    chat = scripted({"long": "word " * 700})
    chat.say("/set max_tokens 3600")
    chat.say("long")
    chat.say("/set max_tokens default")
    text = "more " * 100
    chat.prompt()
    chat.paste(text)
    chat.send(ENTER)
    chat.wait("drop the oldest turns, or stop here? [drop/stop]")
    chat.send("s" + ENTER)
    chat.wait("not said: the context is full")
    chat.wait("more more")  # what was typed is offered again
    chat.send(ENTER)
    chat.wait(lambda t: t.text.count("[drop/stop]") == 2 and t.cursor_line.endswith("[drop/stop]"))
    chat.send("d" + ENTER)
    chat.wait("the model no longer sees the first 2 messages")
    chat.wait("You said: more")
    chat.prompt()
    saved = store.read(store.find(None))
    assert saved.dropped == 2
    assert len(saved.messages) == 4


def test_copying_through_the_terminal(scripted: Start) -> None:
    env = {"PATH": "/nowhere", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    chat = scripted({"md": MARKDOWN}, env=env)
    chat.say("/copy")
    assert "there is no reply yet" in chat.lines
    chat.say("md")
    chat.say("/copy code")
    assert b"\x1b]52;c;eCA9IDE=\x07" in chat.written  # x = 1


def test_attaching(scripted: Start, tmp_path: Path, store: ChatStore) -> None:
    (tmp_path / "notes.txt").write_text("the notes")
    chat = scripted(cwd=tmp_path)
    chat.say("/attach notes.txt")
    chat.wait("+notes.txt")  # below the prompt
    chat.say("What?")
    chat.wait("the notes")
    message = store.read(store.find(None)).messages[0]
    assert message["content"] == "What?"
    assert message["attachments"] == [{"name": "notes.txt", "text": "the notes"}]


def test_control_characters_do_not_reach_the_terminal(scripted: Start) -> None:
    chat = scripted({"bad": "a\x1b]0;title\x07b\x1b[2Jc\x9b1md"})
    chat.say("bad")
    assert "a^[]0;title^Gb^[[2Jc\\x9b1md" in chat.lines


def test_typing_ahead_waits_for_the_prompt(scripted: Start) -> None:
    chat = scripted({"long": "word " * 60}, pace=0.005)
    chat.enter("long")
    chat.wait("word word")
    chat.send("next")
    chat.prompt("next")
    reply = chat.written[: chat.written.rfind(b"\x1b[?2004h")]  # until the line editor was back
    assert b"next" not in reply


def test_no_colour(scripted: Start) -> None:
    chat = scripted({"md": MARKDOWN}, env={"NO_COLOR": "1"})
    chat.say("md")
    assert chat.style_of("code").fg == "default"


def test_a_terminal_that_cannot_draw(scripted: Start) -> None:
    chat = scripted({"md": MARKDOWN}, env={"TERM": "dumb"})
    chat.wait(lambda t: t.cursor_line == ">")
    chat.send('"""\ra\rb"""\r')
    chat.wait("You said: a")
    chat.send("md\r")
    chat.wait("- one")
    chat.send("/hepl\r")
    chat.wait("did you mean /help?")
    assert b"\x1b" not in chat.written
    chat.send(CTRL_D)
    assert chat.end() == 0
