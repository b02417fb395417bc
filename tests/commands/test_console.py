"""Progress, tables and texts of the commands."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.commands.console import (
    Progress,
    check_text,
    decode,
    format_bytes,
    print_table,
    shown,
    table_lines,
    write,
)
from pippin.runtime.errors import InputError


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_progress_that_goes_away() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        stage = progress.stage("fetching", "bytes")
        stage(10, 100)
        stage(50, None)
        progress.stage("exporting", "steps")(1, 3)
    assert "fetching" in stream.getvalue()
    assert "exporting" in stream.getvalue()
    assert "steps" in stream.getvalue()
    # the last thing written takes the line away: erase, cursor shown
    assert stream.getvalue().rpartition("exporting")[2].count("\x1b[2K") >= 1


def test_nothing_is_shown_elsewhere_or_for_what_is_over_at_once() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.stage("fetching")(10, 100)
    assert stream.getvalue() == ""
    terminal = Terminal()
    with Progress(terminal) as progress:
        progress.stage("fetching")(100, 100)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("name", ["[/b].pdf", "[red]x.pdf", "\x1b]0;x\x07.pdf"])
def test_a_title_is_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with Progress(stream) as progress:
        progress.stage(f"reading {name}")(1, 100)
    assert shown(name)[:6] in stream.getvalue()
    assert "\x1b]0" not in stream.getvalue()


def test_a_terminal_gets_no_control_characters_and_a_pipe_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\x1b[2J\t東京\u200d\x07\x9b\r\n"
    write(text)
    assert capsys.readouterr().out == text
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    write(text)
    assert terminal.getvalue() == "^[[2J\t東京\u200d^G\\x9b^M\n"


def test_colours_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with Progress(stream) as progress:
        progress.stage("fetching")(10, 100)
    assert "fetching" in stream.getvalue()
    assert "\x1b[3" not in stream.getvalue()
    assert "\x1b[38" not in stream.getvalue()


def test_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([["a", "1"], ["bcd", "22,000"], ["e", "-"]], ["NAME", "SIZE"])
    assert capsys.readouterr().out == ("NAME    SIZE\na          1\nbcd   22,000\ne          -\n")
    print_table([["1 x", "b"], ["c", "d"]])
    assert capsys.readouterr().out == "1 x  b\nc    d\n"
    print_table([])
    assert capsys.readouterr().out == ""
    print_table([["日本", "·x"], ["a", "e\u0301"], ["bcde", "y"]])
    assert capsys.readouterr().out == "日本  ·x\na     e\u0301\nbcde  y\n"


@pytest.mark.parametrize(
    "cells",
    [
        ["22,000", "7", "-"],
        ["<0.01 %", "100.0 %", "3.1%", ""],
        ["2.1e-95", "-0.5", "−1.5", "-∞", "≤ 0.0001"],
        ["12 B", "1.5 GiB", "31.2 tok/s"],
        ["1,234 (1,111–1,357)", "0.478 (0.469–0.499)"],
        ["4.2 [4.0–4.4]", "31.0 [30.1–32.2] 81%"],
        ["95 of 256", "0 of 32"],
    ],
    ids=lambda cells: cells[0],
)
def test_numbers_are_set_flush_right(cells: list[str]) -> None:
    width = max(map(len, cells))
    assert table_lines([[cell, "x"] for cell in cells]) == [c.rjust(width) + "  x" for c in cells]


@pytest.mark.parametrize(
    "cell",
    ["2 layers of 240 units, embeddings of 128", "3×64", "8-bit", "2026-01-02", "4th", "cut by 3"],
)
def test_what_only_begins_with_a_digit_is_text(cell: str) -> None:
    assert table_lines([[cell], ["x" * 50]])[0] == cell
    assert table_lines([[cell, "|"], ["1" * 50, "|"]])[0] == cell.ljust(52) + "|"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 2**30, "3.0 GiB"),
        (5000 * 2**40, "5,000.0 TiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")))
def test_any_text_passes(text: str) -> None:
    assert decode(text.encode("utf-8"), "prompt") == text


@given(st.binary())
def test_bytes_are_text_or_refused(data: bytes) -> None:
    try:
        text = decode(data, "prompt")
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert b"\0" in data or not _is_utf8(data)
    else:
        assert text.encode("utf-8") == data


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def test_an_argument_that_was_not_utf8() -> None:
    with pytest.raises(InputError, match="the prompt is not UTF-8 at offset 1"):
        check_text("a\udcff", "the prompt")
