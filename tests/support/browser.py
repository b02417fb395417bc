"""Headless Chromium and axe-core, as fixtures; a conftest names those that it needs."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .consumer_packages import Missing, browser, node_modules

_PACKAGE = Path(__file__).parent.parent / "serve_page" / "package.json"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
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
def open_file(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file without a network; at the end nothing else was asked for, nothing failed."""
    contexts, asked, faults = [], set(), []

    def opened(file: Path, **options: Any) -> Any:
        context = chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(10_000)
        context.on("request", lambda request: asked.add(request.url))
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on("console", lambda message: faults.append(message.text))
        context.on("dialog", lambda dialog: faults.append(dialog.message))
        context.set_offline(True)
        page = context.new_page()
        page.goto(file.as_uri())
        asked.discard(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []
    assert {url for url in asked if not url.startswith("data:")} == set()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    try:
        modules = node_modules("axe-core", _PACKAGE)
    except Missing as error:
        pytest.skip(str(error))
    return (modules / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def violations(axe: str) -> Callable[[Any], list[str]]:
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
