"""Numbers of blocks, and traces made of them."""

import pytest
from drawn_traces import IDS, timed_traces, untimed_traces
from hypothesis import given
from hypothesis import strategies as st

from headstart.simulator.trace import (
    ROOT,
    PrefixTree,
    Trace,
    TraceRequest,
    scope_root,
    timed_trace,
)


@given(st.lists(IDS, max_size=8))
def test_two_prompts_share_a_number_where_they_share_the_prefix(prompts):
    """Equal numbers at a place if and only if everything up to it is equal."""
    tree = PrefixTree()
    walks = [tree.walk(ids) for ids in prompts]
    for ids, walk in zip(prompts, walks, strict=True):
        for other_ids, other in zip(prompts, walks, strict=True):
            for depth in range(1, min(len(ids), len(other_ids)) + 1):
                is_shared = ids[:depth] == other_ids[:depth]
                assert (walk[depth - 1] == other[depth - 1]) == is_shared
    assert tree.num_nodes == len({tuple(ids[:end]) for ids in prompts for end in _ends(ids)})


def _ends(ids):
    return range(1, len(ids) + 1)


def test_an_id_after_two_parents_is_two_blocks():
    """Traces exist in which ids are hashes of a block alone."""
    tree = PrefixTree()
    assert tree.walk([1, 9])[1] != tree.walk([2, 9])[1]


def test_scopes_share_nothing():
    """With each other or with the rest."""
    tree = PrefixTree()
    first, second, rest = (tree.walk([1], root) for root in (scope_root(0), scope_root(1), ROOT))
    assert len({*first, *second, *rest}) == 3


def test_a_walk_goes_on_from_any_block():
    """The parent of the first is given."""
    tree = PrefixTree()
    whole = tree.walk([1, 2, 3])
    assert tree.walk([3], whole[1]) == whole[2:]


def test_fresh_blocks_are_nobody_elses():
    """Nor are they given again."""
    tree = PrefixTree()
    assert tree.walk([7]) == [0]
    assert tree.fresh(2) == [1, 2]
    assert tree.walk([8]) == [3]


@given(timed_traces(), st.integers(1, 4))
def test_coarsening_joins_blocks(trace, factor):
    """A longer block is shared if and only if all blocks in it are."""
    coarse = trace.coarsened(factor)
    coarse.check_integrity()
    assert coarse.block_tokens == factor * trace.block_tokens
    for fine, rough in zip(trace.requests, coarse.requests, strict=True):
        assert len(rough.blocks) == len(fine.blocks) // factor
        for other_fine, other in zip(trace.requests, coarse.requests, strict=True):
            for depth in range(min(len(rough.blocks), len(other.blocks))):
                end = (depth + 1) * factor
                is_shared = fine.blocks[:end] == other_fine.blocks[:end]
                assert (rough.blocks[depth] == other.blocks[depth]) == is_shared


@given(timed_traces() | untimed_traces())
def test_drawn_traces_are_whole(trace):
    """The strategies keep to the rules, and counts are what they say."""
    trace.check_integrity()
    assert trace.num_blocks == len({block for each in trace.requests for block in each.blocks})
    assert 1 <= trace.num_sessions <= len(trace.requests)


def test_requests_are_sorted_and_moved_to_zero():
    """Whatever their clock's zero is."""
    requests = [TraceRequest(at_s, 1, 1, ()) for at_s in (12.0, 10.0, 11.5)]
    assert [each.arrival_s for each in timed_trace("t", 16, requests).requests] == [0.0, 1.5, 2.0]
    assert timed_trace("t", 16, []).requests == ()


@pytest.mark.parametrize(
    "requests",
    [
        (TraceRequest(1.0, 1, 1, ()), TraceRequest(0.0, 1, 1, ())),
        (TraceRequest(0.0, 1, 1, (0, 1)),),
        (TraceRequest(0.0, 32, 1, (0, 1)), TraceRequest(0.0, 32, 1, (1, 0))),
        (TraceRequest(0.0, 1, 0, ()),),
    ],
)
def test_a_broken_trace_is_found(requests):
    """Order, too many blocks, two parents, no output."""
    with pytest.raises(AssertionError):
        Trace("broken", 16, requests, is_timed=True).check_integrity()


def test_a_session_in_two_places_is_found():
    """Untimed requests are session by session."""
    requests = tuple(TraceRequest(0.0, 1, 1, (), session) for session in (0, 1, 0))
    with pytest.raises(AssertionError):
        Trace("broken", 16, requests, is_timed=False).check_integrity()
