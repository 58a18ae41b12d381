"""The block pool's rules, and the worked example of vLLM's design document."""

import pytest

from headstart.kv.block_table import BlockTable
from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored
from headstart.kv.free_queue import LruQueue
from headstart.kv.hashing import hash_block, root_hash
from headstart.kv.pool import BlockPool
from headstart.types import BlockHash, TokenId

ROOT = root_hash("model", None)


def tokens(*numbers: int) -> list[TokenId]:
    return [TokenId(n) for n in numbers]


def chain(token_ids, block_size, root=ROOT):
    """The hashes of all full blocks, spelt out."""
    hashes, parent = [], root
    for start in range(0, len(token_ids) // block_size * block_size, block_size):
        parent = hash_block(parent, token_ids[start : start + block_size])
        hashes.append(parent)
    return hashes


def store_all(pool, blocks, token_ids, root=ROOT):
    hashes = chain(token_ids, pool.block_size, root)
    pool.store(blocks[: len(hashes)], hashes, token_ids, parent=None)
    return hashes


def test_worked_example_of_the_vllm_design_document():
    """Block size 4, ten blocks: every block number and queue order of the document."""
    pool = BlockPool(num_blocks=10, block_size=4)
    prompt0 = tokens(*range(100, 115))  # 15 tokens
    prompt1 = tokens(*range(100, 110), *range(200, 204))  # 14, the first 10 shared with request 0
    prompt2 = tokens(*range(100, 112), *range(300, 317))  # 29, the first 12 shared with request 0

    # Time 1: request 0 gets blocks 0..3; 0..2 are full and cached.
    request0 = BlockTable(pool, prompt0, ROOT)
    assert request0.match() == []
    assert request0.admit([])
    assert request0.block_ids == [0, 1, 2, 3]
    request0.commit(15)
    assert pool.num_cached_blocks == 3

    # Time 3: decoding fills block 3 and takes block 4.
    request0.append(TokenId(900))
    assert request0.grow()
    request0.commit(16)
    assert pool.num_cached_blocks == 4
    request0.append(TokenId(901))
    assert request0.grow()
    assert request0.block_ids == [0, 1, 2, 3, 4]

    # Time 4: request 1 hits blocks 0 and 1 (8 tokens) and gets 5 and 6.
    request1 = BlockTable(pool, prompt1, ROOT)
    hits = request1.match()
    assert [block.block_id for block in hits] == [0, 1]
    assert request1.admit(hits)
    assert request1.block_ids == [0, 1, 5, 6]
    request1.commit(14)

    # Times 5 and 6: request 0 is freed, then request 1.
    request0.release()
    assert pool.free_block_ids() == [7, 8, 9, 4, 3, 2]
    request1.release()
    assert pool.free_block_ids() == [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]

    # Time 7: request 2 hits 0, 1, 2; gets 7, 8, 9, 4, 3, in that order; 3 loses its hash.
    request2 = BlockTable(pool, prompt2, ROOT)
    hits = request2.match()
    assert [block.block_id for block in hits] == [0, 1, 2]
    assert request2.admit(hits)
    assert request2.block_ids == [0, 1, 2, 7, 8, 9, 4, 3]
    assert pool.free_block_ids() == [6, 5]
    full0 = chain([*prompt0, TokenId(900)], 4)
    assert [len(pool.match(full0[:n])) for n in (3, 4)] == [3, 3]
    pool.check_integrity()


def test_a_new_pool_gives_its_blocks_in_order():
    """Block ids leave an unused pool ascending."""
    pool = BlockPool(4)
    assert [block.block_id for block in pool.allocate((), 3)] == [0, 1, 2]


def test_allocation_is_all_or_nothing():
    """A request for more blocks than are free changes nothing."""
    pool = BlockPool(4)
    held = pool.allocate((), 2)
    before = pool.free_block_ids()
    assert pool.allocate((), 3) is None
    assert pool.free_block_ids() == before
    assert [block.ref_count for block in held] == [1, 1]


def test_free_hits_count_as_needed():
    """A hit that is free cannot also be given out as a new block."""
    pool = BlockPool(3, block_size=2)
    blocks = pool.allocate((), 2)
    hashes = store_all(pool, blocks, tokens(1, 2, 3, 4))
    pool.free(blocks)
    hits = pool.match(hashes)
    assert pool.allocate(hits, 2) is None
    assert all(block.ref_count == 0 for block in hits)
    assert pool.allocate(hits, 1) is not None
    pool.check_integrity()


def test_a_hit_leaves_the_free_queue_and_comes_back_at_its_tail():
    """Touching a block makes it the last to be evicted."""
    pool = BlockPool(3, block_size=1)
    blocks = pool.allocate((), 3)
    hashes = store_all(pool, blocks, tokens(7, 8, 9))
    pool.free(blocks)
    assert pool.free_block_ids() == [2, 1, 0]
    hits = pool.match(hashes[:2])
    pool.allocate(hits, 0)
    assert pool.free_block_ids() == [2]
    pool.free(hits)
    assert pool.free_block_ids() == [2, 1, 0]


def test_a_shared_block_is_free_only_when_nobody_holds_it():
    """Reference counts, not the last user, decide."""
    pool = BlockPool(2, block_size=1)
    blocks = pool.allocate((), 1)
    store_all(pool, blocks, tokens(5))
    pool.allocate(blocks, 0)
    pool.free(blocks)
    assert pool.num_free_blocks == 1
    pool.free(blocks)
    assert pool.num_free_blocks == 2


def test_a_lookup_stops_at_the_first_miss():
    """A cached child of an evicted parent is not found."""
    pool = BlockPool(3, block_size=1)
    blocks = pool.allocate((), 3)
    hashes = store_all(pool, blocks, tokens(7, 8, 9))
    pool.free([blocks[1], blocks[2], blocks[0]])  # 0, 2, 1: the head of the chain goes first
    pool.allocate((), 1)
    assert pool.match(hashes) == []
    assert len(pool.match(hashes[1:])) == 2


def test_lookup_is_lazy():
    """Hashes after the first miss are never asked for."""

    def hashes():
        yield BlockHash(bytes(16))
        pytest.fail("read past the first miss")

    assert BlockPool(1).match(hashes()) == []


def test_equal_contents_are_cached_once():
    """The second copy of a block stays without a hash, and no event is sent for it."""
    pool = BlockPool(4, block_size=2)
    first = pool.allocate((), 1)
    hashes = store_all(pool, first, tokens(1, 2))
    second = pool.allocate((), 2)
    pool.take_events()
    longer = chain(tokens(1, 2, 3, 4), 2)
    pool.store(second, longer, tokens(1, 2, 3, 4), parent=None)
    assert pool.match(longer) == [first[0], second[1]]
    assert pool.take_events() == [
        BlockStored((longer[1],), hashes[0], tuple(tokens(3, 4)), block_size=2)
    ]
    pool.check_integrity()


def test_events_tell_removal_before_the_store_that_needed_room():
    """Within one batch, what was evicted is reported first."""
    pool = BlockPool(2, block_size=1)
    blocks = pool.allocate((), 2)
    old = store_all(pool, blocks, tokens(1, 2))
    pool.free(blocks)
    pool.take_events()
    blocks = pool.allocate((), 2)
    new = store_all(pool, blocks, tokens(3, 4))
    assert pool.take_events() == [
        BlockRemoved((old[1], old[0])),
        BlockStored(tuple(new), None, tuple(tokens(3, 4)), block_size=1),
    ]
    assert pool.take_events() == []
    assert pool.num_evicted_blocks == 2


def test_a_stored_event_has_everything_needed_to_rebuild_the_chain():
    """Parent, tokens, size and salt are part of the event."""
    pool = BlockPool(4, block_size=2)
    blocks = pool.allocate((), 2)
    hashes = chain(tokens(1, 2, 3, 4), 2)
    pool.store(blocks[:1], hashes[:1], tokens(1, 2), parent=None, cache_salt="s")
    pool.store(blocks[1:], hashes[1:], tokens(3, 4), parent=hashes[0], cache_salt="s")
    assert pool.take_events() == [
        BlockStored((hashes[0],), None, tuple(tokens(1, 2)), 2, "s"),
        BlockStored((hashes[1],), hashes[0], tuple(tokens(3, 4)), 2, "s"),
    ]


def test_clear_forgets_everything_unless_a_block_is_held():
    """Clearing is refused while a request runs; after it nothing is found."""
    pool = BlockPool(2, block_size=1)
    blocks = pool.allocate((), 1)
    hashes = store_all(pool, blocks, tokens(1))
    assert not pool.clear()
    pool.free(blocks)
    pool.take_events()
    assert pool.clear()
    assert pool.match(hashes) == []
    assert pool.take_events() == [AllBlocksCleared()]
    assert pool.num_free_blocks == 2
    pool.check_integrity()


def test_the_order_of_eviction_is_the_free_queue_s():
    """Another queue, another victim: the pool asks and obeys."""

    class NewestFirst(LruQueue):
        """Evicts what was freed last."""

        def pop(self):
            last = list(self)[-1]
            self.remove(last)
            return last

    pool = BlockPool(3, free_queue=NewestFirst())
    assert [block.block_id for block in pool.allocate((), 2)] == [2, 1]


def test_freeing_more_often_than_held_is_caught():
    """A double free is an error of ours, found at once."""
    pool = BlockPool(1)
    blocks = pool.allocate((), 1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed more often"):
        pool.free(blocks)
