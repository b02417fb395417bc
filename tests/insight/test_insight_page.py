"""The page of `pippin explain --html`, driven in headless Chromium: alone with its one file."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pippin.apps.insight.attention import weights
from pippin.apps.insight.explanation import CAVEAT
from pippin.apps.insight.trace import trace
from pippin.apps.models import load_generator
from support.command_line import make_chat_model, run_pippin

expect = pytest.importorskip("playwright.sync_api").expect

TEXT = "</script><script>alert(1)</script> <!-- <b>bold</b> & 'more'\n\tcafé"
SIZE = len(TEXT.encode())
REPLY = ("--generate", 6, "--temperature", 1.1, "--top-k", 20, "--seed", 4, "--ignore-eos")
SHOWN = ("--heads", "--block", "--positions")
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def made(chat_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The page of all that needs no measuring, and the same as JSON."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    run = run_pippin("explain", chat_folder, TEXT, *REPLY, *SHOWN, "--html", file, "--json")
    assert run.code == 0, run.err
    assert f"wrote {file}" in run.err
    assert "all 3 layers, 8 keys" in run.err
    return file, json.loads(run.out)


@pytest.fixture
def open_page(open_file: Open, made: tuple[Path, dict]) -> Open:
    """Opens a page that has drawn itself."""

    def opened(file: Path = made[0], **options: Any) -> Any:
        page = open_file(file, **options)
        page.locator("html[data-ready]").wait_for()
        return page

    return opened


def tokens(page: Any) -> Any:
    return page.get_by_role("listbox", name="Tokens of the text").get_by_role("option")


def chosen(page: Any) -> int:
    return int(page.locator("#attention [aria-selected=true]").get_attribute("data-at"))


def rows(page: Any) -> list[list[str]]:
    """The table of keys."""
    found = page.locator("#attention .panel tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in found]


def test_it_shows_what_json_says(open_page: Open, made: tuple[Path, dict]) -> None:
    page, document = open_page(), made[1]
    step = document["step"]
    assert chosen(page) == step["query"]["index"] == SIZE - 1
    expect(page.get_by_label("Layer", exact=True)).to_have_value(str(step["layer"]))
    expect(page.get_by_label("Head", exact=True)).to_have_value(str(step["head"]))
    expect(page.get_by_role("note")).to_have_text(CAVEAT)
    assert len(rows(page)) == len(step["top"])
    for cells, wanted in zip(rows(page), step["top"], strict=True):
        assert int(cells[0]) == wanted["token"]["index"]
        for cell, name in ((4, "product"), (5, "scaled"), (6, "k_norm"), (7, "v_norm")):
            assert float(cells[cell]) == pytest.approx(wanted[name], abs=0.011), name
        assert float(cells[2].split()[0]) == pytest.approx(100 * wanted["weight"], abs=0.051)
    facts = page.locator("#attention .panel").inner_text()
    assert f"length {step['output_norm']:.2f}" in facts


def test_every_token_layer_and_head_is_in_it(
    open_page: Open, chat_folder: Path, made: tuple[Path, dict]
) -> None:
    page = open_page()
    ids = [token["id"] for token in made[1]["tokens"]]
    found = trace(load_generator(str(chat_folder), "onnx"), ids).layers
    rng = np.random.default_rng(1)
    for layer, head, query in zip(
        rng.integers(0, 3, 12), rng.integers(0, 7, 12), rng.integers(0, len(ids), 12), strict=True
    ):
        page.get_by_label("Layer", exact=True).select_option(str(layer))
        page.get_by_label("Head", exact=True).select_option(str(head))
        tokens(page).nth(query).click()
        row = weights(found[int(layer)], [int(query)])[:, 0]
        wanted = row.mean(axis=0) if head == 6 else row[head]
        order = np.argsort(-wanted, kind="stable")[: min(8, query + 1)]
        shown = rows(page)
        assert [int(cells[0]) for cells in shown] == order.tolist()
        for cells, key in zip(shown, order, strict=True):
            share = float(cells[2].replace("<", "").split()[0])
            assert share == pytest.approx(100 * wanted[key], abs=0.051)


def test_text_is_text(open_page: Open, made: tuple[Path, dict]) -> None:
    """Tokens that look like markup, and white space that must be seen."""
    page = open_page()
    assert page.locator("#attention b, #attention script").count() == 0
    shown = page.locator("#attention .strip").inner_text()
    assert "</script><script>alert(1)</script>" in shown
    assert "<b>bold</b>" in shown
    assert made[0].read_text("utf-8").count("</script>") == 2  # those of the page itself
    at = TEXT.index("\n")
    expect(tokens(page).nth(at)).to_have_accessible_name("⏎")
    expect(tokens(page).nth(at)).to_have_text("⏎")
    expect(tokens(page).nth(TEXT.index(" "))).to_have_accessible_name("·")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(open_page: Open, violations: Any, theme: str) -> None:
    page = open_page(color_scheme=theme)
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    dark = sum(map(int, re.findall(r"\d+", paper)[:3])) < 3 * 128
    assert dark == (theme == "dark")
    assert violations(page) == []
    tokens(page).nth(10).click()
    page.get_by_text("The numbers").first.click()
    page.get_by_label("Rule").select_option("first-token")
    page.locator("#heads td[data-layer='1'][data-head='1']").focus()
    assert violations(page) == []


def test_axe_finds_nothing_on_a_narrow_screen(open_page: Open, violations: Any) -> None:
    page = open_page(viewport={"width": 320, "height": 640})
    assert violations(page) == []
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0


def test_axe_would_find_something(open_page: Open, violations: Any) -> None:
    page = open_page()
    page.evaluate("() => document.querySelector('.strip').removeAttribute('aria-label')")
    page.evaluate("() => document.querySelector('#caveat').style.color = '#eee'")
    found = " ".join(violations(page))
    assert "color-contrast" in found
    assert "aria-input-field-name" in found


FOCUS = """() => {
  const it = document.activeElement;
  const { outlineStyle, outlineWidth } = getComputedStyle(it);
  const name = it.ariaLabel ?? it.labels?.[0]?.firstChild.textContent ?? it.textContent.trim();
  return [name, outlineStyle === "solid" && parseFloat(outlineWidth) >= 2];
}"""


def test_the_keyboard_alone_is_enough(open_page: Open, made: tuple[Path, dict]) -> None:
    page = open_page()
    keys, reached = page.keyboard, []
    while not reached or reached[-1] != "The numbers" or reached.count("The numbers") < 2:
        keys.press("Tab")
        name, shown = page.evaluate(FOCUS)
        assert shown, name
        reached.append(name)
        assert len(reached) < 60
    last = made[1]["tokens"][SIZE - 1]["text"]
    in_order = ["Skip to the content", "What a token read", "Layer", "Head", last]
    in_order += ["Keys of the chosen token", "Show it in the text", "Rule", "Shown"]
    places = [reached.index(name) for name in in_order]
    assert places == sorted(places)

    tokens(page).nth(SIZE - 1).focus()
    keys.press("ArrowLeft")
    assert chosen(page) == SIZE - 2
    expect(tokens(page).nth(SIZE - 2)).to_be_focused()
    expect(page.get_by_role("status")).to_contain_text(f"Token {SIZE - 2}, ")
    keys.press("Home")
    assert chosen(page) == 0
    assert len(rows(page)) == 1
    assert rows(page)[0][2] == "100.0 %"
    keys.press("ArrowLeft")
    assert chosen(page) == 0
    keys.press("PageDown")
    assert chosen(page) == 20
    keys.press("End")
    assert chosen(page) == SIZE + 5
    keys.press("ArrowUp")
    above = chosen(page)
    top = [tokens(page).nth(n).bounding_box()["y"] for n in (above, SIZE + 5)]
    assert top[0] < top[1]


def test_a_head_of_the_map_opens_in_the_text(open_page: Open, made: tuple[Path, dict]) -> None:
    page, scores = open_page(), made[1]["heads"]
    cells = page.locator("#heads td[role=gridcell]")
    assert cells.count() == 18
    page.get_by_label("Rule").select_option("induction")
    value, control = (scores["induction"][name][2][1] for name in ("score", "control"))
    cell = page.locator("#heads td[data-layer='2'][data-head='1']")
    name = f"layer 2, head 1: score {value:.3f}, control {control:.3f}"
    expect(cell).to_have_accessible_name(name)
    cells.first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    expect(cell).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Layer", exact=True)).to_have_value("2")
    expect(page.get_by_label("Head", exact=True)).to_have_value("1")
    expect(tokens(page).nth(SIZE - 1)).to_be_focused()


def test_the_reply_step_by_step(open_page: Open, made: tuple[Path, dict]) -> None:
    page, walk = open_page(), made[1]["walkthrough"]
    reply = page.get_by_role("listbox", name="Tokens of the reply").get_by_role("option")
    assert reply.count() == 6
    for number, step in enumerate(walk["steps"]):
        reply.nth(number).click()
        section = page.locator("#walkthrough")
        expect(section).to_contain_text(f"the draw {step['draw']['number']:.4f} (seed 4)")
        table = section.get_by_role("table", name="Candidates by the model's probability")
        lines = table.locator("tbody tr").all()
        listed = [int(line.locator("td").first.inner_text()) - 1 for line in lines]
        wanted = [one["rank"] for one in step["candidates"]]
        rank = step["chosen"]["rank"]
        assert listed == (wanted if rank in wanted else [*wanted, rank])
        expect(table.locator("tr.chosen td").first).to_have_text(str(rank + 1))
        read = section.get_by_role("table", name=re.compile("What it read"))
        keys = [int(t) for t in read.locator("tbody td:first-child").all_inner_texts()]
        assert keys == [key["index"] for key in walk["reads"][number]]
    page.get_by_role("button", name="Show it in the text").press("Enter")
    assert chosen(page) == SIZE + 4


def test_charts_and_their_numbers(open_page: Open, made: tuple[Path, dict]) -> None:
    page = open_page()
    charts = made[1]["positions"]["charts"]
    for chart in charts:
        picture = page.get_by_role("img", name=chart["title"])
        assert picture.locator("path").count() == len(chart["series"]) + 1
        figure = page.locator("figure", has=picture)
        figure.get_by_text("The numbers").click()
        first = figure.locator("tbody tr").first.locator("td").all_inner_texts()
        wanted = [series["y"][0] for series in chart["series"]]
        assert [float(cell) for cell in first[1:]] == pytest.approx(wanted, rel=0.01, abs=0.001)


def test_a_page_without_a_text(chat_model: Path, tmp_path: Path, open_page: Open) -> None:
    file = tmp_path / "block.html"
    run = run_pippin("explain", chat_model, "--block", "--offline", "--html", file)
    assert run.code == 0
    page = open_page(file)
    expect(page.get_by_role("heading", name="The block in numbers")).to_be_visible()
    assert page.locator("#attention").count() == 0


def test_a_page_that_cannot_be_written_leaves_nothing(chat_model: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    run = run_pippin("explain", chat_model, "--block", "--html", tmp_path / "page.html")
    assert run.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.slow
def test_four_thousand_tokens(open_page: Open, tmp_path: Path, violations: Any) -> None:
    shape = {"num_hidden_layers": 12, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = make_chat_model(
        tmp_path / "long", **shape, hidden_size=72, max_position_embeddings=4096
    )
    lines = (f"{n}: the {n % 7}th line of a text that goes on.\n" for n in range(200))
    text = "".join(lines)[:4000]
    file = tmp_path / "long.html"
    args = ("--backend", "onnx", "--weights", "fp32", "--html", file)
    env = {"PIPPIN_HOME": str(tmp_path / "home")}
    run = run_pippin("explain", model, "-", *args, stdin=text.encode(), env=env)
    assert run.code == 0, run.err
    assert file.stat().st_size < 10_000_000
    assert re.search(r"layers (\d+, )+\d+ of 12, 8 keys", run.err)
    page = open_page(file)
    assert tokens(page).count() == 4000
    expect(page.locator("#attention")).to_contain_text("All layers would not fit 9 MB")
    tokens(page).nth(3999).focus()
    started = time.perf_counter()
    for key in [*["ArrowLeft"] * 20, *["ArrowUp"] * 20, "Home", "End"]:
        page.keyboard.press(key)
    assert time.perf_counter() - started < 20  # seconds; about 0.6 on a quiet machine
    assert chosen(page) == 3999
    assert violations(page) == []
    refused = run_pippin(
        "explain", model, "-", *args, "--layers", "0-11", stdin=text.encode(), env=env
    )
    assert refused.code == 2
    assert "give fewer with --layers" in refused.err
