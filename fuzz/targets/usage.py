"""Usage objects of every dialect and of none: figures that can be true, or unknown."""

from collections.abc import Hashable

from fuzz.target import Target, strict_json
from headstart.wire.openai import peek_response
from headstart.wire.usage import UNKNOWN_USAGE, Usage, parse_usage, parse_usage_json

_MAX_INTEGER = 2**63 - 1
"""The largest that the store can keep."""


def check(data: bytes) -> Hashable:
    """No figure is negative, larger than its whole, or more than a database can hold."""
    usage = parse_usage_json(data)
    _check_figures(usage)
    try:
        value = strict_json(data)
    except ValueError:
        value = None
    if isinstance(value, dict):
        assert parse_usage(value) == usage
    elif value is not None:
        assert usage == UNKNOWN_USAGE
    peek = peek_response(b'{"usage":%b}' % data)
    found = peek.usage_object() if peek is not None else None
    if found is not None and isinstance(value, dict):
        assert parse_usage(found) == usage, "the two ways to a usage object differ"
    return tuple(
        figure is not None and min(figure, 2)
        for figure in (
            usage.input_tokens,
            usage.cached_tokens,
            usage.written_tokens,
            usage.output_tokens,
        )
    )


def _check_figures(usage: Usage) -> None:
    cached, written = usage.cached_tokens, usage.written_tokens
    for figure in (usage.input_tokens, cached, written, usage.output_tokens):
        assert figure is None or (type(figure) is int and 0 <= figure <= _MAX_INTEGER)
    if usage.input_tokens is not None:
        assert (cached or 0) + (written or 0) <= usage.input_tokens


TOKENS = (
    *(
        b"{",
        b"}",
        b",",
        b":",
        b'"',
        b"null",
        b"true",
        b"0",
        b"1",
        b"-1",
        b"1.0",
        b"1e3",
        b"{}",
        b"[]",
    ),
    *(b"9007199254740992", b"9007199254740993", b"9223372036854775807", b"18446744073709551616"),
    *(
        b'"prompt_tokens":5,',
        b'"completion_tokens":5,',
        b'"prompt_tokens_details":{"cached_tokens":3}',
    ),
    *(b'"prompt_tokens_details":null,', b'"prompt_cache_hit_tokens":2,', b'"cached_tokens":9'),
    *(b'"prompt_cache_miss_tokens":3,', b'"input_tokens":5,', b'"output_tokens":1,'),
    *(b'"input_tokens_details":{"cached_tokens":3},', b'"cache_read_input_tokens":2,'),
    *(
        b'"cache_creation_input_tokens":1,',
        b'"promptTokenCount":4,',
        b'"cachedContentTokenCount":2,',
    ),
    *(b'"candidatesTokenCount":3,', b'"thoughtsTokenCount":9007199254740992,', b'"inputTokens":4,'),
    *(b'"cacheReadInputTokens":2,', b'"cacheWriteInputTokens":1,', b'"created_cache_tokens":1'),
)

TARGET = Target("usage", check, TOKENS, share=1.5)
