"""The web page for everybody: keyboard, screen readers, contrast, narrow screens, zoom."""

import threading
from typing import Any

import pytest

from support.chat_api import ChatApi, Thought
from support.chat_page import send

expect = pytest.importorskip("playwright.sync_api").expect

MARKDOWN = """### First a small one

Text with **bold**, `code` and a [link](https://example.org).

# Then a large one

- a
  1. b

> quoted

```python
print("a line that is much longer than the narrowest screen is wide, so that it must scroll")
```

| a | b | c | d |
|---|---|---|---|
| a_long_word_in_a_cell | a_long_word_in_a_cell | a_long_word_in_a_cell | a_long_word_in_a_cell |

Andonewordthatislongerthanthenarrowestscreeniswidesothatitmustbebrokenwhereitwouldnotbeotherwise.
"""


def talk(page: Any, api: ChatApi) -> None:
    """A reply with all that Markdown makes, then an error."""
    api.will_say(Thought("Hm."), MARKDOWN)
    send(page, "A question\nof two lines")
    expect(page.locator("#announcer")).to_contain_text("Pippin said:")
    api.will_refuse(429, "busy", Retry_After="5")
    send(page, "Another")
    expect(page.get_by_role("alert")).to_contain_text("busy")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(new_page: Any, api: ChatApi, violations: Any, theme: str) -> None:
    page = new_page(color_scheme=theme, reduced_motion="reduce")
    expect(page.locator("html")).to_have_attribute("data-theme", theme)
    assert violations(page) == []
    talk(page, api)
    page.get_by_text("Thoughts").click()
    assert violations(page) == []
    page.get_by_role("button", name="Edit message").first.click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Settings").click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Rename").click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Delete").click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    api.will_say("Once", gate := threading.Event())
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".assistant .text").nth(1)).to_have_text("Once")
    assert violations(page) == []
    gate.set()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_the_drawer_and_the_key_dialog(
    new_page: Any, api: ChatApi, violations: Any, theme: str
) -> None:
    page = new_page(
        color_scheme=theme, reduced_motion="reduce", viewport={"width": 320, "height": 640}
    )
    talk(page, api)
    assert violations(page) == []
    page.get_by_role("button", name="Chats", exact=True).click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    api.key = "s3cret"
    page.reload()
    expect(page.get_by_role("dialog", name="API key")).to_be_visible()
    assert violations(page) == []


def test_axe_would_find_something(page: Any, violations: Any) -> None:
    page.evaluate("() => document.querySelector('#send').removeAttribute('aria-label')")
    page.evaluate("() => document.querySelector('#send').removeAttribute('title')")
    assert any("button-name" in line for line in violations(page))


def test_the_theme_follows_the_system_until_it_is_chosen(new_page: Any) -> None:
    page = new_page(color_scheme="light")
    html, button = page.locator("html"), page.get_by_role("button", name="Dark theme")
    expect(button).to_have_attribute("aria-pressed", "false")
    page.emulate_media(color_scheme="dark")
    expect(html).to_have_attribute("data-theme", "dark")
    expect(button).to_have_attribute("aria-pressed", "true")
    button.click()
    expect(html).to_have_attribute("data-theme", "light")
    page.reload()
    expect(html).to_have_attribute("data-theme", "light")
    button.click()  # back to what the system has: it is followed again
    page.emulate_media(color_scheme="light")
    expect(html).to_have_attribute("data-theme", "light")


@pytest.mark.parametrize(
    "screen",
    [
        {"viewport": {"width": 320, "height": 640}},
        {"viewport": {"width": 320, "height": 256}, "device_scale_factor": 4},
        {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2},
        {"viewport": {"width": 1280, "height": 800}},
    ],
    ids=["narrow", "1280 at 400 %", "1280 at 200 %", "wide"],
)
def test_nothing_scrolls_sideways(new_page: Any, api: ChatApi, screen: dict[str, Any]) -> None:
    page = new_page(**screen)
    talk(page, api)
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    page.get_by_role("button", name="Edit message").first.click()
    assert page.evaluate(wide) == 0
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Settings").click()
    assert page.evaluate(wide) == 0
    dialog = page.locator("#settings").bounding_box()
    assert dialog["x"] >= 0
    assert dialog["x"] + dialog["width"] <= screen["viewport"]["width"]
    page.get_by_role("button", name="Save").scroll_into_view_if_needed()
    expect(page.get_by_role("button", name="Save")).to_be_in_viewport()


def test_the_keyboard_alone_is_enough(new_page: Any, api: ChatApi) -> None:
    page = new_page()
    keys = page.keyboard
    expect(page.locator("#message")).to_be_focused()
    api.will_say("one")
    keys.type("a")
    keys.press("Enter")
    expect(page.locator("#announcer")).to_have_text("Pippin said: one")
    expect(page.locator("#message")).to_be_focused()
    reached = names_by_tab(page)
    names = ["Skip to the message box", "New chat", "a", "Rename “a”", "Export “a”", "Delete “a”"]
    names += ["Import", "Export all", "Settings", "Dark theme", "Copy message", "Edit message"]
    names += ["Copy reply", "Why?", "Regenerate", "Message", "Attach a document", "Model", "Send"]
    assert reached == names
    go_to(page, "Edit message")
    keys.press("Enter")
    keys.type("b")
    api.will_say("two")
    keys.press("Enter")
    expect(page.locator(".message .text")).to_have_text(["ab", "two"])
    expect(page.locator("#message")).to_be_focused()
    go_to(page, "Settings")
    keys.press("Space")
    expect(page.get_by_label("System prompt")).to_be_focused()
    keys.press("Escape")
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    go_to(page, "Skip to the message box")
    keys.press("Enter")
    expect(page.locator("#message")).to_be_focused()


NAME = """() => {
  const it = document.activeElement;
  return it.ariaLabel ?? it.labels?.[0]?.textContent ?? it.textContent.trim();
}"""


def names_by_tab(page: Any) -> list[str]:
    """The names of all that Tab reaches, from the first; each must show that it has the focus."""
    page.locator("a").first.focus()
    names = [page.evaluate(NAME)]
    while True:
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement === document.body"):
            return names
        names.append(page.evaluate(NAME))
        assert len(names) < 100
        assert page.evaluate(SHOWS_FOCUS), names[-1]


# An outline, or for the message box the border of the box around it.
SHOWS_FOCUS = """() => {
  const it = document.activeElement;
  const box = it.closest(".box");
  const { outlineStyle, outlineWidth } = getComputedStyle(it);
  return it.id === "message"
    ? getComputedStyle(box).boxShadow.includes("0px 0px 0px 1px")
    : outlineStyle === "solid" && parseFloat(outlineWidth) >= 2;
}"""


def go_to(page: Any, name: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(NAME) == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


def test_the_drawer_takes_and_gives_back_the_focus(new_page: Any, api: ChatApi) -> None:
    page = new_page(viewport={"width": 320, "height": 640}, reduced_motion="reduce")
    menu = page.get_by_role("button", name="Chats", exact=True)
    expect(page.locator("#new-chat")).to_be_hidden()
    menu.press("Enter")
    expect(menu).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_role("button", name="Close the list of chats")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#new-chat")).to_be_hidden()
    expect(menu).to_be_focused()
    menu.press("Enter")
    page.mouse.click(310, 300)  # on the page beside it
    expect(page.locator("#new-chat")).to_be_hidden()


def test_an_escape_in_a_dialog_does_not_stop_the_reply(page: Any, api: ChatApi) -> None:
    gate = threading.Event()
    api.will_say("Once", gate, " upon")
    send(page, "A story")
    expect(page.locator(".assistant .text")).to_have_text("Once")
    page.get_by_role("button", name="Settings").click()
    page.keyboard.press("Escape")
    gate.set()
    expect(page.locator(".assistant .text")).to_have_text("Once upon")


def test_focus_is_not_hidden_behind_the_bars(new_page: Any, api: ChatApi) -> None:
    page = new_page(viewport={"width": 900, "height": 700})
    api.will_say("\n\n".join(f"[link {n}](https://example.org/{n})" for n in range(60)))
    send(page, "Links")
    expect(page.locator("#announcer")).to_contain_text("link 59")
    covered = """(link) => {
      link.focus();
      const { left, top, height } = link.getBoundingClientRect();
      return document.elementFromPoint(left + 2, top + height / 2) !== link;
    }"""
    links = page.locator(".assistant a").element_handles()
    assert [n for n in [*range(60), *range(59, -1, -1)] if links[n].evaluate(covered)] == []


def test_reduced_motion_stops_what_moves(new_page: Any, api: ChatApi) -> None:
    gate = threading.Event()
    page = new_page(reduced_motion="reduce")
    api.will_say(gate)
    send(page, "Hi")
    page.locator(".streaming").wait_for()
    moving = "() => document.getAnimations().length"
    assert page.evaluate(moving) == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(moving) == 1
    gate.set()
