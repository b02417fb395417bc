"""Headless Chromium on the web page, with a stub of the server behind it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.chat_api import ChatApi, chat_api
from support.consumer_packages import Missing, browser, node_modules

playwright = pytest.importorskip("playwright.sync_api")

_PACKAGE = Path(__file__).parent / "package.json"
_MS = 10_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    try:
        path = browser()
    except Missing as error:
        pytest.skip(str(error))
    with playwright.sync_playwright() as driver:
        # Tests may run as root, where there is no sandbox.
        program = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield program
        program.close()


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


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    try:
        modules = node_modules("axe-core", _PACKAGE)
    except Missing as error:
        pytest.skip(str(error))
    return (modules / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def violations(axe: str) -> Any:
    """What axe-core finds wrong with a page as it is now: one line a violation."""

    def found(page: Any) -> list[str]:
        page.evaluate(axe)
        result = page.evaluate("() => axe.run()")
        assert result["passes"]
        return [
            f"{one['id']}: {json.dumps([node['html'][:200] for node in one['nodes']])}"
            for one in result["violations"]
        ]

    return found
