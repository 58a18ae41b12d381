"""RFC 8785's own examples, and the properties that make its form canonical."""

import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.canonical_json import (
    MAX_DEPTH,
    CanonicalJsonError,
    canonicalize,
    parse_strict,
)

# RFC 8785, appendix B: IEEE 754 bits and their form.
_APPENDIX_B = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]

_json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(("bits", "form"), _APPENDIX_B)
def test_numbers_have_the_form_of_appendix_b(bits: str, form: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonicalize(value) == form.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000"])
def test_appendix_b_refuses_nan_and_infinity(bits: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(CanonicalJsonError, match="not a JSON number"):
        canonicalize(value)


def test_the_example_of_section_3_2_2() -> None:
    source = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],'
        '"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonicalize(parse_strict(source)) == expected.encode()


def test_keys_are_sorted_by_utf16_code_units_as_in_section_3_2_3() -> None:
    source = (
        r'{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",'
        r'"1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control",'
        r'"\u00f6":"Latin Small Letter O With Diaeresis"}'
    )
    values = list(json.loads(canonicalize(json.loads(source))).values())
    assert values == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@given(_json_values)
def test_the_canonical_form_reads_back_equal_and_is_its_own_canonical_form(value: object) -> None:
    data = canonicalize(value)
    as_ecmascript_reads_it = json.loads(data, parse_int=float)
    assert as_ecmascript_reads_it == value
    assert canonicalize(as_ecmascript_reads_it) == data


@given(_json_values, st.randoms(use_true_random=False))
def test_the_order_in_which_keys_were_inserted_does_not_matter(
    value: object, rng: random.Random
) -> None:
    assert canonicalize(_shuffled(value, rng)) == canonicalize(value)


def test_an_integer_and_the_equal_double_have_the_same_form() -> None:
    assert canonicalize([5, 5.0, -0.0, 2**53 - 1]) == b"[5,5,0,9007199254740991]"


def test_an_integer_that_a_double_cannot_hold_is_refused_with_its_place() -> None:
    with pytest.raises(CanonicalJsonError) as caught:
        canonicalize({"properties": {"id": [1, {"maximum": 2**63 - 1}]}})
    assert caught.value.path == "$.properties.id[1].maximum"
    assert "an integer of 63 bits is beyond 2^53-1" in caught.value.message
    assert "as a string" in caught.value.message


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({1: 2}, "key that is not a string"),
        ({"a": {1, 2}}, "is a set"),
        ("\ud83d", "surrogate"),
    ],
)
def test_what_json_does_not_have_is_refused(value: object, problem: str) -> None:
    with pytest.raises(CanonicalJsonError, match=problem):
        canonicalize(value)


def test_nesting_is_bounded() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    with pytest.raises(CanonicalJsonError, match="nested deeper"):
        canonicalize(value)
    with pytest.raises(CanonicalJsonError, match="nested deeper"):
        parse_strict("[" * 100_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 2}', "twice"),
        ("[NaN]", "NaN is not a JSON number"),
        ("9" * 5000, "thousands of digits"),
    ],
)
def test_text_that_readers_understand_differently_is_refused(text: str, problem: str) -> None:
    with pytest.raises(CanonicalJsonError, match=problem):
        parse_strict(text)


def _shuffled(value: object, rng: random.Random) -> object:
    if isinstance(value, dict):
        items = [(key, _shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [_shuffled(item, rng) for item in value]
    return value
