"""Headless Chromium on the web page, with a stub of the server behind it."""

from collections.abc import Iterator
from typing import Any

import pytest

from support import browser
from support.chat_api import ChatApi, chat_api

axe, chromium, violations = browser.axe, browser.chromium, browser.violations

pytest.importorskip("playwright.sync_api")

_MS = 10_000


@pytest.fixture
def api() -> Iterator[ChatApi]:
    with chat_api() as api:
        yield api


@pytest.fixture
def new_page(chromium: Any, api: ChatApi) -> Iterator[Any]:
    """Opens the page at a server, the stub by default, in a browser of its own.

    At the end nothing may have failed in it, and nothing but its server been asked for.
    """
    contexts, outside, faults = [], set(), []

    def opened(url: str = api.url, **options: Any) -> Any:
        context = chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(_MS)
        context.on(
            "request", lambda request: request.url.startswith(url) or outside.add(request.url)
        )
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on("console", lambda message: _is_fault(message) and faults.append(message.text))
        page = context.new_page()
        page.goto(url)
        page.locator("#send").wait_for()
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []
    assert {address for address in outside if not address.startswith("blob:")} == set()


def _is_fault(message: Any) -> bool:
    # Chromium itself reports a refused request; that is what some tests are about.
    return message.type == "error" and not message.text.startswith("Failed to load resource")


@pytest.fixture
def page(new_page: Any) -> Any:
    return new_page()
