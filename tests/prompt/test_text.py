"""Segment text: values are data, output is stable, the sandbox holds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.text import (
    MAX_TEXT_CHARS,
    TextRenderError,
    TextSyntaxError,
    compile_text,
    reserved_names,
)

_JINJA_PIECES = st.sampled_from(["{{ now }}", "{% raw %}", "{#", "#}", "%}", "{{", "}}", "\n", "é"])


@given(st.lists(_JINJA_PIECES | st.text(max_size=5)).map("".join))
def test_a_value_is_inserted_as_it_is_whatever_it_contains(value: str) -> None:
    text = compile_text("Q: {{ question }} / {{ question }}")
    assert text.render({"question": value}) == f"Q: {value} / {value}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12345678901234567890, "12345678901234567890"),
        (1.0, "1"),
        (0.1, "0.1"),
        (True, "true"),
        (None, "null"),
        ({"b": [1, "é"], "a": None}, '{"a":null,"b":[1,"é"]}'),
    ],
)
def test_a_value_that_is_no_string_is_inserted_as_canonical_json(value: object, shown: str) -> None:
    assert compile_text("{{ x }}").render({"x": value}) == shown


def test_tojson_has_sorted_keys_and_no_html_escapes() -> None:
    value = {"b": "<&>", "a": 1}
    assert compile_text("{{ x | tojson }}").render({"x": value}) == '{"a":1,"b":"<&>"}'
    spread = compile_text("{{ x | tojson(indent=2) }}").render({"x": value})
    assert spread == json.dumps({"a": 1, "b": "<&>"}, indent=2)


def test_line_ends_and_the_last_newline_do_not_depend_on_the_editor() -> None:
    assert compile_text("a\r\nb\r\n").render({}) == "a\nb" == compile_text("a\nb").render({})


def test_uses_name_the_first_line_of_each_variable() -> None:
    text = compile_text(
        "one\n{{ b }}\n{% for d in a %}{{ d.x }}{{ loop.index }}{% endfor %}\n{{ b }}"
    )
    assert [(use.name, use.line) for use in text.uses] == [("b", 2), ("a", 3)]


def test_a_variable_that_the_text_itself_sets_is_not_a_use() -> None:
    text = compile_text("{% set x = 1 %}{{ x }}{{ range(2) | list }}")
    assert text.uses == ()
    assert text.render({}) == "1[0,1]"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("fine\n{{ x", 2),
        ("a\n\n{% if %}", 3),
        ("{% include 'other' %}", 1),
        ("\n{% from 'x' import y %}", 2),
        ("\n\n{% extends 'x' %}", 3),
        ("{{ x | nosuchfilter }}", 1),
        ("{{ [1, 2] | random }}", 1),
    ],
)
def test_unusable_text_is_refused_with_its_line(source: str, line: int) -> None:
    with pytest.raises(TextSyntaxError) as caught:
        compile_text(source)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "source",
    [
        "{{ x.__class__.__mro__ }}",
        "{{ x.append(1) }}",
        "{{ ''.join }}",
        "{{ namespace }}",
        "{{ x.nothing }}",
        "{{ x[99] }}",
        "{{ x + 'a' }}",
        "{{ 1 / 0 }}",
        "{{ 'x' * 10000000 }}",
        "{{ 9 ** 99999999 }}",
        "{{ range(10000000) | list }}",
        f"{{{{ 'x'.ljust({2**62}) }}}}",
    ],
)
def test_expressions_that_reach_too_far_are_errors(source: str) -> None:
    with pytest.raises(TextRenderError):
        compile_text(source).render({"x": ["secret text"]})


def test_a_text_cannot_grow_without_bound() -> None:
    source = "{% for i in range(9999) %}{{ x }}{% endfor %}"
    with pytest.raises(TextRenderError, match=f"{MAX_TEXT_CHARS:,}"):
        compile_text(source).render({"x": "a" * 10_000})


@pytest.mark.parametrize("value", [{"secret": 2**60}, ["\ud83d"], {"secret": float("inf")}])
def test_a_value_without_canonical_form_is_refused_without_its_keys(value: object) -> None:
    with pytest.raises(TextRenderError) as caught:
        compile_text("{{ x }}").render({"x": value})
    assert caught.value.message.startswith("prints a value that has no stable text")
    assert "secret" not in caught.value.message


def test_an_error_never_quotes_a_value() -> None:
    for source in ("{{ x + 1 }}", "{{ x.y.z }}", "{{ {}[x] }}"):
        with pytest.raises(TextRenderError) as caught:
            compile_text(source).render({"x": "my secret question"})
        assert "secret" not in caught.value.message


def test_reserved_names_are_the_ones_that_a_text_gives_a_meaning() -> None:
    assert {"loop", "range", "self", "namespace"} <= reserved_names()
    assert "question" not in reserved_names()
