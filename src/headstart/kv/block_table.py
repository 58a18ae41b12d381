"""The blocks of one request: its part of the pool, and how far each block is filled."""

from collections.abc import Sequence

from headstart.kv.free_queue import Block
from headstart.kv.hashing import hash_block
from headstart.kv.pool import BlockPool
from headstart.types import BlockHash, TokenId


class BlockTable:
    """Maps the tokens of one request to blocks of a pool; computes no KV.

    Life: `match` (as often as wanted), `admit`, then `grow`, `commit` and `append` in turn, then
    `release`; after it the table can be admitted again (preemption), its tokens are kept.

        block_ids   [ b0        | b1        | b2      | ...        ]
        tokens      [ computed and stored   | computed | to compute]
                    0                       num_stored * block_size
                    0                                  num_computed

    Args:
        pool: shared by all requests of an engine.
        token_ids: the prompt; copied.
        root: parent of the first block, from `root_hash`; None: nothing is looked up or stored.
        cache_salt: the salt in `root`, for events.
    """

    __slots__ = (
        "_blocks",
        "_cache_salt",
        "_hashes",
        "_num_stored",
        "_pool",
        "_root",
        "block_ids",
        "token_ids",
    )

    def __init__(
        self,
        pool: BlockPool,
        token_ids: Sequence[TokenId],
        root: BlockHash | None,
        cache_salt: str | None = None,
    ) -> None:
        self.token_ids: list[TokenId] = list(token_ids)
        self.block_ids: list[int] = []
        self._pool = pool
        self._root = root
        self._cache_salt = cache_salt
        self._blocks: list[Block] = []
        self._hashes: list[BlockHash] = []
        self._num_stored = 0

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, computed or not."""
        return len(self.token_ids)

    @property
    def is_cacheable(self) -> bool:
        """Whether its blocks are looked up and stored."""
        return self._root is not None

    @property
    def num_matchable_blocks(self) -> int:
        """Full blocks that a look-up may return: the last token is always recomputed."""
        if self._root is None:
            return 0
        return (len(self.token_ids) - 1) // self._pool.block_size

    def full_block_hashes(self) -> list[BlockHash]:
        """Return the hashes of all full blocks; computed once each. Empty without a root."""
        if self._root is not None:
            size = self._pool.block_size
            for i in range(len(self._hashes), len(self.token_ids) // size):
                parent = self._hashes[i - 1] if i > 0 else self._root
                self._hashes.append(hash_block(parent, self.token_ids[i * size : (i + 1) * size]))
        return self._hashes

    def match(self) -> list[Block]:
        """Look up the longest cached prefix, short of the last token; does not hold it."""
        return self._pool.match(self.full_block_hashes()[: self.num_matchable_blocks])

    def admit(self, hits: list[Block]) -> bool:
        """Hold `hits` and enough new blocks for all known tokens; all or nothing.

        Args:
            hits: what `match` has just returned.

        Returns:
            False if the pool has too few free blocks.
        """
        assert not self._blocks
        new_blocks = self._pool.allocate(hits, self._num_blocks_for(self.num_tokens) - len(hits))
        if new_blocks is None:
            return False
        self._hold([*hits, *new_blocks])
        self._num_stored = len(hits)
        return True

    def grow(self) -> bool:
        """Make sure that every known token has a block; False if the pool is exhausted."""
        missing = self._num_blocks_for(self.num_tokens) - len(self._blocks)
        if missing <= 0:
            return True
        new_blocks = self._pool.allocate((), missing)
        if new_blocks is None:
            return False
        self._hold(new_blocks)
        return True

    def append(self, token_id: TokenId) -> None:
        """Add a sampled token; it has no KV yet."""
        self.token_ids.append(token_id)

    def commit(self, num_computed: int) -> None:
        """Make the blocks that are now full reusable.

        Args:
            num_computed: leading tokens whose KV is complete; never less than before.
        """
        if self._root is None:
            return
        size = self._pool.block_size
        start, end = self._num_stored, num_computed // size
        if start == end:
            return
        hashes = self.full_block_hashes()
        # Where another block had the same contents, ours has no hash (the pool's rule 4). If that
        # one is evicted by now, ours takes its place, so that no block lacks its parent.
        while start > 0 and not self._pool.is_cached(hashes[start - 1]):
            start -= 1
        self._pool.store(
            self._blocks[start:end],
            hashes[start:end],
            self.token_ids[start * size : end * size],
            parent=hashes[start - 1] if start > 0 else None,
            cache_salt=self._cache_salt,
        )
        self._num_stored = end

    def release(self) -> None:
        """Let go of all blocks; what was stored stays findable until it is evicted."""
        self._pool.free(self._blocks)
        self._blocks = []
        self.block_ids = []
        self._num_stored = 0

    def _hold(self, blocks: Sequence[Block]) -> None:
        self._blocks.extend(blocks)
        self.block_ids.extend(block.block_id for block in blocks)

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._pool.block_size)
