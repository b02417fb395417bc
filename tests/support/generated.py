"""Parts of a document that a program writes, between two marks."""

from pathlib import Path

KERNELS = Path(__file__).parents[2] / "docs" / "kernels.md"


def generated_part(document: Path, name: str) -> str:
    """What stands between the marks of `name`."""
    begin, end = _marks(name)
    text = document.read_text(encoding="utf-8")
    return text[text.index(begin) + len(begin) : text.index(end)].strip("\n")


def write_part(document: Path, name: str, part: str) -> None:
    """Put `part` between the marks of `name`."""
    begin, end = _marks(name)
    text = document.read_text(encoding="utf-8")
    before, after = text[: text.index(begin)], text[text.index(end) :]
    document.write_text(f"{before}{begin}\n{part}\n{after}", encoding="utf-8")


def markdown_table(headers: list[str], rows: list[list[str]], numeric: int | None = None) -> str:
    """A table; columns from `numeric` on are set flush right."""
    right = len(headers) if numeric is None else numeric
    rule = ["---" if i < right else "---:" for i in range(len(headers))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headers, rule, *rows])


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
