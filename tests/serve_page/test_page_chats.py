"""The chats that the browser keeps."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from support.chat_api import ChatApi, Thought
from support.chat_page import asked_of, send

expect = pytest.importorskip("playwright.sync_api").expect


def titles(page: Any) -> Any:
    return page.locator("#chats .title")


def say(page: Any, api: ChatApi, question: str, answer: str) -> None:
    api.will_say(answer)
    send(page, question)
    expect(page.locator("#announcer")).to_have_text(f"Pippin said: {answer}")


@pytest.fixture
def two_chats(page: Any, api: ChatApi) -> Any:
    """A page with the chats a and b, of which b is open."""
    say(page, api, "a", "one")
    page.get_by_role("button", name="New chat").click()
    say(page, api, "b", "two")
    return page


def imported(page: Any, text: str) -> None:
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
    page.locator("#import-file").set_input_files(file)


def exported(page: Any, button: Any) -> tuple[str, Any]:
    with page.expect_download() as download:
        button.click()
    path = Path(download.value.path())
    return download.value.suggested_filename, json.loads(path.read_text(encoding="utf-8"))


def test_chats_survive_a_reload(two_chats: Any, api: ChatApi) -> None:
    page = two_chats
    page.reload()
    expect(titles(page)).to_have_text(["b", "a"])
    expect(page.locator(".message .text")).to_have_text(["b", "two"])  # the one that was open
    titles(page).nth(1).click()
    expect(page.locator(".message .text")).to_have_text(["a", "one"])
    say(page, api, "more", "three")
    assert asked_of(api.asked[-1]) == [("user", "a"), ("assistant", "one"), ("user", "more")]
    expect(titles(page)).to_have_text(["a", "b"])  # the last used first


def test_a_reload_in_the_middle_of_a_reply_keeps_what_has_come(page: Any, api: ChatApi) -> None:
    reply = api.will_say("Once upon", threading.Event())
    send(page, "A story")
    expect(page.locator(".assistant .text")).to_have_text("Once upon")
    page.reload()
    expect(page.locator(".message .text")).to_have_text(["A story", "Once upon"])
    assert reply.gone.wait(5)


def test_rename(two_chats: Any) -> None:
    page = two_chats
    page.get_by_role("button", name="Rename “b”").click()
    page.get_by_label("Name of the chat").fill("Second")
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text(["Second", "a"])
    expect(titles(page).first).to_be_focused()
    page.get_by_role("button", name="Rename “Second”").click()
    page.get_by_label("Name of the chat").fill("Third")
    page.keyboard.press("Escape")
    expect(titles(page)).to_have_text(["Second", "a"])
    page.reload()
    expect(titles(page)).to_have_text(["Second", "a"])


def test_delete(two_chats: Any) -> None:
    page = two_chats
    page.get_by_role("button", name="Delete “b”").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(titles(page)).to_have_count(2)
    page.get_by_role("button", name="Delete “b”").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(titles(page)).to_have_text(["a"])
    expect(page.locator(".message")).to_have_count(0)
    expect(page.get_by_role("button", name="New chat")).to_be_focused()
    page.reload()
    expect(titles(page)).to_have_text(["a"])
    assert "two" not in page.evaluate("() => JSON.stringify({ ...localStorage })")


def test_a_chat_deleted_under_its_reply_stays_deleted(page: Any, api: ChatApi) -> None:
    reply = api.will_say("Once upon", threading.Event())
    send(page, "A story")
    expect(page.locator(".assistant .text")).to_have_text("Once upon")
    page.get_by_role("button", name="Delete “A story”").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    assert reply.gone.wait(5)
    page.reload()
    expect(titles(page)).to_have_count(0)


def test_another_chat_stops_the_reply_and_keeps_its_text(page: Any, api: ChatApi) -> None:
    reply = api.will_say("Once upon", threading.Event())
    send(page, "A story")
    expect(page.locator(".assistant .text")).to_have_text("Once upon")
    page.get_by_role("button", name="New chat").click()
    assert reply.gone.wait(5)
    expect(page.locator(".message")).to_have_count(0)
    titles(page).first.click()
    expect(page.locator(".message .text")).to_have_text(["A story", "Once upon"])


def test_export_and_import(two_chats: Any, api: ChatApi) -> None:
    page = two_chats
    name, chat = exported(page, page.get_by_role("button", name="Export “b”"))
    messages = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "two"}]
    assert (name, chat) == ("b.json", {"title": "b", "messages": messages})
    name, chats = exported(page, page.get_by_role("button", name="Export all"))
    assert (name, [one["title"] for one in chats]) == ("pippin-chats.json", ["b", "a"])
    imported(page, json.dumps(chats))
    expect(titles(page)).to_have_text(["b", "a", "b", "a"])
    expect(page.locator(".message .text")).to_have_text(["b", "two"])
    say(page, api, "more", "three")
    assert asked_of(api.asked[-1]) == [("user", "b"), ("assistant", "two"), ("user", "more")]


def test_messages_of_the_api_are_imported_as_they_are(page: Any, api: ChatApi) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm."},
    ]
    imported(page, json.dumps(messages))
    expect(page.locator(".assistant .text")).to_have_text("So.")
    expect(page.locator(".thought")).to_have_text("Hm.")
    _, chat = exported(page, page.get_by_role("button", name="Export “Why?”"))
    assert chat["messages"] == messages
    say(page, api, "How?", "Thus.")
    assert asked_of(api.asked[0])[0] == ("system", "Be brief.")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "no JSON"),
        ("{}", "no “messages”"),
        ("[]", "holds no chats"),
        ("null", "no “messages”"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "Message 1 of the file has the role"),
        ('{"messages": [null]}', "Message 1 of the file has the role"),
        ('[{"role": "user", "content": 7}]', "has no text"),
        ('[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]', "Message 2"),
        ('[{"role": "user", "content": "a", "reasoning_content": 1}]', "reasoning_content"),
    ],
    ids=["text", "object", "list", "null", "role", "no message", "content", "system", "reasoning"],
)
def test_a_file_of_something_else_is_refused(page: Any, text: str, says: str) -> None:
    imported(page, text)
    expect(page.get_by_role("alert")).to_contain_text(says)
    expect(titles(page)).to_have_count(0)


def test_a_full_storage_is_told_and_the_chat_goes_on(page: Any, api: ChatApi) -> None:
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('quota'); }; }")
    api.will_say("Hello")
    send(page, "Hi")
    expect(page.locator(".assistant .text")).to_have_text("Hello")
    expect(page.get_by_role("alert")).to_contain_text("storage is full")


def test_two_tabs_keep_each_other_s_chats(page: Any, api: ChatApi) -> None:
    other = page.context.new_page()
    other.goto(api.url)
    say(page, api, "a", "one")
    expect(titles(other)).to_have_text(["a"])
    say(other, api, "b", "two")
    expect(titles(page)).to_have_text(["b", "a"])
    expect(page.locator(".message .text")).to_have_text(["a", "one"])
    titles(other).nth(1).click()
    say(other, api, "more", "three")
    expect(page.locator(".message .text")).to_have_text(["a", "one", "more", "three"])


def test_a_thinking_part_is_kept_and_sent_for_the_template_to_cut(page: Any, api: ChatApi) -> None:
    api.will_say(Thought("Hm."), "So.")
    send(page, "Why?")
    expect(page.locator(".assistant .text")).to_have_text("So.")
    page.reload()
    expect(page.locator(".thought")).to_have_text("Hm.")
    say(page, api, "How?", "Thus.")
    assert api.asked[1]["messages"][1] == {
        "role": "assistant",
        "content": "So.",
        "reasoning_content": "Hm.",
    }
