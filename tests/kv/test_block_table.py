"""A request's table: what is looked up, what becomes reusable, and when."""

from headstart.kv.block_table import BlockTable
from headstart.kv.hashing import root_hash
from headstart.kv.pool import BlockPool

ROOT = root_hash("m", None)


def run(pool, token_ids, root=ROOT):
    """Admit, compute and end a request."""
    table = BlockTable(pool, token_ids, root)
    hits = table.match()
    assert table.admit(hits)
    table.commit(table.num_tokens)
    table.release()
    return len(hits)


def test_the_last_token_is_always_recomputed():
    """A prompt that is cached whole still leaves its last block to compute."""
    pool = BlockPool(8, block_size=4)
    run(pool, range(8))
    assert len(BlockTable(pool, range(8), ROOT).match()) == 1
    assert len(BlockTable(pool, range(9), ROOT).match()) == 2


def test_only_full_blocks_become_reusable():
    """Tokens after the last full block are computed again."""
    pool = BlockPool(8, block_size=4)
    run(pool, range(7))
    assert pool.num_cached_blocks == 1


def test_nothing_is_reusable_before_it_is_computed():
    """Blocks that are held but not committed cannot be found."""
    pool = BlockPool(8, block_size=4)
    table = BlockTable(pool, range(12), ROOT)
    table.admit([])
    table.commit(5)
    assert len(BlockTable(pool, range(12), ROOT).match()) == 1
    table.commit(8)
    assert len(BlockTable(pool, range(12), ROOT).match()) == 2


def test_generated_tokens_are_reusable():
    """The next turn of a conversation finds the answer of the last."""
    pool = BlockPool(8, block_size=4)
    table = BlockTable(pool, range(6), ROOT)
    table.admit([])
    for token in range(6, 12):
        table.commit(table.num_tokens)
        table.append(token)
        assert table.grow()
    table.release()
    assert len(BlockTable(pool, range(20), ROOT).match()) == 2


def test_another_salt_finds_nothing():
    """Equal text under another root shares no block."""
    pool = BlockPool(8, block_size=4)
    run(pool, range(12))
    assert BlockTable(pool, range(12), root_hash("m", "salt")).match() == []
    assert run(pool, range(12)) == 2


def test_without_a_root_nothing_is_looked_up_or_stored():
    """Caching off: the table only holds blocks."""
    pool = BlockPool(8, block_size=4)
    assert run(pool, range(12), root=None) == 0
    assert run(pool, range(12), root=None) == 0
    assert pool.num_cached_blocks == 0
    assert pool.take_events() == []


def test_a_released_table_can_be_admitted_again():
    """After preemption the request finds its own blocks."""
    pool = BlockPool(8, block_size=4)
    table = BlockTable(pool, range(10), ROOT)
    table.admit([])
    table.commit(10)
    table.append(10)
    table.release()
    assert table.block_ids == []
    hits = table.match()
    assert len(hits) == 2
    assert table.admit(hits)
    assert len(table.block_ids) == 3
    pool.check_integrity()


def test_growing_fails_without_side_effects_when_the_pool_is_exhausted():
    """A table that cannot grow keeps what it has."""
    pool = BlockPool(2, block_size=2)
    table = BlockTable(pool, range(4), ROOT)
    table.admit([])
    table.append(4)
    assert not table.grow()
    assert len(table.block_ids) == 2
    pool.check_integrity()


def test_a_copy_takes_the_place_of_the_block_that_was_evicted():
    """Two requests compute the same block; when the cached one is gone, the other's is cached."""
    pool = BlockPool(4, block_size=2)
    first, second = (BlockTable(pool, [1, 2], ROOT) for _ in range(2))
    for table in (first, second):
        assert table.admit([])
        table.commit(2)
    first.release()
    other = BlockTable(pool, [7, 7, 7, 7, 7], ROOT)
    assert other.admit([])  # evicts the first's block
    other.release()
    pool.take_events()
    for token in (3, 4):
        second.append(token)
    assert second.grow()
    second.commit(4)
    (stored,) = pool.take_events()
    assert stored.block_hashes == tuple(second.full_block_hashes())
    assert (stored.parent_block_hash, stored.token_ids) == (None, (1, 2, 3, 4))
    assert len(BlockTable(pool, [1, 2, 3, 4, 5], ROOT).match()) == 2
    pool.check_integrity()
