"""One HTML file that holds a report and the program that shows it; it asks for nothing else."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..page_file import page_policy, write_page_file
from .series import Chart

_SCRIPTS = (
    *("data.js", "dom.js", "chart.js", "strip.js", "attention.js", "heads.js"),
    *("walkthrough.js", "main.js"),
)


@dataclass(frozen=True)
class Table:
    """Cells as they are read; a column's kind is "number", "token" or "" for text."""

    caption: str
    headers: tuple[tuple[str, str], ...]  # name, kind
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Part:
    """A section of numbers and pictures."""

    id: str  # of letters and hyphens
    title: str
    notes: tuple[str, ...]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...] = ()


def write_page(path: Path, title: str, data: Mapping[str, Any], parts: Sequence[Part]) -> int:
    """Write the page to `path`, whole or not at all; returns its size in bytes.

    `data` is what page/main.js reads. Raises InputError when the file cannot be written.
    """
    text = render_page(title, dict(data) | {"parts": [asdict(part) for part in parts]})
    content = text.encode("utf-8")
    write_page_file(path, content)
    return len(content)


def render_page(title: str, data: Mapping[str, Any]) -> str:
    """The page's text. Its policy lets the browser run and fetch nothing but what stands in it."""
    folder = files(__package__) / "page"
    script = "\n".join((folder / name).read_text("utf-8") for name in _SCRIPTS)
    style = (folder / "style.css").read_text("utf-8")
    document = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    values = {
        "title": html.escape(title),
        "policy": page_policy(script, style),
        "style": style,
        "script": script,
        # What stands in a script element must not look like its end, or like a comment.
        "data": document.replace("<", "\\u003c"),
    }
    template = (folder / "page.html").read_text("utf-8")
    return re.sub(r"\{(title|policy|style|script|data)\}", lambda m: values[m[1]], template)
