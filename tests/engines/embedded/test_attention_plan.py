"""How a step's attention is partitioned: every query sees its keys once, shared keys are joined."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.engines.embedded.attention_plan import (
    MIN_RUN_TOKENS,
    Causal,
    Segment,
    merge_blocks,
    plan_attention,
)
from headstart.engines.embedded.backend import SequenceStep

BLOCK = 16
RUN = MIN_RUN_TOKENS // BLOCK  # blocks that make a run worth using in place


def decode(start, blocks):
    return SequenceStep([1], start, blocks, needs_logits=True)


def slots_seen(attention, num_rows):
    """For each row the slots it attends to outside its own new tokens, with multiplicity."""
    seen = [[] for _ in range(num_rows)]
    for segment in attention.segments:
        for row in range(segment.first_row, segment.end_row):
            for first, end in segment.ranges:
                seen[row].extend(range(first, end))
    for leaf in attention.leaves:
        slots = [block * BLOCK + i for block in leaf.blocks for i in range(BLOCK)]
        seen[leaf.row].extend(slots[: leaf.num_tokens])
    return seen


def test_neighbouring_blocks_become_one_run():
    """Order does not matter, only place."""
    assert merge_blocks([7, 3, 2, 9, 8], 16) == ((32, 64), (112, 160))
    assert merge_blocks([], 16) == ()


def test_a_shared_prefix_is_one_segment_for_all_who_share_it():
    """Eight sequences on one prefix read it once; what each has alone is a leaf."""
    prefix = list(range(62))
    plan = plan_attention([decode(1000, [*prefix, 100 + i]) for i in range(8)], BLOCK)
    assert plan.rows.segments == (Segment(0, 8, ((0, 992),)),)
    assert [leaf.blocks for leaf in plan.rows.leaves] == [(100 + i,) for i in range(8)]
    assert {leaf.num_tokens for leaf in plan.rows.leaves} == {9}


def test_a_prefix_tree_has_a_segment_per_inner_run():
    """Two groups with a common root: three segments; groups are neighbours whatever the order."""
    root = list(range(RUN))
    left, right = list(range(20, 20 + RUN)), list(range(40, 40 + RUN))
    start = 2 * RUN * BLOCK
    batch = [decode(start, [*root, *(right, left)[i % 2], 100 + i]) for i in range(4)]
    plan = plan_attention(batch, BLOCK)
    assert plan.order == (1, 3, 0, 2)
    assert [(s.first_row, s.end_row) for s in plan.rows.segments] == [(0, 4), (0, 2), (2, 4)]


def test_a_run_too_short_to_pay_is_copied_with_the_leaf():
    """Below the threshold no segment is made, shared or not."""
    shared = list(range(RUN - 1))
    batch = [decode(len(shared) * BLOCK, [*shared, 50 + i]) for i in range(2)]
    plan = plan_attention(batch, BLOCK)
    assert plan.rows.segments == ()
    assert [leaf.blocks for leaf in plan.rows.leaves] == [(*shared, 50), (*shared, 51)]


def test_a_prompt_s_chunk_is_causal_after_its_context():
    """A chunk that begins inside a block sees the part of the block before it."""
    plan = plan_attention([SequenceStep([1] * 8, 40, [5, 6, 9], needs_logits=True)], BLOCK)
    assert plan.rows.causal == (Causal(0, 8, 0),)
    assert plan.rows.segments == (Segment(0, 8, ((80, 112), (144, 152))),)
    assert plan.rows.leaves == ()


@st.composite
def batches(draw):
    """Sequences over a random tree of blocks; blocks in the making belong to one sequence."""
    tree = draw(st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=6))
    ids: dict[tuple[int, ...], int] = {}
    spare = iter(range(10_000, 20_000))
    batch = []
    for path in tree:
        full = [
            ids.setdefault(tuple(path[: i + 1]), draw(st.integers(0, 40)) * 100 + len(ids))
            for i in range(len(path))
        ]
        start = len(full) * BLOCK + draw(st.integers(0, BLOCK - 1))
        num_new = draw(st.sampled_from([1, 1, 2, 40]))
        own = [next(spare) for _ in range(-(-(start + num_new) // BLOCK) - len(full))]
        batch.append(SequenceStep([1] * num_new, start, [*full, *own], needs_logits=True))
    return batch


@given(batches())
@settings(deadline=None)
def test_every_row_sees_each_of_its_keys_exactly_once(batch):
    """Whatever is shared, the parts of a row add up to its context."""
    plan = plan_attention(batch, BLOCK)
    seen = slots_seen(plan.rows, plan.row_starts[-1])
    assert sorted(plan.order) == list(range(len(batch)))
    for n, i in enumerate(plan.order):
        step = batch[i]
        rows = range(plan.row_starts[n], plan.row_starts[n + 1])
        assert len(rows) == len(step.token_ids)
        is_decode = len(rows) == 1
        assert (Causal(rows.start, rows.stop, rows.start) in plan.rows.causal) != is_decode
        visible = step.start + is_decode
        expected = [step.block_ids[p // BLOCK] * BLOCK + p % BLOCK for p in range(visible)]
        for row in rows:
            assert sorted(seen[row]) == sorted(expected)


@given(batches(), st.data())
@settings(deadline=None)
def test_tiles_see_what_the_rows_they_are_cut_from_see(batch, data):
    """Cut anywhere, rows keep their keys, and causal rows their place behind their first token."""
    plan = plan_attention(batch, BLOCK)
    num_rows = plan.row_starts[-1]
    cut = data.draw(st.integers(0, num_rows))
    tiles = [(a, b, plan.rows.tile(a, b)) for a, b in ((0, cut), (cut, num_rows))]
    seen = [row for a, b, tile in tiles for row in slots_seen(tile, b - a)]
    assert [sorted(row) for row in seen] == [sorted(row) for row in slots_seen(plan.rows, num_rows)]
    new_tokens_seen = {
        a + row: range(causal.first_key_row, a + row + 1)
        for a, _, tile in tiles
        for causal in tile.causal
        for row in range(causal.first_row, causal.end_row)
    }
    assert new_tokens_seen == {
        row: range(causal.first_row, row + 1)
        for causal in plan.rows.causal
        for row in range(causal.first_row, causal.end_row)
    }
