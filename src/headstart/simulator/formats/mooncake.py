"""Mooncake's JSONL: one request a line, its blocks as chained ids.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}

The time is in milliseconds. Mooncake's own blocks have 512 tokens, and the last need not be full.
Files of the same form exist with other blocks, and with a last block only if it is full: which of
these it is follows from how many ids the lines have. `block_size` says it outright and is ours, as
are `session_id` and `tenant`.

Source: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from headstart.simulator.formats.lines import (
    BlockTokens,
    Line,
    Moment,
    OutputTokens,
    Tokens,
    TraceError,
    decode,
    require_times,
)
from headstart.simulator.formats.numbering import Numbering
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest, timed_trace
from headstart.types import JsonObject

BLOCK_TOKENS: Final = 512
"""Mooncake's own."""

_LIKELY: Final = (512, 16, *(1 << power for power in range(17)))
"""Block sizes, the most likely first: of several that fit, the first is taken."""


class _Request(msgspec.Struct):
    timestamp: Moment
    input_length: Tokens
    output_length: OutputTokens
    hash_ids: list[int]
    session_id: str | int | None = None
    tenant: str = ""
    block_size: BlockTokens | None = None


_DECODER: Final = msgspec.json.Decoder(_Request)


def matches(first: JsonObject) -> bool:
    """Return whether a file is in this format, by the object on its first line."""
    return "hash_ids" in first and "input_length" in first and "timestamp" in first


def read(lines: Iterable[Line], name: str) -> Trace:
    """Return the trace in a file.

    Raises:
        TraceError: a line is not in the format, or its number of ids fits no block size.
    """
    tree, sessions, sizes = PrefixTree(), Numbering(), _BlockSizes()
    requests = []
    for line in lines:
        row = decode(_DECODER, line, "a request of a Mooncake trace")
        sizes.narrow(row, line)
        requests.append(
            TraceRequest(
                arrival_s=row.timestamp / 1000,
                input_tokens=row.input_length,
                output_tokens=max(row.output_length, 1),
                blocks=tuple(tree.walk(row.hash_ids)),
                session=-1 if row.session_id is None else sessions.number(row.session_id),
                tenant=row.tenant,
            )
        )
    return timed_trace(name, sizes.best(), requests)


class _BlockSizes:
    """Which block sizes the lines so far allow, with a last block that need not be full, or must.

    The two are not mixed: a file is written by one program. Where the first line says the size,
    fewer ids are allowed as well: the rest of that prompt is nobody else's.
    """

    def __init__(self) -> None:
        self._is_first = True
        self._said: int | None = None
        self._may_be_partial = set(_LIKELY)
        self._must_be_full = set(_LIKELY)

    def narrow(self, row: _Request, line: Line) -> None:
        if self._is_first:
            self._is_first, self._said = False, row.block_size
        elif row.block_size is not None and row.block_size != self._said:
            raise line.error(
                f"block_size is {row.block_size}, and {self._said or 'not said'} on the first line",
                "split the file by block size",
            )
        tokens, count = row.input_length, len(row.hash_ids)
        if self._said is not None:
            if count > -(-tokens // self._said):
                raise _misfit(row, line, str(self._said))
            return
        self._may_be_partial = {s for s in self._may_be_partial if -(-tokens // s) == count}
        self._must_be_full = {s for s in self._must_be_full if tokens // s == count}
        if not self._may_be_partial and not self._must_be_full:
            raise _misfit(row, line, "that also fits the lines before")

    def best(self) -> int:
        if self._said is not None:
            return self._said
        for allowed in (self._may_be_partial, self._must_be_full):
            for size in _LIKELY:
                if size in allowed:
                    return size
        raise AssertionError("`narrow` has raised")


def _misfit(row: _Request, line: Line, size: str) -> TraceError:
    return line.error(
        f"{len(row.hash_ids)} hash_ids do not fit an input_length of {row.input_length} "
        f"with a block size {size}",
        "correct the line, or give every line its `block_size`",
    )


def write(trace: Trace) -> bytes:
    """Return a timed trace in this format; times are rounded to milliseconds.

    Raises:
        TraceError: the trace has no times.
    """
    require_times(trace)
    encoder = msgspec.json.Encoder()
    says_size = trace.block_tokens != BLOCK_TOKENS or any(
        len(request.blocks) != -(-request.input_tokens // BLOCK_TOKENS)
        for request in trace.requests
    )
    rows = []
    for request in trace.requests:
        row: JsonObject = {
            "timestamp": round(request.arrival_s * 1000),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": request.blocks,
        }
        if request.session >= 0:
            row["session_id"] = request.session
        if request.tenant:
            row["tenant"] = request.tenant
        if says_size:
            row["block_size"] = trace.block_tokens
        rows.append(encoder.encode(row) + b"\n")
    return b"".join(rows)
