"""One cache over a trace, against naive twins, and RadixAttention's theorem."""

from drawn_traces import IDS, timed_traces
from hypothesis import given
from hypothesis import strategies as st

from headstart.simulator.single_cache import CacheHits, belady, ideal, lru
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest


def tokens(requests_blocks, block_tokens=1):
    requests = tuple(
        TraceRequest(0.0, max(len(blocks) * block_tokens, 1), 1, tuple(blocks))
        for blocks in requests_blocks
    )
    return Trace("tokens", block_tokens, requests, is_timed=True)


def naive_lru(trace, num_blocks):
    """A list of blocks, the least recently used first; each prompt touches its tail first."""
    cached, found = [], 0
    for request in trace.requests:
        blocks = request.blocks
        run = next((i for i, block in enumerate(blocks) if block not in cached), len(blocks))
        found += min(run * trace.block_tokens, request.input_tokens)
        for block in reversed(blocks):
            if block in cached:
                cached.remove(block)
            cached.append(block)
        del cached[: max(len(cached) - num_blocks, 0)]
    return found


@given(timed_traces(), st.integers(1, 12))
def test_lru_is_what_a_naive_one_finds(trace, num_blocks):
    """Prompts that are longer than the cache included."""
    assert lru(trace, num_blocks).cached_tokens == naive_lru(trace, num_blocks)


@given(timed_traces(), st.integers(1, 12))
def test_foresight_is_between_lru_and_ideal(trace, num_blocks):
    """Nothing beats never forgetting, and knowing the future beats not knowing it."""
    best = belady(trace, num_blocks)
    assert lru(trace, num_blocks).cached_tokens <= best.cached_tokens
    assert best.cached_tokens <= ideal(trace).cached_tokens
    assert best.input_tokens == sum(request.input_tokens for request in trace.requests)


@given(timed_traces())
def test_with_room_for_all_every_cache_is_ideal(trace):
    """Eviction is the only difference."""
    room = max(trace.num_blocks, 1)
    assert lru(trace, room) == belady(trace, room) == ideal(trace)


def test_foresight_keeps_what_is_needed_and_bypasses_the_rest():
    """Two blocks of room, of which one is asked for again after a stream of others."""
    trace = tokens([[0], [1], [2], [3], [0]])
    assert lru(trace, 2).cached_tokens == 0
    assert belady(trace, 1).cached_tokens == 1


def test_a_block_that_is_not_full_counts_with_what_is_in_it():
    """The input is the bound."""
    request = TraceRequest(0.0, 20, 1, (0, 1))
    trace = Trace("partial", 16, (request, request), is_timed=True)
    assert ideal(trace) == CacheHits(40, 20)
    assert ideal(trace).hit_ratio == 0.5
    assert ideal(trace).computed_tokens == 20


def test_an_empty_trace_has_no_hits():
    """And no division by zero."""
    assert ideal(Trace("empty", 16, (), is_timed=True)).hit_ratio == 0.0


@given(st.lists(IDS.filter(bool), min_size=1, max_size=12))
def test_depth_first_order_computes_each_edge_once(prompts):
    """RadixAttention's theorem 3.1: a cache for the longest request is all that this takes.

    Sorted prompts are a depth-first walk of their tree. Any order computes each edge at least once.
    """
    tree = PrefixTree()
    walks = [tree.walk(ids) for ids in prompts]
    longest = max(map(len, prompts))
    depth_first = [walk for _, walk in sorted(zip(prompts, walks, strict=True))]
    assert lru(tokens(depth_first), longest).computed_tokens == tree.num_nodes
    assert lru(tokens(walks), longest).computed_tokens >= tree.num_nodes


def test_another_order_computes_edges_again():
    """The theorem is about the order: two branches in turn, and each evicts the other."""
    tree = PrefixTree()
    left, right = tree.walk([0, 1, 2]), tree.walk([3, 4, 5])
    assert lru(tokens([left, right, left, right]), 3).computed_tokens == 12
    assert lru(tokens([left, left, right, right]), 3).computed_tokens == 6
