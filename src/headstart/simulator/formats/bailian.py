"""Bailian's JSONL: one turn of a chat a line, its blocks as chained ids.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521,
     "output_length": 132, "type": "text", "turn": 2, "hash_ids": [1089, 1090, …]}

The time is in seconds, blocks have 16 tokens, and a chat without a parent (-1) starts a session.
Ids may be missing at the end, or altogether: such blocks are nobody else's. Two members are ours:
`block_size`, where it is not 16, and `tenant`.

Source: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from headstart.simulator.formats.lines import (
    BlockTokens,
    Line,
    Moment,
    OutputTokens,
    Tokens,
    decode,
    require_times,
)
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest, timed_trace
from headstart.types import JsonObject

BLOCK_TOKENS: Final = 16

_ROOT: Final = -1
"""Parent of a chat that has none."""


class _Turn(msgspec.Struct):
    chat_id: int | str
    timestamp: Moment
    input_length: Tokens
    output_length: OutputTokens
    parent_chat_id: int | str = _ROOT
    hash_ids: Sequence[int] = ()
    tenant: str = ""
    block_size: BlockTokens = BLOCK_TOKENS


_DECODER: Final = msgspec.json.Decoder(_Turn)


def matches(first: JsonObject) -> bool:
    """Return whether a file is in this format, by the object on its first line."""
    return "chat_id" in first and "input_length" in first and "timestamp" in first


def read(lines: Iterable[Line], name: str) -> Trace:
    """Return the trace in a file.

    Raises:
        TraceError: a line is not in the format, or has more ids than its prompt has blocks.
    """
    turns = []
    block_tokens = 0
    for line in lines:
        turn = decode(_DECODER, line, "a turn of a Bailian trace")
        if turn.block_size != (block_tokens or turn.block_size):
            raise line.error(
                f"block_size is {turn.block_size}, and {block_tokens} before",
                "split the file by block size",
            )
        block_tokens = turn.block_size
        if len(turn.hash_ids) > -(-turn.input_length // block_tokens):
            raise line.error(
                f"{len(turn.hash_ids)} hash_ids are too many for an input_length of "
                f"{turn.input_length} in blocks of {block_tokens}",
                "correct the line",
            )
        turns.append(turn)
    turns.sort(key=lambda turn: turn.timestamp)  # so that a parent comes before its children
    return timed_trace(name, block_tokens or BLOCK_TOKENS, _requests(turns))


def _requests(turns: Iterable[_Turn]) -> list[TraceRequest]:
    tree, session_of, num_sessions = PrefixTree(), dict[int | str, int](), 0
    requests = []
    for turn in turns:
        # A parent may be missing, cut off with the beginning: its children are one session still.
        ancestor = turn.chat_id if turn.parent_chat_id == _ROOT else turn.parent_chat_id
        session = session_of.setdefault(ancestor, num_sessions)
        num_sessions += session == num_sessions
        session_of[turn.chat_id] = session
        requests.append(
            TraceRequest(
                arrival_s=turn.timestamp,
                input_tokens=turn.input_length,
                output_tokens=max(turn.output_length, 1),
                blocks=tuple(tree.walk(turn.hash_ids)),
                session=session,
                tenant=turn.tenant,
            )
        )
    return requests


def write(trace: Trace) -> bytes:
    """Return a timed trace in this format; times are rounded to microseconds.

    A request without a session becomes a chat of its own.

    Raises:
        TraceError: the trace has no times.
    """
    require_times(trace)
    encoder = msgspec.json.Encoder()
    last: dict[int, tuple[int, int]] = {}  # of a session: chat and turn
    rows = []
    for chat_id, request in enumerate(trace.requests):
        parent, turn = last.get(request.session, (_ROOT, 0))
        if request.session >= 0:
            last[request.session] = (chat_id, turn + 1)
        row: JsonObject = {
            "chat_id": chat_id,
            "parent_chat_id": parent,
            "timestamp": round(request.arrival_s, 6),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "type": "text",
            "turn": turn + 1,
            "hash_ids": request.blocks,
        }
        if request.tenant:
            row["tenant"] = request.tenant
        if trace.block_tokens != BLOCK_TOKENS:
            row["block_size"] = trace.block_tokens
        rows.append(encoder.encode(row) + b"\n")
    return b"".join(rows)
