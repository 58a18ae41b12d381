"""What changed in a block pool, as facts; encoding them for a wire is `headstart.wire`'s work."""

from dataclasses import dataclass

from headstart.types import BlockHash, TokenId


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Full blocks became reusable, in order, each the child of the one before.

    Attributes:
        block_hashes: one per block, 16 bytes each.
        parent_block_hash: hash of the block before the first; None at the start of a prompt.
        token_ids: `len(block_hashes) * block_size` tokens.
        block_size: tokens per block.
        cache_salt: the string that isolates this prompt, or None.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[TokenId, ...]
    block_size: int
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks lost their contents; their hashes no longer match."""

    block_hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Every hash was dropped at once."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
