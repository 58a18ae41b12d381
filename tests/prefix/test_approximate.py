"""`ApproximateIndex`: promised, warm and dropped blocks of prompt."""

import pytest
from approximate_prompts import block_bytes, key_of, prompt_of

from headstart.prefix.approximate import ApproximateIndex
from headstart.prefix.config import PrefixConfig

LARGE = 1 << 20


def index_of(num_replicas=2, capacity_bytes=LARGE, **config):
    index = ApproximateIndex(PrefixConfig(**config))
    for slot in range(num_replicas):
        index.add_replica(slot, capacity_bytes)
    return index


def depths(index, *path, now=0.0, slots=(0, 1)):
    index.check_integrity()
    return index.match(prompt_of(*path).keys, slots, now)


def serve(index, slot, *path, now=0.0):
    index.promise(slot, prompt_of(*path), now, 0.25)
    index.confirm(slot, prompt_of(*path), now, 0.25)
    index.holdings(slot).make_room()


def test_what_was_answered_is_held_to_where_prompts_part():
    """And by nobody else."""
    index = index_of()
    serve(index, 1, 1, 2, 3, 4)
    assert depths(index, 1, 2, 3, 4, 5) == [0, 4]
    assert depths(index, 1, 2, 9) == [0, 2]
    assert depths(index, 9) == [0, 0]
    assert depths(index) == [0, 0]


def test_look_ups_tell_every_depth_of_every_replica():
    """Any order of slots, any set of them, other ones than last time."""
    index = index_of(9)
    for slot in range(9):
        serve(index, slot, *range(1, slot + 2))
    path = range(1, 12)
    assert depths(index, *path, slots=tuple(range(9))) == list(range(1, 10))
    assert depths(index, *path, slots=[7, 0, 3]) == [8, 1, 4]
    assert depths(index, *path, slots=[3]) == [4]


def test_a_dispatch_counts_for_a_few_seconds():
    """Siblings of a burst stay together; a request that nobody answers is no reason to."""
    index = index_of(speculative_s=2.0)
    index.promise(0, prompt_of(1, 2), 10.0, 0.25)
    assert depths(index, 1, 2, now=11.9) == [2, 0]
    assert depths(index, 1, 2, now=12.0) == [0, 0]
    assert not index.entries
    assert index.num_promises == 0


def test_an_answer_makes_it_stay():
    """Also when it comes after the promise has run out."""
    index = index_of(speculative_s=2.0)
    index.promise(0, prompt_of(1, 2), 0.0, 0.25)
    assert depths(index, 1, 2, now=5.0) == [0, 0]
    index.confirm(0, prompt_of(1, 2), 6.0, 0.25)
    assert depths(index, 1, 2, now=1e6) == [2, 0]


def test_a_failure_takes_back_what_was_promised_and_no_more():
    """Blocks that an answer stands for stay, and those that another promise goes through."""
    index = index_of()
    serve(index, 0, 1)
    index.promise(0, prompt_of(1, 2, 3, 4), 0.0, 0.25)
    index.promise(0, prompt_of(1, 2, 5), 0.0, 0.25)
    index.withdraw(0, prompt_of(1, 2, 3, 4), 0.0)
    assert depths(index, 1, 2, 3, 4) == [2, 0]
    assert depths(index, 1, 2, 5) == [3, 0]
    index.withdraw(0, prompt_of(1, 2, 5), 0.0)
    assert depths(index, 1, 2, 5) == [1, 0]


def test_a_second_dispatch_of_the_same_prompt_prolongs_the_promise():
    """The first one's time runs out and the second's does not."""
    index = index_of(speculative_s=2.0)
    index.promise(0, prompt_of(1, 2), 0.0, 0.25)
    index.promise(0, prompt_of(1, 2), 1.5, 0.25)
    assert depths(index, 1, 2, now=3.0) == [2, 0]
    assert depths(index, 1, 2, now=3.5) == [0, 0]


def test_standing_says_what_was_held_before():
    """Warm and promised apart; the evidence that answers are judged by."""
    index = index_of()
    serve(index, 0, 1, 2, now=3.0)
    index.holdings(0).clock = 70
    index.promise(0, prompt_of(1, 2, 3), 4.0, 0.25)
    standing = index.promise(0, prompt_of(1, 2, 3, 4), 5.0, 0.25)
    assert (standing.depth, standing.warm_depth) == (3, 2)
    assert (standing.root.at, standing.root.clock, standing.clock) == (4.0, 70, 70)
    assert standing.end_touched == 4.0
    assert standing.warm_tokens < standing.tokens


def test_tails_go_before_heads_and_the_unused_before_the_used():
    """The order in which vLLM evicts: a prefix loses its end first."""
    index = index_of(1, capacity_bytes=128 * 5)
    serve(index, 0, 3, 6)  # all these blocks have 128 bytes
    serve(index, 0, 9, 12, 15)
    serve(index, 0, 3, 6)  # is the younger one again
    serve(index, 0, 18)
    assert depths(index, 9, 12, 15, slots=(0,)) == [2]
    assert depths(index, 3, 6, slots=(0,)) == [2]
    serve(index, 0, 21, 24)
    assert depths(index, 9, 12, 15, slots=(0,)) == [0]
    assert depths(index, 3, 6, slots=(0,)) == [2]


def test_a_shared_head_stays_as_long_as_one_prompt_through_it_is_used():
    """It is as young as the youngest of them."""
    index = index_of(1, capacity_bytes=128 * 6)
    serve(index, 0, 3, 6)
    for step in (9, 12, 15, 18, 21, 24):
        serve(index, 0, 3, step)
    assert depths(index, 3, 24, slots=(0,)) == [2]
    assert depths(index, 3, 6, slots=(0,)) == [1]
    assert index.statistics(0).num_entries == 6
    assert index.statistics(0).num_evicted == 2


def test_the_number_of_blocks_is_bounded_whatever_the_capacity():
    """Memory has a bound of its own."""
    index = index_of(1, max_entries=3)
    for step in range(10):
        serve(index, 0, step, step)
    assert index.statistics(0).num_entries <= 3
    index.check_integrity()


def test_a_prompt_larger_than_the_replica_leaves_nothing_wrong():
    """The engine will refuse it; the index stays within its bound."""
    index = index_of(1, capacity_bytes=300)
    serve(index, 0, 3, 3, 3, 3)
    assert depths(index, 3, 3, 3, 3, slots=(0,)) == [2]


def test_what_is_not_used_in_time_is_dropped():
    """With a time to live, set from the start or later."""
    index = index_of(ttl_s=10.0)
    serve(index, 0, 1, 2, now=0.0)
    serve(index, 0, 1, 3, now=5.0)
    assert depths(index, 1, 2, now=9.9) == [2, 0]
    assert depths(index, 1, 2, now=10.0) == [1, 0]
    assert depths(index, 1, 3, now=15.0) == [0, 0]
    serve(index, 1, 1, 2, now=20.0)
    index.set_ttl(1, None)
    assert depths(index, 1, 2, now=1e5) == [0, 2]
    index.set_ttl(1, 1e4)
    assert depths(index, 1, 2, now=1e5) == [0, 0]


def test_clearing_or_removing_one_replica_leaves_the_others():
    """A slot that is given away again starts empty."""
    index = index_of()
    for slot in (0, 1):
        serve(index, slot, 1, 2, 3)
        serve(index, slot, 1, 2, 4)
    index.clear(0)
    assert depths(index, 1, 2, 3) == [0, 3]
    index.remove_replica(1)
    assert not index.entries
    index.add_replica(1, LARGE)
    assert depths(index, 1, 2, 3) == [0, 0]


def test_a_promise_of_a_replica_that_left_concerns_nobody():
    """Its slot's next owner included, if that has answered."""
    index = index_of(speculative_s=1.0)
    index.promise(0, prompt_of(1), 0.0, 0.25)
    index.remove_replica(0)
    index.add_replica(0, LARGE)
    serve(index, 0, 1, now=0.5)
    assert depths(index, 1, now=2.0) == [1, 0]


def test_promises_are_bounded():
    """The oldest are given up first."""
    index = index_of(max_open=3)
    for step in range(5):
        index.promise(0, prompt_of(step), 0.0, 0.25)
    assert index.num_promises == 3
    assert depths(index, 1) == [0, 0]
    assert depths(index, 4) == [1, 0]


def test_tokens_of_new_blocks_are_guessed_from_their_bytes():
    """On top of what is known of the blocks before."""
    index = index_of()
    serve(index, 0, 1, 2)
    first, second = (index.entries[key_of(path)] for path in ((1,), (1, 2)))
    assert first.tokens >> 2 == block_bytes([1]) // 4
    assert second.tokens >> 2 == (block_bytes([1]) + block_bytes([2])) // 4
    first.tokens = 1000 << 2
    index.promise(0, prompt_of(1, 9), 0.0, 0.5)
    assert index.entries[key_of((1, 9))].tokens >> 2 == 1000 + block_bytes([9]) // 2


@pytest.mark.parametrize("capacity_bytes", [0, 64])
def test_a_replica_without_room_holds_nothing(capacity_bytes):
    """No special case, no error."""
    index = index_of(1, capacity_bytes=capacity_bytes)
    serve(index, 0, 1, 2)
    assert depths(index, 1, 2, slots=(0,)) == [0]
