"""Documents on the web page, and what a reply read, with the server itself and real files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from pippin.apps.models import Model, load_model
from support.chat_page import send
from support.command_line import make_chat_model
from support.document_answers import answering
from support.documents import small_pdf
from support.fake_embedder import FakeEmbedder
from support.serving import Served, serving

expect = pytest.importorskip("playwright.sync_api").expect

COPROCESS = "A coprocess is a shell command that is preceded by the coproc reserved word."
EVIL = '<img src=x onerror="document.title=1"> **bold** \ue0000\ue001 & more'
BOOK = small_pdf(
    [[(40, 50, COPROCESS)], [(40, 50, "Arrays are indexed from zero.")], [(40, 50, EVIL)]]
)
QUESTION = "Which reserved word is a coprocess shell command preceded by?"
FILE = {"name": "book.pdf", "mimeType": "application/pdf", "buffer": BOOK}


def reply(asked: str) -> str:
    """What the model says: one sentence that stands there, and one that does not."""
    if COPROCESS not in asked:
        return "Hello."
    return f"{COPROCESS} {EVIL} is blue and very large."


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    # The prompt in one piece: this model looks for the whole question in it.
    with serving(answering(tmp_path / "model", reply), context=4000, chunk=4000) as served:
        served.service.documents._load = lambda stages: FakeEmbedder()
        yield served


@pytest.fixture
def page(new_page: Any, server: Served) -> Any:
    return opened(new_page, server)


def opened(new_page: Any, server: Served, **options: Any) -> Any:
    page = new_page(server.url, reduced_motion="reduce", **options)
    expect(page.locator("#model")).to_be_enabled()
    return page


def attach(page: Any, file: Any = FILE) -> None:
    count = page.locator("#documents li").count()
    page.set_input_files("#attach-file", file)
    expect(page.locator("#documents li:not(.reading)")).to_have_count(count + 1)


def stored(page: Any) -> dict[str, Any]:
    entries = page.evaluate("() => ({ ...localStorage })")
    (chat,) = (json.loads(text) for key, text in entries.items() if key.startswith("pippin.chat."))
    return chat


def test_a_reply_from_a_document(page: Any, server: Served) -> None:
    attach(page)
    expect(page.locator("#announcer")).to_have_text("Attached book.pdf, 3 pages.")
    send(page, QUESTION)
    mark = page.get_by_role("button", name="[p. 1]")
    expect(mark).to_be_visible()
    body = page.locator(".assistant .text")
    text = f"{COPROCESS} [p. 1] {EVIL} is blue and very large."
    expect(body).to_have_text(text.replace("**", "").replace("\ue0000\ue001", "\ufffd0\ufffd"))
    assert body.locator("img").count() == 0
    sources = page.get_by_role("group", name="Sources")
    expect(sources).to_contain_text("1 of 2 sentences without a source")
    # the question is kept as it was asked, the passages beside it
    asked, said = stored(page)["messages"]
    assert asked == {"role": "user", "content": QUESTION}
    assert said["grounds"]["sent"].endswith(QUESTION)
    mark.press("Enter")
    expect(sources.locator("summary").first).to_be_focused()
    image = page.get_by_role("img", name="Picture of p. 1")
    expect(image).to_be_visible()
    assert image.evaluate("(it) => it.complete && it.naturalWidth") == 1000
    quoted = sources.locator("blockquote")
    expect(quoted).to_have_text(COPROCESS)
    box, sheet = (page.locator(name).bounding_box() for name in (".highlight", ".sheet"))
    assert sheet["x"] < box["x"] < box["x"] + box["width"] < sheet["x"] + sheet["width"]
    assert sheet["y"] < box["y"] < box["y"] + box["height"] < sheet["y"] + sheet["height"] / 4
    # after a reload the marks are there, and the picture is asked for again
    page.reload()
    page.get_by_role("button", name="[p. 1]").click()
    expect(page.get_by_role("img", name="Picture of p. 1")).to_be_visible()


def test_what_is_not_in_the_document(page: Any) -> None:
    attach(page)
    send(page, "sourdough bakery Stockholm")
    text = page.locator(".assistant.missing .text")
    expect(text).to_have_text("Not found in the document: no passage comes near it.")
    expect(page.get_by_role("button", name="Why?")).to_be_hidden()
    send(page, "What does page 2 say?")
    searched = page.get_by_role("group", name="Sources").last
    expect(searched).to_contain_text("Searched page 2.")


def test_a_document_that_is_gone_is_said_to_be(page: Any, server: Served) -> None:
    attach(page)
    send(page, QUESTION)
    expect(page.get_by_role("button", name="[p. 1]")).to_be_visible()
    server.service.documents.close()  # as after a restart
    send(page, QUESTION)
    expect(page.get_by_role("alert").first).to_contain_text("no longer has a document of this chat")
    expect(page.locator("#documents .gone")).to_contain_text("gone, attach it again")
    page.get_by_role("button", name="[p. 1]").click()
    expect(page.locator(".source[open]")).to_contain_text("The server no longer has the document")
    page.get_by_role("button", name="Remove “book.pdf”").click()
    attach(page)
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("button", name="[p. 1]")).to_have_count(2)


def test_remove_and_refuse(page: Any, server: Served) -> None:
    attach(page)
    held = server.service.documents._held
    assert len(held) == 1
    page.get_by_role("button", name="Remove “book.pdf”").press("Enter")
    expect(page.locator("#documents")).to_be_hidden()
    expect(page.locator("#attach")).to_be_focused()
    send(page, "Hi")
    expect(page.locator(".assistant .text")).to_have_text("Hello.")
    assert not held
    broken = {"name": "broken.pdf", "mimeType": "application/pdf", "buffer": BOOK[:99]}
    page.set_input_files("#attach-file", broken)
    expect(page.get_by_role("alert").first).to_contain_text("broken.pdf is damaged")
    expect(page.locator("#documents")).to_be_hidden()


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_files_come_by_drop_and_by_paste(page: Any, how: str) -> None:
    give = """(how) => {
      const data = new DataTransfer();
      data.items.add(new File(["Arrays are indexed from zero."], "notes.md"));
      const target = document.getElementById("message");
      const kind = { bubbles: true, cancelable: true };
      if (how === "drop") {
        target.dispatchEvent(new DragEvent("dragover", { ...kind, dataTransfer: data }));
        target.dispatchEvent(new DragEvent("drop", { ...kind, dataTransfer: data }));
      } else {
        target.dispatchEvent(new ClipboardEvent("paste", { ...kind, clipboardData: data }));
      }
    }"""
    page.evaluate(give, how)
    chip = page.locator("#documents li:not(.reading)")
    expect(chip).to_contain_text("notes.md")
    expect(chip).to_contain_text("1 page")
    expect(page.locator("body")).not_to_have_class("dropping")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_documents(
    new_page: Any, server: Served, violations: Any, theme: str
) -> None:
    page = opened(new_page, server, color_scheme=theme, viewport={"width": 320, "height": 640})
    attach(page)
    assert violations(page) == []
    send(page, QUESTION)
    page.get_by_role("button", name="[p. 1]").click()
    expect(page.get_by_role("img", name="Picture of p. 1")).to_be_visible()
    page.get_by_text("What is nearest to the question").click()
    assert violations(page) == []
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    send(page, "sourdough bakery Stockholm")
    expect(page.locator(".missing")).to_be_visible()
    server.service.documents.close()
    send(page, QUESTION)
    expect(page.locator("#documents .gone")).to_be_visible()
    assert violations(page) == []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    from pippin.export.folder import export_folder
    from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint

    folder = tmp_path_factory.mktemp("explained")
    checkpoint = make_chat_model(folder / "tiny", max_position_embeddings=512)
    exported = export_folder(open_checkpoint(checkpoint), folder / "onnx", weights="fp32")
    return load_model(str(exported), threads=1)


@pytest.fixture
def explained(tiny: Model) -> Iterator[Served]:
    with serving(tiny, context=512) as served:
        yield served


IMPORTED = {
    "title": "Greeting",
    "messages": [
        {"role": "user", "content": "Hi <b>there</b>"},
        {"role": "assistant", "content": "Hello\tyou"},
    ],
}


def why(page: Any) -> Any:
    """The panel of an imported reply: a random model says nothing that a test could name."""
    chat = {"name": "chat.json", "mimeType": "application/json"}
    page.set_input_files("#import-file", chat | {"buffer": json.dumps(IMPORTED).encode()})
    button = page.get_by_role("button", name="Why?")
    button.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    panel = page.get_by_role("group", name="Why this reply")
    expect(panel.get_by_role("listbox")).to_be_visible()
    return panel


def test_why(new_page: Any, explained: Served) -> None:
    page = opened(new_page, explained)
    panel = why(page)
    expect(panel.get_by_role("note")).to_contain_text("Attention is not an explanation")
    chosen = panel.locator("[aria-selected=true]")
    expect(chosen).to_have_text("u")  # the reply's last letter
    page.locator(".strip .made").first.click()
    expect(chosen).to_have_text("H")
    page.keyboard.press("ArrowRight")
    expect(chosen).to_have_text("e")
    expect(chosen).to_be_focused()
    page.keyboard.press("Home")  # no token of the question was chosen by the model
    expect(chosen).to_have_text("H")
    page.keyboard.press("End")
    expect(chosen).to_have_text("u")
    panel.get_by_label("Layer").select_option("2")
    expect(panel).to_contain_text("There layer 2,")
    expect(chosen).to_have_text("u")
    panel.get_by_label("Head").select_option("4")
    expect(panel).to_contain_text("layer 2, head 4 read:")
    shown = panel.locator("tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [row.cells[0].textContent, row.cells[2].textContent])"
    )
    expected = asked(explained, layer=2)
    keys, weights = expected["keys"][4][-1], expected["weights"][4][-1]
    assert [int(key) for key, _ in shown] == keys
    said = [float(weight.removesuffix(" %")) for _, weight in shown]
    np.testing.assert_allclose(said, [100 * weight for weight in weights], atol=0.051)
    panel.get_by_role("button", name="What else might have come?").click()
    expect(panel.locator("tr.chosen")).to_contain_text("u")
    # text of the conversation is text
    assert panel.locator("b").count() == 0


def asked(server: Served, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": IMPORTED["messages"]} | fields
    return httpx.post(f"{server.url}/pippin/explain", json=body, timeout=60).json()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_the_panel(
    new_page: Any, explained: Served, violations: Any, theme: str
) -> None:
    page = opened(new_page, explained, color_scheme=theme, viewport={"width": 320, "height": 640})
    panel = why(page)
    panel.get_by_role("button", name="What else might have come?").click()
    expect(panel.locator("tr.chosen")).to_be_visible()
    assert violations(page) == []
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0


def test_a_failure_is_said_in_the_panel(new_page: Any, explained: Served) -> None:
    page = opened(new_page, explained)
    panel = why(page)
    explained.service.insight._most = 0  # nobody may wait
    panel.get_by_label("Layer").select_option("0")
    expect(panel.get_by_role("alert")).to_contain_text("The server is busy.")
    explained.service.insight._most = 5
    panel.get_by_role("button", name="Retry").click()
    expect(panel).to_contain_text("There layer 0,")
