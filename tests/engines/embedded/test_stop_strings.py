"""Stop strings: text ends before the first, and no part of one is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.engines.embedded.stop_strings import StopStrings


def test_without_stop_strings_text_passes_at_once():
    """Nothing is held back for nothing."""
    assert StopStrings(()).feed("abc") == ("abc", False)


def test_text_that_could_become_a_stop_string_is_held_back():
    """It is shown when it did not, and at the end."""
    stop = StopStrings(["\n\nUser:"])
    assert stop.feed("Hi\n") == ("Hi", False)
    assert stop.feed("\nUs") == ("", False)
    assert stop.feed("ual") == ("\n\nUsual", False)
    assert stop.feed("x\n\nUser") == ("x", False)
    assert stop.flush() == "\n\nUser"
    assert stop.flush() == ""


def test_the_stop_string_that_begins_first_wins():
    """Both are complete in one piece of text: the output ends before the earlier."""
    assert StopStrings(["d", "bcd"]).feed("abcde") == ("a", True)


@pytest.mark.parametrize("stop", [["aab"], ["ab", "aa"], ["b"], ["aaab", "ba"]])
@given(data=st.data())
def test_however_the_text_is_cut_the_output_is_the_same(stop, data):
    """Cut into pieces of one character or all at once, what is shown stops at the same place."""
    text = data.draw(st.text("abx", max_size=24))
    watched, shown = StopStrings(stop), ""
    for character in text:
        certain, has_stopped = watched.feed(character)
        shown += certain
        if has_stopped:
            break
    else:
        shown += watched.flush()
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    assert shown == (text[: min(ends)[1]] if ends else text)
