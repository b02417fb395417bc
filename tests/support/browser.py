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
