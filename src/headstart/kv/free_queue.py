"""Blocks that nobody holds, in the order in which they will be given out."""

from collections.abc import Iterator
from typing import Protocol

from headstart.types import BlockHash


class Block:
    """A slot for one run of `block_size` tokens; belongs to one pool for the pool's life.

    Attributes:
        block_id: 0..num_blocks - 1; the backend keeps the KV of its tokens under this number.
        ref_count: requests that hold it.
        block_hash: identity of its contents if they can be reused, else None.
        previous_free, next_free: links of the free queue; None outside it.
    """

    __slots__ = ("block_hash", "block_id", "next_free", "previous_free", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: BlockHash | None = None
        self.previous_free: Block | None = None
        self.next_free: Block | None = None

    def __repr__(self) -> str:
        return (
            f"Block({self.block_id}, refs={self.ref_count}, hashed={self.block_hash is not None})"
        )


class FreeQueue(Protocol):
    """Decides which free block is given out, and so whose contents are lost, next.

    This is the seam for eviction policies: the pool tells it when a block becomes free and when
    a hit takes one back, and asks it for a victim. It never sees a block that somebody holds.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Block]:
        """Iterate in the order of eviction."""
        ...

    def append(self, block: Block) -> None:
        """Take in a block that has just lost its last holder."""
        ...

    def remove(self, block: Block) -> None:
        """Let go of a block that is held again."""
        ...

    def pop(self) -> Block:
        """Remove and return the block to give out next. The queue must not be empty."""
        ...


class LruQueue:
    """First freed, first given out: a doubly linked list, because hits leave from the middle.

    A deque would need O(n) to remove a block that is hit; an ordered dict would do, at three
    times the memory per block. The order in which blocks arrive is the pool's business: it frees
    a request's blocks from last to first, so that a prefix loses its tail before its head.

    Cost: O(1) each, no allocation. All of `append`, `remove` and `pop` mutate.
    """

    __slots__ = ("_head", "_length", "_tail")

    def __init__(self) -> None:
        # Two sentinels, so that no operation has a case for the ends.
        self._head, self._tail = Block(-1), Block(-1)
        self._head.next_free, self._tail.previous_free = self._tail, self._head
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def append(self, block: Block) -> None:
        """Put a block at the tail."""
        assert block.next_free is None, "already in the queue"
        last = self._tail.previous_free
        assert last is not None
        last.next_free, self._tail.previous_free = block, block
        block.previous_free, block.next_free = last, self._tail
        self._length += 1

    def remove(self, block: Block) -> None:
        """Take a block out, wherever it stands."""
        before, after = block.previous_free, block.next_free
        assert before is not None
        assert after is not None, "not in the queue"
        before.next_free, after.previous_free = after, before
        block.previous_free = block.next_free = None
        self._length -= 1

    def pop(self) -> Block:
        """Take the block at the head."""
        block = self._head.next_free
        assert block is not None
        assert block is not self._tail, "the queue is empty"
        self.remove(block)
        return block
