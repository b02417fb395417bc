"""The default model in a terminal, with a real manual attached."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pippin.apps.chat.saved import ChatStore
from pippin.apps.documents.marks import stands_on
from pippin.apps.documents.read import read_document
from support.documents import manuals
from support.terminal import Terminal
from support.wheels import minilm_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
QUESTION = "What does the PIPESTATUS variable hold?"


@pytest.mark.slow
def test_the_bash_manual(
    chat: Callable[..., Terminal], smollm2: Path, home: Path, store: ChatStore
) -> None:
    home.mkdir()
    (home / "models").symlink_to(minilm_folder().parent)
    manual = manuals()["bash"]
    document = read_document(manual)
    gold = {p.number for p in document.pages if "PIPESTATUS" in p.text}
    options = ("--backend", "onnx", "--offline", "--temperature", 0, "--max-tokens", 60)
    terminal = chat(smollm2, *options, columns=240, rows=60, timeout=300)
    terminal.say(f"/attach {manual}")
    assert f"bash.pdf ({len(document.pages)} pages): messages are answered from it" in terminal.text
    terminal.say(QUESTION)
    found = store.read(store.find(None)).messages[0]["attachments"]
    assert found[0]["page"] in gold
    notes = re.findall(r"(?:[\d, ]+: )?p\. (\S+?)[ ,(:].*?“(.*?)”", " ".join(terminal.lines))
    assert notes  # the reply has a source,
    for label, quote in notes:  # which is on the page that it names
        (page,) = [page for page in document.pages if page.label == label]
        assert stands_on(quote, page.text), (label, quote)
    terminal.say("/why PIPESTATUS")
    assert re.search(r"layer \d+, head \d+ read:", " ".join(terminal.text.split()))
    terminal.say("Who invented the bicycle?")
    assert "(not found in the document: no passage comes near it" in terminal.text
