"""Calls in a model's output become `tool_calls`; whatever is not a call stays the text it was."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.tool_calls import ToolCall, ToolCallParser, parse_tool_calls
from headstart.prompt.tool_form import render_tool_call

CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "x"}}\n</tool_call>'


def joined(pieces):
    """Merge neighbouring text, so that only the order of text and calls is compared."""
    result = []
    for piece in pieces:
        if isinstance(piece, str) and result and isinstance(result[-1], str):
            result[-1] += piece
        else:
            result.append(piece)
    return result


def test_plain_text_passes_at_once():
    parser = ToolCallParser()
    assert parser.feed("Hello, ") == ["Hello, "]
    assert parser.feed("world") == ["world"]
    assert parser.finish() == []


def test_text_before_a_call_stays_exactly_as_it_was():
    assert parse_tool_calls(f"Let me look.\n{CALL}") == (
        "Let me look.\n",
        [ToolCall("search", '{"q": "x"}')],
    )


def test_arguments_keep_their_bytes():
    arguments = '{"b":1,  "a": "\\u00e9 é", "n": 1.50}'
    _, calls = parse_tool_calls(render_tool_call("f", arguments))
    assert calls == [ToolCall("f", arguments)]


def test_white_space_between_and_after_calls_is_dropped():
    text, calls = parse_tool_calls(f"{CALL}\n{CALL}\n\n")
    assert text == ""
    assert len(calls) == 2


def test_a_tail_that_could_become_a_call_is_held_back():
    parser = ToolCallParser()
    assert parser.feed("a <tool") == ["a "]
    assert parser.feed("_box>") == ["<tool_box>"]


def test_nothing_of_a_call_is_shown_before_it_is_whole():
    parser = ToolCallParser()
    for character in CALL[:-1]:
        assert parser.feed(character) == []
    assert parser.feed(CALL[-1]) == [ToolCall("search", '{"q": "x"}')]


def test_a_call_that_is_never_closed_comes_out_as_text():
    half = CALL[:-5]
    assert parse_tool_calls(half) == (half, [])


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        '{"name": "f", "arguments": "text"}',
        '{"name": "f", "arguments": [1]}',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '["f", {}]',
        '{"name": "f", "arguments": {"a": }}',
    ],
)
def test_a_malformed_call_stays_text(body):
    whole = f"<tool_call>{body}</tool_call>"
    assert parse_tool_calls(whole) == (whole, [])


def test_a_call_without_arguments_has_an_empty_object():
    assert parse_tool_calls('<tool_call>{"name": "now"}</tool_call>')[1] == [ToolCall("now", "{}")]


def test_a_call_inside_a_broken_one_is_found():
    text, calls = parse_tool_calls(f"<tool_call>\n{CALL}")
    assert text == "<tool_call>\n"
    assert calls == [ToolCall("search", '{"q": "x"}')]


def test_text_after_a_call_is_kept():
    assert parse_tool_calls(f"{CALL}\nDone.")[0] == "\nDone."


PIECES = st.lists(
    st.sampled_from(
        [CALL, "<tool_call>", "</tool_call>", "<tool", "_call>", "{", "}", " ", "\n", "text", "<"]
    ),
    max_size=8,
).map("".join)


@given(PIECES, st.lists(st.integers(1, 7), min_size=1))
def test_the_result_does_not_depend_on_how_the_text_is_cut(text, sizes):
    whole = ToolCallParser()
    expected = joined(whole.feed(text) + whole.finish())
    parser = ToolCallParser()
    pieces = []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        pieces += parser.feed(text[at : at + size])
        at += size
        turn += 1
    assert joined(pieces + parser.finish()) == expected
    assert all(piece != "" for piece in pieces)


@given(st.text())
def test_text_without_tags_is_returned_whole(text):
    if "<" not in text:
        assert parse_tool_calls(text) == (text, [])


@given(
    st.text(min_size=1),
    st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=3),
)
def test_a_rendered_call_is_read_back_unless_it_contains_the_end_tag(name, arguments):
    text = json.dumps(arguments, ensure_ascii=False)
    if "</tool_call>" in name + text or "<tool_call>" in name + text:
        return
    assert parse_tool_calls(render_tool_call(name, text)) == ("", [ToolCall(name, text)])
