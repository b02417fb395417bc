"""What the chat in a terminal keeps on disk, and comes back to."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pippin.apps.chat.saved import ChatStore
from support.terminal import CTRL_D, Terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
Start = Callable[..., Terminal]


def test_a_killed_process_leaves_its_conversation(scripted: Start, store: ChatStore) -> None:
    chat = scripted(pace=0.005)
    chat.say("one")
    chat.enter("endless")
    name = store.find(None)
    chat.wait(lambda _: len(store.read(name).messages) == 4)
    chat.child.kill(9)
    chat.end()
    partial = store.read(name).messages[-1]
    assert partial["finish_reason"] == "cancelled"
    again = scripted(None, "--resume")
    again.prompt()
    assert "You said: one" not in again.text  # the last exchange alone is shown
    assert partial["content"][:60] in again.text
    again.say("two")
    assert len(store.read(name).messages) == 6


def test_saving_listing_and_loading(scripted: Start, store: ChatStore) -> None:
    chat = scripted()
    chat.say("/save")
    assert "nothing has been said yet, so there is nothing to save" in chat.lines
    chat.say("one")
    chat.say("/save trip")
    chat.say("/clear")
    assert "begun anew; /load trip goes back" in chat.lines
    chat.say("two")
    chat.say("/list")
    assert any(re.match(r"\* \d{4}-.*fake +two$", line) for line in chat.lines)
    assert any(re.match(r"  trip .* 1 turns .* fake +one$", line) for line in chat.lines)
    chat.say("/load trip")
    chat.say("three")
    assert len(store.read("trip").messages) == 4


def test_nothing_is_kept_when_that_is_asked_for(scripted: Start, home: Path) -> None:
    chat = scripted(None, "--no-save")
    chat.say("one")
    chat.send(CTRL_D)
    assert chat.end() == 0
    assert not home.exists()


def test_a_folder_that_cannot_be_written_is_said_once(scripted: Start, home: Path) -> None:
    home.write_text("no directory")
    chat = scripted()
    chat.say("one")
    chat.say("two")
    assert chat.text.count("this conversation is not kept") == 1
    assert "You said: two" in chat.lines


def test_a_schema_holds_when_the_conversation_is_resumed(scripted: Start, store: ChatStore) -> None:
    chat = scripted()
    chat.say("/json object")
    chat.say("one")
    chat.send(CTRL_D)
    chat.end()
    assert store.read(store.find(None)).grammar.kind == "JSON object"
    again = scripted(None, "--resume")
    again.say("/json")
    assert "replies are held to a JSON object" in again.lines
