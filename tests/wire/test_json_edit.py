"""`json_edit`: one member changes and no other byte does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.wire.json_edit import append_member, members, set_member, set_nested_member

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=6) | st.sampled_from(["k", "stream_options"]), VALUES)
LAYOUTS = st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 2}, {"ensure_ascii": False}])


def text_of(value: object, layout: dict) -> bytes:
    return json.dumps(value, **layout).encode("utf-8", "surrogatepass")


@given(OBJECTS, LAYOUTS)
def test_members_are_found_where_they_are(value, layout):
    """Keys and values cut out of the text parse to what a JSON parser says."""
    text = text_of(value, layout)
    found = {
        m.key: json.loads(text[m.start : m.end].decode("utf-8", "surrogatepass"))
        for m in members(text)
    }
    assert found == value


@given(OBJECTS, LAYOUTS, VALUES)
def test_setting_a_member_changes_only_that(value, layout, new):
    """The twin is a parsed dictionary."""
    text = text_of(value, layout)
    changed = set_member(text, "k", text_of(new, {}))
    assert json.loads(changed.decode("utf-8", "surrogatepass")) == {**value, "k": new}
    if "k" not in value:
        assert changed.startswith(text.rstrip().removesuffix(b"}").rstrip())


@given(OBJECTS, LAYOUTS)
def test_setting_a_nested_member(value, layout):
    """`stream_options` is made, completed, or left alone if it is not an object."""
    text = text_of(value, layout)
    outer = value.get("stream_options")
    changed = set_nested_member(text, "stream_options", "include_usage", b"true")
    if outer is None or isinstance(outer, dict):
        expected = {**value, "stream_options": {**(outer or {}), "include_usage": True}}
        assert json.loads(changed.decode("utf-8", "surrogatepass")) == expected
    else:
        assert changed == text


def test_number_forms_order_escapes_and_spaces_stay():
    """What a parser and a writer would normalise."""
    text = b' {"b": 1.0,  "a":[1e3, 9007199254740993],"s":"\\u00e9\\/" ,"k" : 1 } \n'
    assert set_member(text, "k", b"2") == text.replace(b'"k" : 1', b'"k" : 2')
    assert append_member(text, "z", b"0") == text.replace(b"1 } ", b'1 ,"z":0} ')


def test_the_last_of_equal_keys_is_the_one_that_counts():
    """Parsers let the last one win; so must an edit."""
    assert set_member(b'{"k":1,"k":2}', "k", b"3") == b'{"k":1,"k":3}'
    assert json.loads(append_member(b'{"k":1}', "k", b"3")) == {"k": 3}


@pytest.mark.parametrize("text", [b"{}", b"{ }", b" {\n} "])
def test_an_empty_object_needs_no_comma(text):
    """The first member of an object."""
    assert json.loads(append_member(text, "k", b"1")) == {"k": 1}


def test_brackets_in_strings_do_not_count():
    """Nor do escaped quotes."""
    text = b'{"a":{"x":"}]\\"}"},"k":["]",{"y":"{"}],"z":1}'
    assert set_member(text, "k", b"null") == b'{"a":{"x":"}]\\"}"},"k":null,"z":1}'


@given(st.binary(max_size=60))
def test_no_input_hangs_or_crashes_the_scan(raw):
    """Callers pass valid JSON; anything else must still end."""
    list(members(b"{" + raw))


def test_a_key_that_is_not_utf8_equals_none():
    """Parsers that skip a member do not look into its key."""
    assert set_member(b'{"\xff":1,"k":2}', "k", b"3") == b'{"\xff":1,"k":3}'
