"""Token usage of every provider in one normal form.

`input_tokens` counts all prompt tokens: fresh, read from the cache and written to it. Each figure
has three states: a number, zero, or `None` for "the engine did not say".

Providers differ in names, and in whether the prompt figure includes what came from the cache.
Both differences live in `_DIALECTS`; the rest of the module is the same for all. A figure that
cannot be true (negative, a string, more cached than there was prompt) is treated as unknown: it
costs a number in a report, never a request.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """One request's token counts as the engine reported them.

    Attributes:
        input_tokens: all prompt tokens, cached ones included.
        cached_tokens: prompt tokens whose KV came from the cache; at most `input_tokens`.
        written_tokens: prompt tokens that were newly stored in the cache; with `cached_tokens`
            at most `input_tokens`.
        output_tokens: generated tokens.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    written_tokens: int | None = None
    output_tokens: int | None = None


UNKNOWN_USAGE = Usage()

_MAX_TOKENS = 2**53
"""Counts above this are unknown: no JSON number beyond it is exact, and SQLite ends at 2**63."""

_NO_DETAILS: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class _Dialect:
    """Where one family of providers puts its figures.

    Attributes:
        marker: a key that only this family has among those not tried before it.
        input_key: the prompt figure.
        output_keys: their sum is the output; the first must be there.
        details_key: the object that holds the cache figures; they are also looked for beside it.
        cached_keys: tried in order; the first that is there and not null counts.
        written_keys: likewise.
        missed_key: prompt tokens not cached; checks the cached figure, and completes the prompt
            figure where that is missing.
        is_total: the prompt figure includes what was read from and written to the cache.
    """

    marker: str
    input_key: str
    output_keys: tuple[str, ...]
    details_key: str | None = None
    cached_keys: tuple[str, ...] = ()
    written_keys: tuple[str, ...] = ()
    missed_key: str | None = None
    is_total: bool = True


_CHAT = _Dialect(
    # OpenAI chat and completions; xAI, Fireworks, OpenRouter in the same form.
    #   https://platform.openai.com/docs/api-reference/chat/object
    # vLLM: null without --enable-prompt-tokens-details; `created_cache_tokens` since 0.32.
    # SGLang: null without --enable-cache-report.
    # DeepSeek: hit + miss = prompt_tokens. https://api-docs.deepseek.com/guides/kv_cache
    # DashScope: `cache_creation_input_tokens` among the details.
    #   https://help.aliyun.com/zh/model-studio/context-cache
    marker="prompt_tokens",
    input_key="prompt_tokens",
    output_keys=("completion_tokens",),
    details_key="prompt_tokens_details",
    cached_keys=("cached_tokens", "prompt_cache_hit_tokens"),
    written_keys=("cache_write_tokens", "created_cache_tokens", "cache_creation_input_tokens"),
    missed_key="prompt_cache_miss_tokens",
)

_DIALECTS = (
    _CHAT,
    # The same where the prompt figure is missing: DeepSeek's two parts, or the output alone.
    replace(_CHAT, marker="prompt_cache_hit_tokens"),
    replace(_CHAT, marker="completion_tokens"),
    # OpenAI Responses. https://platform.openai.com/docs/api-reference/responses/object
    _Dialect(
        marker="input_tokens_details",
        input_key="input_tokens",
        output_keys=("output_tokens",),
        details_key="input_tokens_details",
        cached_keys=("cached_tokens",),
        written_keys=("cache_write_tokens", "created_cache_tokens"),
    ),
    # Anthropic Messages: the prompt figure excludes both cache figures.
    #   https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching
    # Without cache figures (vLLM's /v1/messages sends null) it is the whole prompt.
    _Dialect(
        marker="input_tokens",
        input_key="input_tokens",
        output_keys=("output_tokens",),
        cached_keys=("cache_read_input_tokens",),
        written_keys=("cache_creation_input_tokens",),
        is_total=False,
    ),
    # Gemini; what it thought is generated too. https://ai.google.dev/api/generate-content
    _Dialect(
        marker="promptTokenCount",
        input_key="promptTokenCount",
        output_keys=("candidatesTokenCount", "thoughtsTokenCount"),
        cached_keys=("cachedContentTokenCount",),
    ),
    # Bedrock Converse: the prompt figure excludes both cache figures.
    #   https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_TokenUsage.html
    _Dialect(
        marker="inputTokens",
        input_key="inputTokens",
        output_keys=("outputTokens",),
        cached_keys=("cacheReadInputTokens",),
        written_keys=("cacheWriteInputTokens",),
        is_total=False,
    ),
)


def parse_usage(usage: Mapping[str, object]) -> Usage:
    """Bring a usage object of any known dialect into the normal form; never raises.

    Args:
        usage: the `usage` (or Gemini's `usageMetadata`) object, as parsed from JSON.

    Returns:
        What the engine said; `UNKNOWN_USAGE` for a form that no dialect has.
    """
    for dialect in _DIALECTS:
        if dialect.marker in usage:
            return _read(usage, dialect)
    return UNKNOWN_USAGE


def parse_usage_json(data: bytes) -> Usage:
    """Parse the JSON text of a usage object; anything that is not one is unknown usage."""
    try:
        usage = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UNKNOWN_USAGE
    return parse_usage(usage) if isinstance(usage, dict) else UNKNOWN_USAGE


def _read(usage: Mapping[str, object], dialect: _Dialect) -> Usage:
    details = usage.get(dialect.details_key) if dialect.details_key is not None else None
    if not isinstance(details, dict):
        details = _NO_DETAILS
    reported_cached = _first(usage, details, dialect.cached_keys)
    reported_written = _first(usage, details, dialect.written_keys)
    input_tokens = _count(usage.get(dialect.input_key))
    cached_tokens = _count(reported_cached)
    written_tokens = _count(reported_written)
    if dialect.missed_key is not None and dialect.missed_key in usage:
        missed_tokens = _count(usage[dialect.missed_key])
        if dialect.input_key not in usage:
            input_tokens = _sum(cached_tokens, missed_tokens)
        elif _sum(cached_tokens, missed_tokens) != input_tokens:
            cached_tokens = None
    if not dialect.is_total:
        input_tokens = _total(input_tokens, reported_cached, reported_written)
    cached_tokens, written_tokens = _within(input_tokens, cached_tokens, written_tokens)
    return Usage(input_tokens, cached_tokens, written_tokens, _output(usage, dialect.output_keys))


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def _total(fresh_tokens: int | None, cached: object, written: object) -> int | None:
    """Add up a prompt from its parts; a part not reported is none, a false one spoils the sum."""
    total = fresh_tokens
    for part in (cached, written):
        if part is not None:
            total = _sum(total, _count(part))
    return total


def _within(
    input_tokens: int | None, cached_tokens: int | None, written_tokens: int | None
) -> tuple[int | None, int | None]:
    """Drop a cache figure that does not fit into the prompt; the cached one counts first."""
    if input_tokens is None:
        return cached_tokens, written_tokens
    if cached_tokens is not None and cached_tokens > input_tokens:
        cached_tokens = None
    if written_tokens is not None and written_tokens > input_tokens - (cached_tokens or 0):
        written_tokens = None
    return cached_tokens, written_tokens


def _output(usage: Mapping[str, object], keys: tuple[str, ...]) -> int | None:
    output_tokens = _count(usage.get(keys[0]))
    for key in keys[1:]:
        more = usage.get(key)
        if more is not None:
            output_tokens = _sum(output_tokens, _count(more))
    return output_tokens


def _first(
    usage: Mapping[str, object], details: Mapping[str, object], keys: tuple[str, ...]
) -> object:
    for key in keys:
        value = details.get(key)
        if value is None:
            value = usage.get(key)
        if value is not None:
            return value
    return None


def _count(value: object) -> int | None:
    # `True` is an int to isinstance, and 12.0 tokens is a guess: neither is a count.
    if type(value) is int and 0 <= value <= _MAX_TOKENS:
        return value
    return None
