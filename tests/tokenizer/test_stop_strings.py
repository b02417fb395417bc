"""Stop strings: the same cut wherever the chunks are cut."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pippin.runtime.errors import InputError
from pippin.runtime.stop import StopStrings

ALPHABET = st.sampled_from("ab<é\n")
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4)


def expected(text, stops):
    found = [text.find(stop) for stop in stops if stop in text]
    return text[: min(found)] if found else text


@given(chunks=st.lists(st.text(ALPHABET, max_size=6), max_size=12), stops=STOPS)
@example(chunks=["a", "b", "c"], stops=["abcd", "bc"])
@example(chunks=["abc", "d"], stops=["abcd", "bc"])
@example(chunks=["aab"], stops=["ab"])
@example(chunks=["aaa", "ab"], stops=["aaab"])
def test_any_chunks_end_where_the_whole_text_would(chunks, stops):
    finder = StopStrings(stops)
    shown = ""
    for chunk in chunks:
        text, stopped = finder.feed(chunk)
        shown += text
        assert stopped == finder.stopped
    shown += finder.flush()
    whole = "".join(chunks)
    assert shown == expected(whole, stops)
    assert finder.stopped == any(stop in whole for stop in stops)


@given(text=st.text(ALPHABET, max_size=30), stops=STOPS)
def test_no_more_is_held_back_than_could_become_a_stop(text, stops):
    finder = StopStrings(stops)
    shown = "".join(finder.feed(char)[0] for char in text)
    held = text[len(shown) :]
    if not finder.stopped:
        assert held == "" or any((held + rest).startswith(s) for s in stops for rest in _ends(s))


def _ends(stop):
    return [stop[index:] for index in range(1, len(stop))]


def test_text_after_a_stop_is_dropped():
    finder = StopStrings(["END"])
    assert finder.feed("one EN") == ("one ", False)
    assert finder.feed("D two") == ("", True)
    assert finder.feed("three") == ("", True)
    assert finder.flush() == ""


def test_a_near_miss_is_given_out_whole():
    finder = StopStrings(["<|im_end|>"])
    assert finder.feed("x<|im_en") == ("x", False)
    assert finder.flush() == "<|im_en"
    assert not finder.stopped


@pytest.mark.parametrize("stops", [[""], ["a", ""], "ab", [3], [None]])
def test_what_is_no_stop_string_is_refused(stops):
    with pytest.raises(InputError):
        StopStrings(stops)
