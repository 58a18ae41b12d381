"""The block pool: which blocks exist, who holds them, and what they can be reused for.

A block is in one of three states, by its reference count and hash:

                  allocate (pop from the free queue)
      FREE ─────────────────────────────────────────► HELD ──── store ───► HELD, CACHED
      count 0, no hash ◄──────────── free ──────────  count > 0            count > 0, hash
       ▲                                                                    │        ▲
       │ evict (allocate pops it: hash dropped)                         free│        │touch (hit)
       └─────────────────────────── CACHED, count 0, in the free queue ◄────┘────────┘

Rules (vLLM, design document "Automatic Prefix Caching"):

1. A look-up walks the chain of hashes and stops at the first miss.
2. Allocation is all or nothing: it fails if fewer blocks are free than are needed; else the hits
   are touched (they leave the free queue) before new blocks are popped from its head.
3. A request's blocks are freed from last to first, to the tail of the queue: of two blocks that
   were freed together, the one further down the prompt is evicted first.
4. One block per hash. A block whose contents are already cached elsewhere stays without a hash,
   until the other is evicted and a later block of its own prompt is stored.

What it does not do: it holds no KV, counts no requests, and hashes nothing (see
`headstart.kv.block_table`).

Cost: O(1) per block for every operation; memory O(num_blocks), fixed at the start but for events
not yet taken.
"""

from collections.abc import Iterable, Iterator, Sequence

from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from headstart.kv.free_queue import Block, FreeQueue, LruQueue
from headstart.types import BlockHash, TokenId


class BlockPool:
    """A fixed number of blocks; see the module's text. Not thread-safe.

    Args:
        num_blocks: >= 1; block ids are 0..num_blocks - 1 and leave the new pool in that order.
        block_size: tokens per block, >= 1.
        free_queue: order of eviction, empty; least recently used if None.
        records_events: `take_events` has something to return.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        free_queue: FreeQueue | None = None,
        *,
        records_events: bool = True,
    ) -> None:
        assert num_blocks >= 1
        assert block_size >= 1
        self.block_size = block_size
        self.num_evicted_blocks = 0
        self._blocks = tuple(Block(block_id) for block_id in range(num_blocks))
        self._free: FreeQueue = LruQueue() if free_queue is None else free_queue
        self._cached: dict[BlockHash, Block] = {}
        self._events: list[KvEvent] = []
        self._records_events = records_events
        for block in self._blocks:
            self._free.append(block)

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that a look-up can find, held or not."""
        return len(self._cached)

    def is_cached(self, block_hash: BlockHash) -> bool:
        """Return whether a look-up would find this block now; does not hold it."""
        return block_hash in self._cached

    def match(self, block_hashes: Iterable[BlockHash]) -> list[Block]:
        """Find the longest leading run of cached blocks; does not hold them.

        The caller must allocate before anything else happens to the pool, or look up again.

        Args:
            block_hashes: chained, first block first; may be lazy, it is read up to the first miss.
        """
        hits: list[Block] = []
        for block_hash in block_hashes:
            block = self._cached.get(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def allocate(self, hits: Sequence[Block], num_new: int) -> list[Block] | None:
        """Hold `hits` and `num_new` further blocks; all or nothing.

        Args:
            hits: from `match`, nothing having happened to the pool since; may be empty.
            num_new: >= 0.

        Returns:
            The new blocks, in the order in which they are to be filled; None if too few are
            free, and then nothing has changed.

        Mutates: the hits' counts; the free queue; drops the hashes of the new blocks.
        """
        num_free_hits = sum(1 for block in hits if block.ref_count == 0)
        if len(self._free) < num_new + num_free_hits:
            return None
        for block in hits:
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1
        new_blocks = [self._free.pop() for _ in range(num_new)]
        self._evict(new_blocks)
        for block in new_blocks:
            block.ref_count = 1
        return new_blocks

    def store(
        self,
        blocks: Sequence[Block],
        block_hashes: Sequence[BlockHash],
        token_ids: Sequence[TokenId],
        *,
        parent: BlockHash | None,
        cache_salt: str | None = None,
    ) -> None:
        """Make full blocks findable, now that their KV is complete.

        Args:
            blocks: held, without a hash, consecutive in one prompt; at least one.
            block_hashes: one per block.
            token_ids: `block_size` per block.
            parent: hash of the block before the first; None at the start of the prompt.
            cache_salt: of the prompt; only reported.

        Mutates: the blocks' hashes; records one event per run that was not cached before.
        """
        assert len(blocks) == len(block_hashes)
        assert len(token_ids) == len(blocks) * self.block_size
        start = 0
        for i, (block, block_hash) in enumerate(zip(blocks, block_hashes, strict=True)):
            assert block.ref_count > 0
            assert block.block_hash is None
            if block_hash in self._cached:  # rule 4
                self._record_stored(block_hashes, token_ids, start, i, parent, cache_salt)
                start = i + 1
                continue
            self._cached[block_hash] = block
            block.block_hash = block_hash
        self._record_stored(block_hashes, token_ids, start, len(blocks), parent, cache_salt)

    def free(self, blocks: Sequence[Block]) -> None:
        """Let go of one request's blocks, given first to last.

        Mutates: counts; blocks that nobody holds any more join the free queue, last first.
        """
        for block in reversed(blocks):
            assert block.ref_count > 0, "freed more often than held"
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free.append(block)

    def clear(self) -> bool:
        """Forget all cached contents, unless a block is held; returns whether it did."""
        if len(self._free) < len(self._blocks):
            return False
        for block in self._cached.values():
            block.block_hash = None
        self._cached.clear()
        if self._records_events:
            self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvEvent]:
        """Return what changed since the last call, in order, and forget it."""
        events, self._events = self._events, []
        return events

    def free_blocks(self) -> Iterator[Block]:
        """Iterate over the free queue, next to be given out first; nothing may change meanwhile."""
        return iter(self._free)

    def free_block_ids(self) -> list[int]:
        """Return the ids in the free queue, next to be given out first. Cost: O(num_blocks)."""
        return [block.block_id for block in self._free]

    def check_integrity(self) -> None:
        """Assert every invariant. Cost: O(num_blocks); for tests."""
        free = list(self._free)
        assert len(free) == len(self._free) == len({id(block) for block in free})
        assert {id(block) for block in free} == {
            id(block) for block in self._blocks if block.ref_count == 0
        }
        for block in self._blocks:
            assert block.ref_count >= 0
            if block.block_hash is not None:
                assert self._cached[block.block_hash] is block
        assert all(block.block_hash == key for key, block in self._cached.items())
        assert [block.block_id for block in self._blocks] == list(range(len(self._blocks)))

    def _evict(self, blocks: Iterable[Block]) -> None:
        removed: list[BlockHash] = []
        for block in blocks:
            if block.block_hash is not None:
                del self._cached[block.block_hash]
                removed.append(block.block_hash)
                block.block_hash = None
        if removed:
            self.num_evicted_blocks += len(removed)
            if self._records_events:
                self._events.append(BlockRemoved(tuple(removed)))

    def _record_stored(
        self,
        block_hashes: Sequence[BlockHash],
        token_ids: Sequence[TokenId],
        start: int,
        end: int,
        parent: BlockHash | None,
        cache_salt: str | None,
    ) -> None:
        if start == end or not self._records_events:
            return
        self._events.append(
            BlockStored(
                block_hashes=tuple(block_hashes[start:end]),
                parent_block_hash=block_hashes[start - 1] if start > 0 else parent,
                token_ids=tuple(token_ids[start * self.block_size : end * self.block_size]),
                block_size=self.block_size,
                cache_salt=cache_salt,
            )
        )
