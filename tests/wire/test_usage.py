"""Usage of every dialect comes out in one form, and nothing an engine says can raise."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.wire.usage import UNKNOWN_USAGE, Usage, parse_usage, parse_usage_json


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 96, "created_cache_tokens": 0},
            },
            Usage(100, 96, 0, 20),
            id="vLLM with --enable-prompt-tokens-details",
        ),
        pytest.param(
            {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": None},
            Usage(100, None, None, 20),
            id="vLLM without it: unknown, not zero",
        ),
        pytest.param(
            {"prompt_tokens": 7, "completion_tokens": 0, "prompt_tokens_details": {}},
            Usage(7, None, None, 0),
            id="SGLang without --enable-cache-report",
        ),
        pytest.param(
            {
                "prompt_tokens": 2006,
                "completion_tokens": 300,
                "prompt_tokens_details": {"cached_tokens": 1920, "cache_write_tokens": 86},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            Usage(2006, 1920, 86, 300),
            id="OpenAI chat",
        ),
        pytest.param(
            {
                "input_tokens": 2006,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 300,
                "total_tokens": 2306,
            },
            Usage(2006, 0, None, 300),
            id="OpenAI responses",
        ),
        pytest.param(
            {
                "prompt_tokens": 128,
                "completion_tokens": 9,
                "prompt_cache_hit_tokens": 64,
                "prompt_cache_miss_tokens": 64,
            },
            Usage(128, 64, None, 9),
            id="DeepSeek",
        ),
        pytest.param(
            {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 6, "completion_tokens": 1},
            Usage(70, 64, None, 1),
            id="DeepSeek's parts alone",
        ),
        pytest.param(
            {
                "input_tokens": 50,
                "cache_read_input_tokens": 1000,
                "cache_creation_input_tokens": 248,
                "output_tokens": 3,
            },
            Usage(1298, 1000, 248, 3),
            id="Anthropic excludes cached tokens",
        ),
        pytest.param(
            {
                "input_tokens": 50,
                "cache_read_input_tokens": None,
                "cache_creation_input_tokens": None,
                "output_tokens": 3,
            },
            Usage(50, None, None, 3),
            id="vLLM's messages surface without cache figures",
        ),
        pytest.param(
            {
                "promptTokenCount": 4000,
                "cachedContentTokenCount": 3000,
                "candidatesTokenCount": 10,
                "thoughtsTokenCount": 5,
            },
            Usage(4000, 3000, None, 15),
            id="Gemini",
        ),
        pytest.param(
            {
                "inputTokens": 10,
                "cacheReadInputTokens": 90,
                "cacheWriteInputTokens": 0,
                "outputTokens": 4,
            },
            Usage(100, 90, 0, 4),
            id="Bedrock excludes cached tokens",
        ),
        pytest.param(
            {
                "prompt_tokens": 3019,
                "completion_tokens": 104,
                "prompt_tokens_details": {"cached_tokens": 2048, "cache_creation_input_tokens": 9},
            },
            Usage(3019, 2048, 9, 104),
            id="DashScope",
        ),
        pytest.param({"completion_tokens": 5}, Usage(output_tokens=5), id="output alone"),
        pytest.param({}, UNKNOWN_USAGE, id="nothing"),
        pytest.param({"tokens": 12}, UNKNOWN_USAGE, id="no known dialect"),
    ],
)
def test_each_dialect_has_one_form(usage, expected):
    """The figures arrive, the prompt is always the whole prompt, what was not said stays None."""
    assert parse_usage(usage) == expected
    assert parse_usage_json(json.dumps(usage).encode()) == expected


@pytest.mark.parametrize("wrong", [-1, 1.0, "96", True, [96], {"n": 96}, 2**60])
def test_a_figure_that_is_no_count_is_unknown_and_spoils_no_other(wrong):
    """Only the false figure is lost."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": wrong},
    }
    assert parse_usage(usage) == Usage(100, None, None, 20)


def test_more_cached_than_there_was_prompt_is_unknown():
    """A hit ratio above one would spoil every sum it enters."""
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 101}}
    assert parse_usage(usage) == Usage(100, None, None, None)


def test_written_tokens_must_fit_beside_the_cached_ones():
    """The cached figure is kept, the one that does not fit is not."""
    details = {"cached_tokens": 60, "cache_write_tokens": 41}
    usage = {"prompt_tokens": 100, "prompt_tokens_details": details}
    assert parse_usage(usage) == Usage(100, 60, None, None)


def test_hit_and_miss_that_do_not_add_up_leave_the_cached_figure_unknown():
    """The prompt figure is what is billed; the parts contradict it."""
    usage = {"prompt_tokens": 100, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 64}
    assert parse_usage(usage) == Usage(100, None, None, None)


def test_a_false_part_makes_an_anthropic_total_unknown():
    """A total without one of its parts would be too small."""
    usage = {"input_tokens": 50, "cache_read_input_tokens": -3, "output_tokens": 1}
    assert parse_usage(usage) == Usage(None, None, None, 1)


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"12", b"{", b'"\xff"', b"[" * 100_000])
def test_text_that_is_no_usage_object_is_unknown_usage(data):
    """An engine's nonsense costs a figure and never a request."""
    assert parse_usage_json(data) == UNKNOWN_USAGE


KEYS = [
    "prompt_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "cache_write_tokens",
    "created_cache_tokens",
    "prompt_cache_hit_tokens",
    "prompt_cache_miss_tokens",
    "input_tokens",
    "input_tokens_details",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "promptTokenCount",
    "cachedContentTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "inputTokens",
    "cacheReadInputTokens",
    "cacheWriteInputTokens",
    "outputTokens",
]
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(0, 50), st.floats(), st.text(max_size=3)
)
DETAILS = st.dictionaries(st.sampled_from(KEYS), LEAVES, max_size=4)
USAGES = st.dictionaries(
    st.sampled_from(KEYS), st.one_of(LEAVES, DETAILS, st.lists(LEAVES, max_size=2)), max_size=8
)


@given(USAGES)
def test_whatever_an_engine_says_the_figures_are_possible(usage):
    """Counts are never negative, and the parts never exceed a known whole."""
    parsed = parse_usage(usage)
    figures = (
        parsed.input_tokens,
        parsed.cached_tokens,
        parsed.written_tokens,
        parsed.output_tokens,
    )
    for figure in figures:
        assert figure is None or (type(figure) is int and 0 <= figure < 2**63)
    if parsed.input_tokens is not None:
        parts = (parsed.cached_tokens or 0) + (parsed.written_tokens or 0)
        assert parts <= parsed.input_tokens


@given(st.binary(max_size=200))
def test_no_bytes_raise(data):
    """The text of a usage object is whatever an engine sent."""
    assert isinstance(parse_usage_json(data), Usage)
