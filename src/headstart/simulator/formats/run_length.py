"""Sessions of coding agents, a line each, their blocks as runs of ids (WEKA's traces).

    {"id": "trace_0005", "block_size": 64, "hash_id_scope": "global", "requests": [
      {"t": 0.0, "in": 11578, "out": 366, "hash_runs": [[1, 2], [27008, 172], [101053, 6]], …},
      {"t": 8.0, "type": "subagent", "requests": [{"t": 0.0, "in": …}, …], …}, …]}

`[start, count]` stands for the ids start, start + 1 …; a last block that is not full has none. Ids
are those of all sessions (`global`) or mean something within one only (`local`), and now and then
one id stands for different blocks, after different others: the tree keeps these apart.

Times are seconds from the session's start, of a subagent's requests from that subagent's. Its
requests belong to the session, at their place in time: the agent waits for its subagents, and the
few that run side by side come one after the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Final

import msgspec

from headstart.simulator.formats.lines import (
    MAX_TOKENS,
    BlockTokens,
    Line,
    Moment,
    OutputTokens,
    decode,
)
from headstart.simulator.trace import ROOT, PrefixTree, Trace, TraceRequest, scope_root
from headstart.types import JsonObject

_MAX_DEPTH: Final = 16
"""Of subagents in subagents."""

_Runs = list[tuple[int, Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]]]


class _Entry(msgspec.Struct, rename={"input_tokens": "in", "output_tokens": "out"}):
    """A request, or a subagent with requests of its own."""

    t: Moment
    input_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)] = 0
    output_tokens: OutputTokens = 1
    hash_runs: _Runs = []
    requests: "list[_Entry] | None" = None


class _Session(msgspec.Struct):
    block_size: BlockTokens
    hash_id_scope: str
    requests: list[_Entry]


_DECODER: Final = msgspec.json.Decoder(_Session)


def matches(first: JsonObject) -> bool:
    """Return whether a file is in this format, by the object on its first line."""
    return "hash_id_scope" in first and "block_size" in first and "requests" in first


def read(lines: Iterable[Line], name: str) -> Trace:
    """Return the trace in a file; it is not timed.

    Raises:
        TraceError: a line is not in the format.

    Cost: about 1 us a request's run, and 0.3 us a block that its predecessor does not have.
    """
    tree = PrefixTree()
    requests: list[TraceRequest] = []
    block_tokens = 0
    for number, line in enumerate(lines):
        session = decode(_DECODER, line, "a session in run-length form")
        if session.block_size != (block_tokens or session.block_size):
            raise line.error(
                f"block_size is {session.block_size}, and {block_tokens} before",
                "split the file by block size",
            )
        block_tokens = session.block_size
        requests += _Reader(tree, line, number, session).requests()
    return Trace(name, block_tokens or 64, tuple(requests), is_timed=False)


class _Reader:
    """Reads one session."""

    def __init__(self, tree: PrefixTree, line: Line, number: int, session: _Session) -> None:
        self._tree = tree
        self._line = line
        self._number = number
        self._session = session
        scope = session.hash_id_scope
        if scope not in ("global", "local"):
            raise line.error(f"hash_id_scope is {scope!r}", "use `global` or `local`")
        self._root = ROOT if scope == "global" else scope_root(number)

    def requests(self) -> list[TraceRequest]:
        found = list(self._walk(self._session.requests, 0.0, 0))
        found.sort(key=lambda request: request.arrival_s)
        return found

    def _walk(
        self, entries: Sequence[_Entry], start_s: float, depth: int
    ) -> Iterator[TraceRequest]:
        runs: _Runs = []  # of the request before, with which the next has most in common
        blocks: tuple[int, ...] = ()
        for entry in entries:
            if entry.requests is not None:
                if depth == _MAX_DEPTH:
                    problem = f"subagents are nested more than {_MAX_DEPTH} deep"
                    raise self._line.error(problem, "take the line out")
                yield from self._walk(entry.requests, start_s + entry.t, depth + 1)
                continue
            self._check(entry)
            blocks = self._blocks(entry.hash_runs, runs, blocks)
            runs = entry.hash_runs
            yield TraceRequest(
                arrival_s=start_s + entry.t,
                input_tokens=entry.input_tokens,
                output_tokens=max(entry.output_tokens, 1),
                blocks=blocks,
                session=self._number,
            )

    def _check(self, entry: _Entry) -> None:
        if entry.input_tokens < 1:
            raise self._line.error(
                f"the request at t = {entry.t:g} has no `in`", "correct the line or take it out"
            )
        size = self._session.block_size
        count = sum(run[1] for run in entry.hash_runs)
        if count > -(-entry.input_tokens // size):
            raise self._line.error(
                f"the request at t = {entry.t:g} has {count} blocks of {size} for "
                f"{entry.input_tokens} tokens",
                "correct its hash_runs",
            )

    def _blocks(self, runs: _Runs, last_runs: _Runs, last: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of a prompt's blocks.

        Args:
            runs: of the prompt.
            last_runs: of the one before it.
            last: the numbers of that one's blocks.
        """
        num_runs = num_shared = num_skipped = 0
        for run, last_run in zip(runs, last_runs, strict=False):
            if run == last_run:
                num_runs += 1
                num_shared += run[1]
                continue
            if run[0] == last_run[0]:
                num_skipped = min(run[1], last_run[1])
            break
        num_shared += num_skipped
        rest = chain.from_iterable(range(start, start + count) for start, count in runs[num_runs:])
        for _ in range(num_skipped):
            next(rest)
        parent = last[num_shared - 1] if num_shared else self._root
        return (*last[:num_shared], *self._tree.walk(rest, parent))
