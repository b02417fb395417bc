"""The page that a run is written into: its measured part is replaced, the rest stays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_own import render_own
from peer_tables import render

_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def compose(report: dict[str, Any], arguments: Sequence[str]) -> str:
    """The whole report as Markdown, the command first."""
    command = " ".join(["python", "benchmarks/peers.py", *arguments])
    parts = [f"    {command}\n", render(report)]
    if "own" in report:
        parts.append(render_own(report["own"]))
    return "\n".join(part for part in parts if part)


def insert(page: Path, text: str) -> None:
    """Put `text` between the page's marks, or write it as the page where there are none."""
    old = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, begin, rest = old.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    new = f"{before}{begin}\n\n{text}\n{end}{after}" if begin and end else text
    temporary = page.with_name(page.name + ".part")
    temporary.write_text(new, encoding="utf-8")
    temporary.replace(page)
