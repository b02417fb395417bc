"""What the web page says when something goes wrong, and how one goes on from there."""

from typing import Any

import pytest

from support.chat_api import ChatApi, HangUp
from support.chat_page import asked_of, send

expect = pytest.importorskip("playwright.sync_api").expect


def test_a_busy_server_says_when_to_come_again(page: Any, api: ChatApi) -> None:
    api.will_refuse(429, "the queue is full", Retry_After="5")
    send(page, "Hi")
    error = page.get_by_role("alert")
    expect(error).to_contain_text("The server is busy. Try again in 5 seconds.")
    api.will_say("Hello")
    error.get_by_role("button", name="Retry").click()
    expect(page.locator(".assistant .text")).to_have_text("Hello")
    expect(error).to_be_empty()
    assert asked_of(api.asked[1]) == [("user", "Hi")]


def test_a_full_context_says_what_can_be_done(page: Any, api: ChatApi) -> None:
    api.will_refuse(400, "5000 tokens are more than 4096.", "context_length_exceeded")
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("5000 tokens are more than 4096. Begin a new")


def test_any_other_refusal_is_shown_in_the_server_s_words(page: Any, api: ChatApi) -> None:
    api.will_refuse(400, "top_k is not taken here")
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("top_k is not taken here")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.locator("#message")).to_be_focused()


def test_a_server_that_is_gone(page: Any, api: ChatApi) -> None:
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    page.unroute("**/v1/chat/completions")
    api.will_say("Hello")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".assistant .text")).to_have_text("Hello")


def test_a_reply_that_is_cut_off_is_kept(page: Any, api: ChatApi) -> None:
    api.will_say("Once", HangUp())
    send(page, "A story")
    expect(page.get_by_role("alert")).to_contain_text("The connection ended before the reply did")
    expect(page.locator(".assistant .text")).to_have_text("Once")
    expect(page.locator(".assistant .foot")).to_contain_text("Ended early")


def test_an_error_inside_a_stream(page: Any, api: ChatApi) -> None:
    api.will_say("Once", {"error": {"message": "the server is shutting down"}})
    send(page, "A story")
    expect(page.get_by_role("alert")).to_contain_text("the server is shutting down")
    expect(page.locator(".assistant .text")).to_have_text("Once")


def test_a_reply_without_a_word(page: Any, api: ChatApi) -> None:
    api.will_say()
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("without a word")
    expect(page.locator(".message")).to_have_count(1)


def test_the_key_is_asked_for_and_kept_for_the_tab(page: Any, api: ChatApi) -> None:
    api.key = "s3cret"
    page.reload()
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_contain_text("asks for an API key")
    dialog.get_by_label("Key").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("did not accept this key")
    dialog.get_by_label("Key").fill("s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_be_enabled()
    page.reload()
    expect(page.locator("#model")).to_be_enabled()
    api.will_say("Hello")
    send(page, "Hi")
    expect(page.locator(".assistant .text")).to_have_text("Hello")
    stored = page.evaluate("() => JSON.stringify({ ...localStorage })")
    assert "s3cret" not in stored
    assert "Hello" in stored


def test_a_key_that_is_asked_for_in_the_middle(page: Any, api: ChatApi) -> None:
    expect(page.locator("#model")).to_be_enabled()
    api.key = "s3cret"
    send(page, "Hi")
    page.get_by_role("dialog", name="API key").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("an API key is needed")
    page.get_by_role("button", name="Retry").click()
    page.get_by_label("Key", exact=True).fill("s3cret")
    api.will_say("Hello")
    page.keyboard.press("Enter")
    expect(page.locator(".assistant .text")).to_have_text("Hello")


def test_a_stream_of_something_else(page: Any, api: ChatApi) -> None:
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body="data: <html>\n\n"),
    )
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("This is no JSON")


def test_an_answer_from_something_between(page: Any, api: ChatApi) -> None:
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=502, content_type="text/html", body="<h1>Bad</h1>"),
    )
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("The server answered with status 502.")
