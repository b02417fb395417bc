"""The HTML report, and its page in headless Chromium: alone with its one file."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pippin.apps.documents.answer import Options, ask
from pippin.apps.documents.attribution import CAVEAT, Attribution, SentenceAttention
from pippin.apps.documents.index import open_index
from pippin.apps.documents.report import render_report, write_report
from pippin.apps.documents.result import Result
from pippin.runtime.errors import InputError
from support import browser
from support.document_answers import answering
from support.documents import small_pdf
from support.fake_embedder import FakeEmbedder

expect = pytest.importorskip("playwright.sync_api").expect
axe, chromium, violations = browser.axe, browser.chromium, browser.violations
open_file = browser.open_file

FIRST = "A coprocess is a shell command that is started by the coproc word."
SECOND = "Arrays are indexed from zero, as they are in other languages."
EVIL = "</script><script>alert(1)</script><b>Lisbon</b> is \"far\" & 'away'."
REPLY = f"{FIRST} {EVIL}\n\n- {SECOND}"
QUESTION = "What is a coprocess of the shell? <i>&"


def _attention(count: int, sentences: int) -> Attribution:
    shares = [0.4 / count] * count
    one = SentenceAttention(tuple(shares), first=0.3, prompt=0.1, answer=0.2)
    return Attribution((one,) * sentences, (40,) * count, (2, 3, 4))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """An answer with two sources on two pages of a PDF, and a sentence without one."""
    folder = tmp_path_factory.mktemp("report")
    pages = [[(40, 60, FIRST), (40, 90, "It waits for nobody.")], [(40, 300, SECOND)]]
    (folder / "small.pdf").write_bytes(small_pdf(pages))
    with open_index(folder / "index", FakeEmbedder()) as index:
        shas = index.add([folder / "small.pdf"])
        made = Result(QUESTION, "tiny", "onnx", tuple(map(index.document, shas)))
        model = answering(folder / "model", lambda _: REPLY)
        for event in ask(model, index, QUESTION, Options(contrast=True)):
            made.add(event)
    count = len(made.answered.passages)
    made.attribution = _attention(count, len(made.answered.sentences))
    return made


@pytest.fixture(scope="module")
def file(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(result, path)
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]
    return path


@pytest.fixture
def open_page(open_file: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """Opens the report."""
    return lambda path=file, **options: open_file(path, **options)


def test_what_is_shown(open_page: Callable[..., Any], result: Result) -> None:
    page = open_page()
    expect(page.locator("h1")).to_have_text(QUESTION)
    reply = page.locator("#answer .reply")
    expect(reply).to_contain_text(EVIL)
    expect(reply.locator(".mark")).to_have_text(["p. 1", "p. 2"])
    expect(reply.locator(".bare")).to_have_count(result.answered.unsupported)
    expect(page.locator("#answer")).to_contain_text("1 of 3 sentences without a source")
    expect(page.locator("blockquote")).to_have_text([FIRST, SECOND])
    expect(page.locator("#passages tbody tr")).to_have_count(len(result.answered.passages))
    expect(page.locator("#passages mark")).to_have_count(2)
    expect(page.locator("#attention")).to_contain_text(CAVEAT)
    expect(page.locator("#attention .bar")).to_have_count(3)
    expect(page.locator("#contrast")).to_contain_text(FIRST)


def test_a_mark_opens_its_sentence_on_the_page(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 800, "height": 600})
    second = page.locator("#sources > details").nth(1)
    expect(second).not_to_have_attribute("open", "")
    for _ in range(2):  # also when it was the last one that was opened
        page.get_by_role("link", name="p. 2, open the source").focus()
        page.keyboard.press("Enter")
        expect(second).to_have_attribute("open", "")
        expect(page.locator("#source-2")).to_be_focused()
        second.locator("summary").click()
    page.get_by_role("link", name="p. 2, open the source").click()
    boxes = second.locator(".overlay .chosen rect")
    expect(boxes).to_have_count(1)
    expect(boxes).to_be_in_viewport()
    sheet, box = second.locator("img").bounding_box(), boxes.bounding_box()
    assert (box["y"] - sheet["y"]) / sheet["height"] == pytest.approx(300 / 600, abs=0.01)
    assert (box["x"] - sheet["x"]) / sheet["width"] == pytest.approx(40 / 400, abs=0.01)


def test_everything_is_reached_by_keyboard(open_page: Callable[..., Any]) -> None:
    page = open_page()
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 12)"))
    assert reached[0] == "To the answe"
    assert {"p. 1", "p. 2"} <= set(reached)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    open_page: Callable[..., Any], violations: Any, scheme: str, result: Result, tmp_path: Path
) -> None:
    page = open_page(color_scheme=scheme)
    for summary in page.locator("summary").all():
        if not summary.evaluate("node => node.parentElement.open"):
            summary.click()
    assert violations(page) == []
    missing = Result(QUESTION, "tiny", "onnx", result.documents, result.found, "no page 9")
    write_report(missing, tmp_path / "missing.html")
    assert violations(open_page(tmp_path / "missing.html", color_scheme=scheme)) == []


def test_a_narrow_screen_scrolls_no_page(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_what_is_not_found(result: Result) -> None:
    missing = Result(QUESTION, "tiny", "onnx", result.documents, result.found, "no page 9")
    text = render_report(missing)
    assert "Not found in the document: no page 9." in text
    assert "The model was not asked." in text
    assert "data:image" not in text


def test_a_file_that_is_no_pdf_has_its_text_alone(result: Result, tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text(FIRST)
    documents = tuple(replace(one, path=tmp_path / "small.txt") for one in result.documents)
    text = render_report(replace(result, documents=documents))
    assert "data:image" not in text
    assert re.search(rf"<blockquote>{re.escape(FIRST)}</blockquote>", text)
    (tmp_path / "small.txt").unlink()  # nor is a file needed that has gone
    assert render_report(replace(result, documents=documents)) == text


def test_a_report_that_cannot_be_written(result: Result, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: Is a directory; name another"):
        write_report(result, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.parent.glob(".*.partial")) == []
