"""headstart's own records: lines of the request log, or the store's file.

A record has no hashes of its prompt, on purpose, but says how much of it came from the cache. What
stands in place of hashes: the `cached_tokens` that the engine reported (or, where it did not, the
`matched_tokens` that were predicted) are the leading blocks of an earlier prompt, namely the latest
of the same model, tenant and template that is long enough; all else is new. So a cache that never
forgets finds at least what was found, the sizes are right, and which prompt shares with which is a
guess.

Records without token counts, of requests that failed, are left out.
"""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from headstart.accounting.record import RequestRecord
from headstart.accounting.store import read_records
from headstart.errors import StoreUnavailable
from headstart.simulator.formats.lines import MAX_TOKENS, Line, TraceError, decode
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest, timed_trace
from headstart.types import JsonObject

BLOCK_TOKENS: Final = 16

STORE_MAGIC: Final = b"SQLite format 3\0"
"""How the store's file begins. https://www.sqlite.org/fileformat.html"""

_ALL: Final = 1 << 62


class _LogLine(msgspec.Struct):
    """The members of a log line that matter here (`accounting.log`)."""

    time: str
    model: str
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    tenant: str
    prompt_template_version: str | None = None
    matched_tokens: int | None = None


_DECODER: Final = msgspec.json.Decoder(_LogLine)


class _Seen(msgspec.Struct, frozen=True):
    """One request, from whichever form."""

    at_s: float
    group: tuple[str, str, str]
    tenant: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int


def matches(first: JsonObject) -> bool:
    """Return whether a file is in this format, by the object on its first line."""
    return "request_id" in first and "prompt_tokens" in first and "total_latency_ms" in first


def read(lines: Iterable[Line], name: str) -> Trace:
    """Return the trace in the lines of a request log.

    Raises:
        TraceError: a line is not one of a request log.
    """
    return _trace(name, [seen for line in lines if (seen := _of_line(line)) is not None])


def read_store(path: Path, name: str) -> Trace:
    """Return the trace in a store's file; reads while others write.

    Raises:
        TraceError: it is no store of ours, or cannot be read.
    """
    try:
        records = read_records(path, limit=_ALL)
    except StoreUnavailable as error:
        raise TraceError(error.message) from error
    return _trace(name, [seen for record in records if (seen := _of_record(record)) is not None])


def _of_line(line: Line) -> _Seen | None:
    row = decode(_DECODER, line, "a line of a request log")
    try:
        at_s = datetime.fromisoformat(row.time).timestamp()
    except (ValueError, OverflowError) as error:
        raise line.error("time is not ISO 8601", "correct the line or take it out") from error
    cached = row.matched_tokens if row.cached_tokens is None else row.cached_tokens
    return _seen(
        at_s,
        (row.model, row.tenant, row.prompt_template_version or ""),
        row.prompt_tokens,
        cached,
        row.output_tokens,
    )


def _of_record(record: RequestRecord) -> _Seen | None:
    usage = record.usage
    cached = record.matched_tokens if usage.cached_tokens is None else usage.cached_tokens
    return _seen(
        record.time_s,
        (record.model, record.tenant, record.template or ""),
        usage.input_tokens,
        cached,
        usage.output_tokens,
    )


def _seen(
    at_s: float,
    group: tuple[str, str, str],
    input_tokens: int | None,
    cached_tokens: int | None,
    output_tokens: int | None,
) -> _Seen | None:
    if input_tokens is None or not 1 <= input_tokens <= MAX_TOKENS:
        return None
    cached = min(max(cached_tokens or 0, 0), input_tokens)
    output = min(max(output_tokens or 1, 1), MAX_TOKENS)
    return _Seen(at_s, group, group[1], input_tokens, cached, output)


def _trace(name: str, seen: list[_Seen]) -> Trace:
    tree = PrefixTree()
    groups: dict[tuple[str, str, str], _Group] = {}
    requests = []
    for each in sorted(seen, key=lambda each: each.at_s):  # a log is in the order of ends
        group = groups.setdefault(each.group, _Group())
        blocks = list(group.prefix(each.cached_tokens // BLOCK_TOKENS))
        blocks += tree.fresh(each.input_tokens // BLOCK_TOKENS - len(blocks))
        group.add(tuple(blocks))
        requests.append(
            TraceRequest(
                arrival_s=each.at_s,
                input_tokens=each.input_tokens,
                output_tokens=each.output_tokens,
                blocks=tuple(blocks),
                tenant=each.tenant,
            )
        )
    return timed_trace(name, BLOCK_TOKENS, requests)


class _Group:
    """Prompts that may share, each longer than all that are later: no others are ever taken."""

    def __init__(self) -> None:
        self._prompts: list[tuple[int, ...]] = []

    def prefix(self, num_blocks: int) -> tuple[int, ...]:
        """Return so many blocks of the latest prompt that has them, else all of the longest."""
        for blocks in reversed(self._prompts):
            if len(blocks) >= num_blocks:
                return blocks[:num_blocks]
        return self._prompts[0] if self._prompts else ()

    def add(self, blocks: tuple[int, ...]) -> None:
        while self._prompts and len(self._prompts[-1]) <= len(blocks):
            self._prompts.pop()
        self._prompts.append(blocks)
