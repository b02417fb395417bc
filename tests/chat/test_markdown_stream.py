"""Light Markdown, streamed: the same however it is cut, nothing lost, nothing too wide."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from pippin.commands.chat_terminal.markdown import MarkdownStream

_PARTS = [
    *(
        "*",
        "**",
        "***",
        "`",
        "``",
        "_",
        "~",
        " ",
        "\n",
        "\t",
        "  ",
        "a",
        "Word ",
        "x1",
        ".",
        "日本",
        "é",
    ),
    *(
        "- ",
        "* ",
        "# ",
        "## ",
        "1. ",
        "12) ",
        "> ",
        "---",
        "***\n",
        "```\n",
        "```py\n",
        "~~~\n",
        "\n\n",
    ),
    "a-very-long-word-that-is-longer-than-may-wait",
]
_TEXT = st.lists(st.sampled_from(_PARTS), max_size=40).map("".join) | st.text(max_size=40)


def _styled(pieces: list[str], width: int = 10**6) -> list[tuple[str, str]]:
    """Each character that is written, with its style."""
    written: list[tuple[str, str]] = []
    stream = MarkdownStream(lambda text, style: written.append((text, style)), lambda: width)
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return [(char, style) for text, style in written for char in text]


def _text(pieces: list[str], width: int = 10**6) -> str:
    return "".join(char for char, _ in _styled(pieces, width))


@given(_TEXT, st.data())
def test_the_cuts_do_not_matter(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    for width in (10**6, 12):
        assert _styled(pieces, width) == _styled([text], width) == _styled(list(text), width)


@given(_TEXT)
def test_only_marks_are_taken_out(text: str) -> None:
    def letters(of: str) -> str:
        return "".join(char for char in of if char not in "*`#-+•" and not char.isspace())

    assert letters(_text([text])) == letters(text)
    assert letters(_text([text], 15)) == letters(text)
    assert _text([text]).count("\n") == text.count("\n")


@given(st.lists(st.text("abcé日", min_size=1, max_size=8), max_size=40), st.integers(16, 40))
def test_rows_fit_and_words_stay_whole(words: list[str], width: int) -> None:
    text = _text([" ".join(words)], width)
    assert all(cell_len(row) <= width for row in text.split("\n"))
    if not any("日" in word for word in words):
        assert text.split() == words


_LINES = [
    "some **bold text** and *emphasis*, `code` and ***both***",
    "**Note:** begins so",
    "a `**` in code and `a*b`, ``with ` inside``",
    "5 * 3 * 2 and a ** b",
    "an *open one",
    "an **open one and `another",
    "`never closed",
    "**bold with `code` inside** after",
    "*emphasis*. **bold**! (*in brackets*)",
    "** not bold ** and * not so *",
]


@pytest.mark.parametrize("line", _LINES)
def test_spans_are_those_of_commonmark(line: str) -> None:
    theirs, styles = [], []
    for token in MarkdownIt().parseInline(line)[0].children:
        name = {"strong": "bold", "em": "italic"}.get(token.type.partition("_")[0])
        if token.type.endswith("_open"):
            styles.append(name)
        elif token.type.endswith("_close"):
            styles.remove(name)
        else:
            style = {*styles, "cyan"} if token.type == "code_inline" else set(styles)
            theirs += [(char, style) for char in token.content]
    ours = [(char, set(style.split())) for char, style in _styled([line])]
    assert [c for c in ours if c[0] != " "] == [c for c in theirs if c[0] != " "]


@pytest.mark.parametrize("line", ["2*3*4", "*args and **kwargs", "snake_case_name __init__", "**"])
def test_what_is_no_mark_stands(line: str) -> None:
    assert set(_styled([line])) == {(char, "") for char in line}


@pytest.mark.parametrize(
    "line", ["a  *b* \t c", "#  *", "-  *a", "+ \t b", "1.  *", "2)  a", ">  *b"]
)
def test_spaces_that_come_one_by_one(line: str) -> None:
    assert _styled(list(line)) == _styled([line])


def test_a_code_block_is_left_alone() -> None:
    code = "```python\ndef f(*a):\n    return '**x**'  # " + "long " * 30 + "\n```"
    written = _styled([code + "\n**b**"], 40)
    assert "".join(c for c, _ in written) == code + "\nb"
    assert {style for char, style in written if char == "x"} == {"cyan"}


def test_a_list_hangs() -> None:
    assert _text(["- one two three four\n- five"], 10) == "• one two\n  three\n  four\n• five"


def test_a_row_is_measured_when_it_is_written() -> None:
    width, rows = [20], []
    stream = MarkdownStream(lambda text, _: rows.append(text), lambda: width[0])
    stream.feed("aaaa bbbb cccc ")
    width[0] = 10
    stream.feed("dddd eeee ffff")
    stream.finish()
    # As the terminal has it then: "aaaa bbbb " above, "cccc dddd" in the row that is written on.
    assert "".join(rows) == "aaaa bbbb cccc dddd\neeee ffff"
