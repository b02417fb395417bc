"""Asking and answering on the web page."""

import threading
from typing import Any

import pytest

from support.chat_api import ChatApi, Thought
from support.chat_page import asked_of, send

expect = pytest.importorskip("playwright.sync_api").expect


def test_text_is_shown_as_it_comes(page: Any, api: ChatApi) -> None:
    first, second = threading.Event(), threading.Event()
    api.will_say("Hel", first, "lo", second, ".", cached=7)
    send(page, "Hi")
    reply = page.locator(".assistant")
    expect(reply.locator(".text")).to_have_text("Hel")
    expect(reply).to_have_attribute("aria-busy", "true")
    first.set()
    expect(reply.locator(".text")).to_have_text("Hello")
    expect(page.locator("#announcer")).to_be_empty()  # said once, when it is finished
    second.set()
    expect(page.locator("#announcer")).to_have_text("Pippin said: Hello.")
    expect(reply).to_have_attribute("aria-busy", "false")
    expect(reply.locator(".foot")).to_contain_text("3 tokens")
    expect(reply.locator(".foot")).to_contain_text("prompt 20, 7 cached")
    body = api.asked[0]
    assert asked_of(body) == [("user", "Hi")]
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop(page: Any, api: ChatApi, how: str) -> None:
    reply = api.will_say("Once upon", threading.Event(), " a time")
    send(page, "A story")
    expect(page.locator(".assistant .text")).to_have_text("Once upon")
    page.locator("#stop").click() if how == "button" else page.keyboard.press("Escape")
    expect(page.locator("#send")).to_be_visible()
    assert reply.gone.wait(5)  # the server is told
    expect(page.locator(".assistant .foot")).to_contain_text("Stopped")
    api.will_say("And then?")
    send(page, "Go on")
    expect(page.locator(".assistant .text").nth(1)).to_have_text("And then?")
    assert asked_of(api.asked[1]) == [
        ("user", "A story"),
        ("assistant", "Once upon"),
        ("user", "Go on"),
    ]


def test_a_stop_before_the_first_word_leaves_no_message(page: Any, api: ChatApi) -> None:
    api.will_say(threading.Event())
    send(page, "Hi")
    page.locator("#stop").click()
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator(".message")).to_have_count(1)
    api.will_say("Hello")
    page.get_by_role("button", name="Get a reply").click()
    expect(page.locator(".assistant .text")).to_have_text("Hello")


def test_regenerate(page: Any, api: ChatApi) -> None:
    for text in ("one", "two", "three"):
        api.will_say(text)
    send(page, "a")
    expect(page.locator(".assistant .text")).to_have_text("one")
    send(page, "b")
    expect(page.locator(".assistant .text").nth(1)).to_have_text("two")
    page.get_by_role("button", name="Regenerate").click()  # one: only the last has it
    expect(page.locator(".assistant .text").nth(1)).to_have_text("three")
    assert asked_of(api.asked[2]) == asked_of(api.asked[1])


def test_an_edited_message_is_answered_anew_from_there(page: Any, api: ChatApi) -> None:
    for text in ("one", "two", "three"):
        api.will_say(text)
    send(page, "a")
    expect(page.locator(".assistant .text")).to_have_text("one")
    send(page, "b")
    expect(page.locator(".assistant .text").nth(1)).to_have_text("two")
    page.get_by_role("button", name="Edit message").first.click()
    page.keyboard.press("Escape")
    expect(page.locator(".user .text")).to_have_text(["a", "b"])
    page.get_by_role("button", name="Edit message").first.click()
    page.get_by_role("textbox", name="Edit message").fill("A")
    page.keyboard.press("Enter")
    expect(page.locator(".assistant .text")).to_have_text(["three"])
    expect(page.locator(".user .text")).to_have_text(["A"])
    assert asked_of(api.asked[2]) == [("user", "A")]


def test_settings_and_the_model_are_sent(page: Any, api: ChatApi) -> None:
    api.models.append("large")
    page.reload()
    page.locator("#model:enabled").select_option("large")
    page.get_by_role("button", name="Settings").click()
    given = {"Temperature": "0.7", "Top p": "0.9", "Top k": "40", "Seed": "11"}
    for label, value in (given | {"Longest reply": "99", "System prompt": "Be brief."}).items():
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Save").click()
    page.reload()  # sampling and model are kept; the system prompt was of a chat without a message
    expect(page.locator("#model:enabled")).to_have_value("large")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_role("button", name="Save").click()
    api.will_say("Yes.")
    send(page, "Are you?")
    expect(page.locator(".assistant .text")).to_have_text("Yes.")
    body = api.asked[0]
    assert asked_of(body) == [("system", "Be brief."), ("user", "Are you?")]
    names = ("model", "temperature", "top_p", "top_k", "seed", "max_tokens")
    assert [body[name] for name in names] == ["large", 0.7, 0.9, 40, 11, 99]
    expect(page.locator(".message")).to_have_count(2)  # the system prompt is none of them


def test_empty_settings_are_not_sent(page: Any, api: ChatApi) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Top k").fill("5")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Empty all").click()
    page.get_by_role("button", name="Save").click()
    api.will_say("x")
    send(page, "y")
    expect(page.locator(".assistant .text")).to_have_text("x")
    assert api.asked[0].keys() == {"model", "messages", "stream", "stream_options"}


def test_settings_out_of_range_are_not_taken(page: Any, api: ChatApi) -> None:
    page.get_by_role("button", name="Settings").click()
    for label, value in (("Temperature", "3"), ("Top p", "0"), ("Top k", "1.5"), ("Seed", "-1")):
        page.get_by_label(label).fill(value)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_label(label)).to_be_focused()  # the browser says why
        page.get_by_label(label).fill("")
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()


@pytest.mark.parametrize(
    "pieces",
    [
        (Thought("Well, "), Thought("hm."), "So."),
        ("<think>Well, ", "hm.</thi", "nk>\n\nSo."),
    ],
    ids=["apart", "in the text"],
)
def test_the_thinking_part_is_folded(page: Any, api: ChatApi, pieces: tuple[Any, ...]) -> None:
    api.will_say(*pieces)
    send(page, "Why?")
    expect(page.locator("#announcer")).to_have_text("Pippin said: So.")
    expect(page.locator(".assistant .text")).to_have_text("So.")
    expect(page.locator(".thought")).to_be_hidden()
    page.get_by_text("Thoughts").click()
    expect(page.locator(".thought")).to_have_text("Well, hm.")


def test_a_limit_of_tokens_is_told(page: Any, api: ChatApi) -> None:
    api.will_say("and", finish="length")
    send(page, "Count")
    expect(page.locator(".assistant .foot")).to_contain_text("limit of tokens")


def test_the_composer_takes_new_lines(page: Any, api: ChatApi) -> None:
    api.will_say("ok")
    page.locator("#message").press_sequentially("a")
    page.keyboard.press("Shift+Enter")
    page.locator("#message").press_sequentially("b")
    page.keyboard.press("Enter")
    expect(page.locator(".assistant .text")).to_have_text("ok")
    assert asked_of(api.asked[0]) == [("user", "a\nb")]


def test_nothing_empty_is_sent(page: Any, api: ChatApi) -> None:
    page.fill("#message", "  \n ")
    page.keyboard.press("Enter")
    expect(page.locator(".message")).to_have_count(0)
    assert api.asked == []


def test_copy(new_page: Any, api: ChatApi) -> None:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    text = "Like **this**:\n\n```python\nprint(1)\n```"
    api.will_say(text)
    send(page, "How?")
    expect(page.locator("#announcer")).to_contain_text("Pippin said:")
    clipboard = "() => navigator.clipboard.readText()"
    for button, copied in (("reply", text), ("code", "print(1)"), ("message", "How?")):
        page.get_by_role("button", name=f"Copy {button}").click()
        expect(page.locator("#announcer")).to_have_text("Copied.")
        assert page.evaluate(clipboard) == copied
        page.evaluate("() => document.querySelector('#announcer').replaceChildren()")


def test_who_reads_further_up_stays_there(new_page: Any, api: ChatApi) -> None:
    page = new_page(viewport={"width": 900, "height": 500})
    lines, gates = "line\n\n" * 30, [threading.Event(), threading.Event()]
    api.will_say(lines, gates[0], lines + "second", gates[1], lines + "third")
    send(page, "Much")
    at_end = """() => {
      const { scrollHeight, clientHeight, scrollTop } = document.documentElement;
      return scrollHeight - clientHeight - scrollTop < 2;
    }"""
    expect(page.locator(".text p")).to_have_count(30)
    assert page.evaluate(at_end)
    gates[0].set()
    expect(page.get_by_text("second")).to_be_in_viewport()
    page.evaluate("() => { document.documentElement.scrollTop = 100; }")
    gates[1].set()
    expect(page.locator(".text").get_by_text("third")).to_have_count(1)
    assert page.evaluate("() => document.documentElement.scrollTop") == 100
