"""What is replayed: requests whose prompts are paths of one prefix tree.

Files name the blocks of a prompt by ids of their own: chained or not, for the whole file or for one
session. Here they are numbers of nodes of one tree (`PrefixTree`), so that two prompts share a
block if and only if they share its number, and with it everything before it.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

ROOT: Final = -1
"""Parent of first blocks that the whole trace may share."""


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """One request.

    Attributes:
        arrival_s: from the trace's start; from its session's start where the trace is not timed.
        input_tokens: of the prompt, >= 1.
        output_tokens: generated, >= 1.
        blocks: of the prompt, chained: numbers of nodes of the trace's prefix tree. A last block
            that is not full is one of them if the format has it (Mooncake), else not.
        session: its number within the trace; -1: none.
        tenant: whose it is; empty if nobody said.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    session: int = -1
    tenant: str = ""


class Trace(msgspec.Struct, frozen=True):
    """Requests in order: of arrival if timed, else session by session and in order within each.

    Attributes:
        name: short, for reports.
        block_tokens: tokens per block, >= 1.
        requests: all of them.
        is_timed: `arrival_s` is from the trace's start, and not from each session's.
    """

    name: str
    block_tokens: int
    requests: tuple[TraceRequest, ...]
    is_timed: bool

    @property
    def num_blocks(self) -> int:
        """Distinct blocks. Cost: O(blocks of all requests)."""
        distinct: set[int] = set()
        for request in self.requests:
            distinct.update(request.blocks)
        return len(distinct)

    @property
    def num_sessions(self) -> int:
        """Sessions, each request without one being its own."""
        sessions = {request.session for request in self.requests if request.session >= 0}
        return len(sessions) + sum(1 for request in self.requests if request.session < 0)

    def coarsened(self, factor: int) -> "Trace":
        """Return the trace with blocks `factor` times as long; what fills none is dropped.

        A block's number stands for everything before it as well, so the last of each `factor`
        blocks stands for them all.

        Args:
            factor: >= 1.
        """
        assert factor >= 1
        if factor == 1:
            return self
        requests = tuple(
            msgspec.structs.replace(request, blocks=request.blocks[factor - 1 :: factor])
            for request in self.requests
        )
        return msgspec.structs.replace(
            self, block_tokens=self.block_tokens * factor, requests=requests
        )

    def check_integrity(self) -> None:
        """Assert every invariant. Cost: O(blocks of all requests); for tests."""
        assert self.block_tokens >= 1
        parents: dict[int, int] = {}
        for request in self.requests:
            assert request.input_tokens >= 1
            assert request.output_tokens >= 1
            assert len(request.blocks) <= -(-request.input_tokens // self.block_tokens)
            assert request.session >= -1
            parent = ROOT
            for block in request.blocks:
                assert parents.setdefault(block, parent) == parent, "a block with two parents"
                parent = block
        self._check_order()

    def _check_order(self) -> None:
        if self.is_timed:
            times = [request.arrival_s for request in self.requests]
            assert times == sorted(times)
            assert all(time >= 0 for time in times[:1])
            return
        ended: set[int] = set()
        for before, after in pairwise(self.requests):
            if before.session == after.session >= 0:
                assert before.arrival_s <= after.arrival_s
            else:
                ended.add(before.session)
                assert after.session < 0 or after.session not in ended, "a session in two places"


class PrefixTree:
    """Gives numbers to blocks: a new one for each new pair of parent and id.

    Attributes:
        num_nodes: numbers given so far; they are 0..num_nodes - 1.
    """

    __slots__ = ("_children", "num_nodes")

    def __init__(self) -> None:
        self._children: dict[tuple[int, Hashable], int] = {}
        self.num_nodes = 0

    def walk(self, ids: Iterable[Hashable], parent: int = ROOT) -> list[int]:
        """Return the numbers of the blocks called `ids`, each the child of the one before.

        Args:
            ids: first block first.
            parent: of the first: a number, `ROOT`, or what `scope_root` returned.

        Mutates: the tree, by what is new.

        Cost: about 0.3 us a block.
        """
        children, numbers = self._children, []
        for block_id in ids:
            key = (parent, block_id)
            number = children.get(key)
            if number is None:
                number = children[key] = self.num_nodes
                self.num_nodes += 1
            numbers.append(number)
            parent = number
        return numbers

    def fresh(self, num_blocks: int) -> list[int]:
        """Return numbers of blocks that nobody can share with what was there before."""
        first = self.num_nodes
        self.num_nodes += num_blocks
        return list(range(first, first + num_blocks))


def scope_root(scope: int) -> int:
    """Return a root of which only prompts of one scope are children, e.g. those of a session.

    Args:
        scope: its number, >= 0.
    """
    assert scope >= 0
    return ROOT - 1 - scope


def timed_trace(name: str, block_tokens: int, requests: Sequence[TraceRequest]) -> Trace:
    """Return a timed trace that starts at 0, from requests in any order and since any time."""
    if not requests:
        return Trace(name, block_tokens, (), is_timed=True)
    start_s = min(request.arrival_s for request in requests)
    moved = [
        msgspec.structs.replace(request, arrival_s=request.arrival_s - start_s)
        for request in sorted(requests, key=lambda request: request.arrival_s)
    ]
    return Trace(name, block_tokens, tuple(moved), is_timed=True)
