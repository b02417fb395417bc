"""Markdown: its source is the text, its headings are those that CommonMark sees."""

from itertools import accumulate

from .headings import split_number
from .pages import Heading, Page
from .read_text import tidy


def read_markdown(text: str) -> tuple[str, list[Page]]:
    """The first heading of level 1, "" where there is none, and the one page."""
    from markdown_it import MarkdownIt

    text = tidy(text)
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    headings = []
    tokens = MarkdownIt("commonmark").parse(text)
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.map:
            inline = tokens[place + 1]
            parts = [
                " " if child.type in ("softbreak", "hardbreak") else child.content
                for child in inline.children or []
                if child.type in ("text", "code_inline", "softbreak", "hardbreak")
            ]
            if title := " ".join("".join(parts).split()):
                level = int(token.tag[1])
                headings.append(Heading(level, *split_number(title), starts[token.map[0]]))
    title = next((heading.title for heading in headings if heading.level == 1), "")
    return title, [Page(1, "1", text, tuple(headings), "text")]
