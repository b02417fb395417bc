"""What the web page makes of a model's text: Markdown as others read it, and never markup."""

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from support.chat_api import ChatApi, chat_api
from support.chat_page import send

expect = pytest.importorskip("playwright.sync_api").expect

# Tags, and the text in them, of our rendering or of a reference's HTML. What only looks differ in
# is left out: captions, the wrapper of a table, paragraphs, and the level of a heading.
OUTLINE = """async ([text, html]) => {
  const { renderMarkdown } = await import("/markdown.js");
  const outline = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/\\s+/g, " ");
    const name = node.localName;
    if (["figcaption", "br"].includes(name)) return " ";
    const inside = [...node.childNodes].map(outline).join("");
    if (["div", "p", "figure", "body"].includes(name)) return ` ${inside} `;
    const href = node.getAttribute("href") ?? node.getAttribute("start") ?? "";
    return `<${name.replace(/h[1-6]/, "h")} ${href}>${inside}</>`;
  };
  let root = document.createElement("div");
  if (html === null) renderMarkdown(root, text);
  else root = new DOMParser().parseFromString(html, "text/html").body;
  return outline(root).replace(/\\s*([<>])\\s*/g, "$1").replace(/\\s+/g, " ").trim();
}"""

DOCUMENTS = {
    "emphasis": "a *b* **c** ***d*** _e_ __f__ ~~g~~ **h *i* j** snake_case_name 2 * 3 * 4",
    "code": "`a` ``b ` c`` `<b>` and an open ` tick",
    "escapes": r"\*a\* \`b\` \[c](d) 1\. e",
    "links": "[a](https://example.org/x) <https://example.org> [**b**](mailto:a@example.org)",
    "heading": "# One\n\ntext\n\n## Two **bold**\ntext right below",
    "rules": "a\n\n---\n\nb\n\n* * *\n",
    "quote": "> a\n> b\n>\n> - c\n> - d\n\nafter",
    "lazy quote": "> a\nb\n\nc",
    "fence": "before\n```python\nx = '<b>'\n\n\n**y**\n```\nafter",
    "tildes": "~~~\n```\na\n~~~\n",
    "open fence": "```\na\nb",
    "bullets": "- a\n- b\n  - c\n    - d\n- e",
    "numbers": "3. a\n4. b\n   1. c\n5. d",
    "mixed": "1. a\n   - b\n\n     text of b\n2. c\n\n   ```js\n   let x;\n   ```\n3. d",
    "loose": "- a\n\n- b\n\nafter",
    "two lists": "- a\n- b\n\n1. c\n2. d",
    "list after text": "text\n- a\n- b",
    "lazy item": "- a\nb\n- c",
    "table": "| a | b |\n|---|:-:|\n| `c` | **d** |\n| e |\n\nafter",
    "no table": "a | b\nc | d",
    "breaks": "a\nb\n\n\n\nc",
}


@pytest.fixture(scope="module")
def module_page(chromium: Any) -> Any:
    """A page for calls of its modules: one browser for all examples."""
    with chat_api() as api:
        page = chromium.new_page()
        page.goto(api.url)
        yield page
        page.close()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_markdown_is_read_as_by_another_reader(module_page: Any, name: str) -> None:
    text = DOCUMENTS[name]
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    expected = module_page.evaluate(OUTLINE, [None, reader.render(text)])
    assert module_page.evaluate(OUTLINE, [text, None]) == expected
    assert expected


def test_a_growing_text_leaves_what_is_there(module_page: Any) -> None:
    kept = """async ([text, size]) => {
      const { renderMarkdown } = await import("/markdown.js");
      const [grown, whole] = [document.createElement("div"), document.createElement("div")];
      renderMarkdown(whole, text);
      const firsts = new Set();
      for (let end = 1; end <= text.length; end += 1) {
        renderMarkdown(grown, text.slice(0, end));
        if (end >= size) firsts.add(grown.firstElementChild);
      }
      return [grown.innerHTML === whole.innerHTML, firsts.size];
    }"""
    first = "```\ncode\n```\n"
    for text in DOCUMENTS.values():
        assert module_page.evaluate(kept, [first + text, len(first)]) == [True, 1]


ATTACKS = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    "[a](\tjavascript:alert(1))",
    "<javascript:alert(1)>",
    "![a](https://evil.example/x.png)",
    '[a](https://example.org/"onmouseover="alert(1))',
    '```"><img src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```',
    "`<svg onload=alert(1)>`",
    "| <b onclick=alert(1)> |\n|---|\n| <iframe src=//evil.example> |",
    "<think><img src=x onerror=alert(1)></think>**a**<style>*{display:none}</style>",
]
TAGS = {"a", "blockquote", "button", "code", "em", "figcaption", "figure", "h3", "h4", "h5", "h6"}
TAGS |= {"hr", "li", "ol", "p", "pre", "s", "span", "strong", "ul", "svg", "use"}
TAGS |= {"div", "table", "thead", "tbody", "tr", "th", "td"}
ATTRIBUTES = {"href", "target", "rel", "start", "dir", "class", "tabindex", "role", "type"}
ATTRIBUTES |= {"aria-label", "aria-hidden", "title"}

CENSUS = """async (texts) => {
  const { renderMarkdown } = await import("/markdown.js");
  const found = { tags: [], attributes: [], links: [] };
  for (const text of texts) {
    const root = document.createElement("div");
    renderMarkdown(root, text);
    for (const element of root.querySelectorAll("*")) {
      found.tags.push(element.localName);
      found.attributes.push(...element.getAttributeNames());
      if (element.localName === "a") found.links.push(element.protocol);
    }
  }
  return found;
}"""


def check_census(page: Any, texts: list[str]) -> None:
    found = page.evaluate(CENSUS, texts)
    assert set(found["tags"]) <= TAGS
    assert set(found["attributes"]) <= ATTRIBUTES
    assert set(found["links"]) <= {"http:", "https:", "mailto:"}


def test_attacks_stay_text(new_page: Any, api: ChatApi) -> None:
    page = new_page()
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    text = "\n\n".join(ATTACKS)
    api.will_say(*(text[k : k + 7] for k in range(0, len(text), 7)))
    send(page, ATTACKS[0])
    expect(page.locator("#announcer")).to_contain_text("Pippin said:")
    expect(page.locator(".user .text")).to_have_text(ATTACKS[0])
    body = page.locator(".assistant .text")
    for visible in (*ATTACKS[:2], "<svg onload=alert(1)>", "<iframe src=//evil.example>"):
        expect(body).to_contain_text(visible)
    assert page.locator("#log :is(img, script, iframe, style, b)").count() == 0
    page.reload()
    title = page.locator("#chats .title")
    expect(title).to_have_text(ATTACKS[0])
    assert page.locator("#sidebar img").count() == 0
    check_census(page, ATTACKS)
    assert dialogs == []


def test_names_of_models_and_errors_stay_text(page: Any, api: ChatApi) -> None:
    api.models = ["<img src=x onerror=alert(1)>"]
    page.reload()
    expect(page.locator("#model:enabled")).to_have_value(api.models[0])
    api.will_refuse(400, ATTACKS[0])
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text(ATTACKS[0])
    assert page.locator("body img:not(.apple)").count() == 0


MARKS = "* ** _ __ ` ``` ~~~ ~~ [ ]( ) ](https://e.org) ! < > - 1. # | |-| --- a \\ é javascript:"
MARKS += " https://e.org <think> </think> <b> 😀"
SPACES = [" ", "    ", "\n", "\n\n", "\r\n", "\t", "\0"]
PIECES = st.sampled_from([*MARKS.split(" "), *SPACES])
TEXTS = st.lists(st.lists(PIECES | st.text(max_size=5), max_size=40).map("".join), max_size=30)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=TEXTS)
def test_any_text_is_rendered(module_page: Any, texts: list[str]) -> None:
    check_census(module_page, [json.loads(json.dumps(text)) for text in texts])


HOSTILE = ["**a ", "*a", "`a``b", "[a](", "[", "[a](javascript:", "<https://", "a_", "~~a", "\\"]
HOSTILE += ["> ", "- ", "1. a\n", "| a ", "# ", "#", "\n", "| a |\n|---|\n", "> - ", "  - a\n"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hostile_text_takes_no_longer_than_its_length(module_page: Any, piece: str) -> None:
    started = time.monotonic()
    check_census(module_page, [piece * (200_000 // len(piece))])
    assert time.monotonic() - started < 30  # it takes about one; what is quadratic takes minutes
