"""Light Markdown as it streams: styles, bullets and word wrap, and nothing is ever written twice.

Headings, **strong**, *emphasis*, `code`, lists, quotes, rules and fenced code are styled. A mark is
taken out only where the span that it opens is seen to be closed on the same line; all else stands
as the model wrote it. What is not decided yet is held back: at most the rest of a line.
"""

import re
from collections.abc import Callable

from rich.cells import cell_len

_HELD = 240  # characters that may wait for the end of a span
_LONGEST_WORD = 30  # cells of a word that may wait for its end

# The whole beginning of a line while it may still become one of the marks below.
_UNDECIDED = re.compile(
    r"[ \t]*(#{1,6}[ \t]*|\+[ \t]*|\d{1,4}([.)][ \t]*)?|>|`{1,2}|~{1,2}|([-*_][ \t]*)+)?"
)
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]+")
_BULLET = re.compile(r"([ \t]*)[-+*][ \t]+")
_NUMBER = re.compile(r"([ \t]*)(\d{1,4}[.)])[ \t]+")
_QUOTE = re.compile(r"[ \t]{0,3}>[ \t]?")
_RULE = re.compile(r"[ \t]{0,3}([-*_])([ \t]*\1){2,}[ \t]*")
_SPANS = (
    ("`", re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)"), "cyan"),
    ("***", re.compile(r"(\*\*\*)(?=[^\s*])(.+?)(?<=[^\s*])\*\*\*(?!\*)"), "bold italic"),
    ("**", re.compile(r"(\*\*)(?=[^\s*])(.+?)(?<=[^\s*])\*\*(?!\*)"), "bold"),
    ("*", re.compile(r"(?<!\w)(\*)(?=[^\s*])([^*]+?)(?<=[^\s*])\*(?![\w*])"), "italic"),
)


class MarkdownStream:
    """Takes a text in pieces and writes it with `write(text, style)`."""

    def __init__(
        self, write: Callable[[str, str], None], width: Callable[[], int], bullet: str = "•"
    ) -> None:
        """`width()` is asked anew for each word, in cells."""
        self._write, self._width, self._bullet = write, width, bullet
        self._line = ""  # of the current line, what has not been written
        self._begun = False  # whether the beginning of the line is decided
        self._fence = ""  # the mark that ends the code block we are in
        self._before = ""  # the character before `_line`
        self._style = ""  # of the whole line
        self._wrap = _Wrap(write, width)

    def feed(self, text: str) -> None:
        """Write what `text` makes certain."""
        *lines, rest = text.split("\n")
        for line in lines:
            self._line += line
            self._flush(complete=True)
            self._end_line()
        self._line += rest
        self._flush(complete=False)

    def finish(self) -> None:
        """Write all that was held back."""
        self._flush(complete=True)
        self._wrap.flush()

    def _end_line(self) -> None:
        self._wrap.end_line()
        self._line, self._begun, self._before, self._style = "", False, "", ""

    def _flush(self, complete: bool) -> None:
        if not self._begun:
            if not complete and self._may_be_mark():
                return
            self._begin(complete)
        if self._fence:
            self._wrap.raw(self._line, "cyan")
            self._line = ""
        else:
            self._line = self._inline(self._line, self._style, complete)

    def _may_be_mark(self) -> bool:
        if self._fence:  # only its end is a mark there
            return self._fence.startswith(self._line.strip()[: len(self._fence)])
        return bool(_UNDECIDED.fullmatch(self._line) or _FENCE.match(self._line))

    def _begin(self, complete: bool) -> None:
        """Decide what kind of line this is, and write its mark."""
        self._begun = True
        line = self._line
        if self._fence:
            if complete and line.strip().startswith(self._fence) and not line.strip(" \t`~"):
                self._fence = ""
                self._take(len(line), line, "dim")
            return
        if match := _FENCE.match(line):
            self._fence = match[1]
            self._take(len(line), line, "dim")
        elif complete and _RULE.fullmatch(line):
            self._take(len(line), line, "dim")
        elif match := _HEADING.match(line):
            self._style = "bold"
            self._take(match.end(), "", "")
        elif match := _BULLET.match(line):
            self._take(match.end(), f"{match[1]}{self._bullet} ", "")
        elif match := _NUMBER.match(line):
            self._take(match.end(), f"{match[1]}{match[2]} ", "")
        elif match := _QUOTE.match(line):
            self._style = "italic"
            self._take(match.end(), match[0], "dim")

    def _take(self, count: int, text: str, style: str) -> None:
        self._line = self._line[count:]
        self._wrap.indent(text, style)

    def _inline(self, text: str, style: str, complete: bool) -> str:
        """Write `text` with its spans; what waits for more is returned."""
        while text:
            place = next((i for i, char in enumerate(text) if char in "*`"), len(text))
            self._words(text[:place], style)
            text = text[place:]
            if not text:
                break
            taken = self._span(text, style, complete)
            if taken == 0:
                return text
            text = text[taken:]
        return ""

    def _span(self, text: str, style: str, complete: bool) -> int:
        """Write the span or the mark that `text` begins with; its length, 0 when it must wait."""
        mark = re.match(r"`+|\*+", text)[0]
        for begin, pattern, added in _SPANS:
            if not mark.startswith(begin) or (begin[0] == "*" and mark != begin):
                continue
            match = pattern.match(self._before + text, len(self._before))
            end = match.end() - len(self._before) if match else _HELD + 1
            if end > _HELD:
                continue
            if end == len(text) and not complete:
                return 0  # the next character may belong to the mark
            inner = f"{style} {added}".strip()
            if begin == "`":
                self._words(match[2], inner)
            else:
                self._inline(match[2], inner, complete=True)
            self._before = mark[0]
            return end
        if not complete and len(text) < _HELD:
            return 0
        self._words(mark, style)
        return len(mark)

    def _words(self, text: str, style: str) -> None:
        if text:
            self._wrap.words(text, style)
            self._before = text[-1]


class _Wrap:
    """Writes words; one that does not fit the row begins the next, below the text of the first."""

    def __init__(self, write: Callable[[str, str], None], width: Callable[[], int]) -> None:
        self._write, self._width = write, width
        self._column = self._hang = 0  # cells
        self._spaces = ""
        self._word: list[tuple[str, str]] = []  # pieces of one word, by style
        self._cells = 0  # of the word
        self._joined = False  # to the left of the word stands its own beginning

    def indent(self, text: str, style: str) -> None:
        """The mark of a line."""
        self.raw(text, style)
        self._hang = self._column

    def raw(self, text: str, style: str) -> None:
        """Text that the terminal may wrap where it likes."""
        if text:
            self._write(text, style)
            self._column = self._in_row(self._column + cell_len(text))

    def words(self, text: str, style: str) -> None:
        """Text that is wrapped between words."""
        for part in re.split(r"([ \t]+)", text):
            if not part:
                continue
            if part[0] in " \t":
                self.flush()
                self._spaces += part
                self._joined = False
            else:
                self._add(part, style)

    def flush(self) -> None:
        """Write the word that is held back, and the spaces before it; none without a word."""
        if not self._word:
            return
        spaces, self._column = cell_len(self._spaces), self._in_row(self._column)
        wide = self._column + spaces + self._cells > self._width()
        if wide and self._column > self._hang and not self._joined:
            self._write("\n" + " " * self._hang, "")
            self._column, self._spaces = self._hang, ""
        pieces = [(self._spaces, self._word[0][1])] if self._spaces else []
        for text, style in [*pieces, *self._word]:
            self.raw(text, style)
        self._word, self._cells, self._joined, self._spaces = [], 0, False, ""

    def end_line(self) -> None:
        """End the row."""
        self.flush()
        self._write("\n", "")
        self._column = self._hang = 0
        self._spaces, self._joined = "", False

    def _in_row(self, column: int) -> int:
        """Where the cursor is, once the terminal has wrapped a row that was too long."""
        width = self._width()
        return column if column <= width else (column - 1) % width + 1

    def _add(self, text: str, style: str) -> None:
        for char in text:
            wide = cell_len(char) == 2  # such scripts break anywhere
            if wide:
                self.flush()
            self._hold(char, style)
            if wide or self._cells > _LONGEST_WORD:
                self.flush()
                self._joined = not wide

    def _hold(self, char: str, style: str) -> None:
        self._cells += cell_len(char)
        if self._word and self._word[-1][1] == style:
            char = self._word.pop()[0] + char
        self._word.append((char, style))
