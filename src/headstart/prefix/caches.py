"""The caches of one replica, one per data-parallel rank, and what was counted about them."""

import msgspec

from headstart.prefix.holders import Shelf
from headstart.prefix.tiers import Tier
from headstart.types import PrefixKey


class HoldingStatistics(msgspec.Struct, frozen=True):
    """One replica's part of the index in figures.

    Attributes:
        num_blocks: held, per tier, over all ranks.
        block_size: tokens per block; None before the first event.
        num_ranks: whose events were heard.
        num_stored: blocks announced.
        num_removed: blocks removed.
        num_unplaced: announced, but after a block that is not known.
        num_unknown_removals: removed, but not known.
        num_ignored: of groups that do not decide how much is reused.
        num_clears: times that a rank's blocks were dropped all at once.
    """

    num_blocks: dict[Tier, int]
    block_size: int | None
    num_ranks: int
    num_stored: int
    num_removed: int
    num_unplaced: int
    num_unknown_removals: int
    num_ignored: int
    num_clears: int


class RankCache:
    """One rank's cache.

    Attributes:
        bit: that stands for it in masks.
        device: what it holds where it computes.
        shelves: likewise for each tier that was heard of.
        ignored_groups: KV-cache groups whose blocks are left out.
    """

    __slots__ = ("bit", "device", "ignored_groups", "shelves")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.device = Shelf(bit)
        self.shelves = {Tier.DEVICE: self.device}
        self.ignored_groups: set[int | None] = set()

    def shelf(self, tier: Tier) -> Shelf:
        """Return what it holds in a tier."""
        shelf = self.shelves.get(tier)
        if shelf is None:
            shelf = self.shelves[tier] = Shelf(self.bit)
        return shelf

    def key(self, block_hash: int) -> PrefixKey | None:
        """Return the key of a block that it holds in any tier."""
        key = self.device.blocks.get(block_hash)
        if key is not None:
            return key
        for shelf in self.shelves.values():
            key = shelf.blocks.get(block_hash)
            if key is not None:
                return key
        return None


class ReplicaCaches:
    """One replica.

    Attributes:
        by_rank: its caches.
        mask: their bits.
        block_size: see `HoldingStatistics`, as are the counts.
    """

    __slots__ = (
        "block_size",
        "by_rank",
        "mask",
        "num_clears",
        "num_ignored",
        "num_removed",
        "num_stored",
        "num_unknown_removals",
        "num_unplaced",
    )

    def __init__(self) -> None:
        self.by_rank: dict[int, RankCache] = {}
        self.mask = 0
        self.block_size: int | None = None
        self.num_stored = 0
        self.num_removed = 0
        self.num_unplaced = 0
        self.num_unknown_removals = 0
        self.num_ignored = 0
        self.num_clears = 0

    def statistics(self) -> HoldingStatistics:
        """Return figures about the replica."""
        num_blocks: dict[Tier, int] = {}
        for cache in self.by_rank.values():
            for tier, shelf in cache.shelves.items():
                num_blocks[tier] = num_blocks.get(tier, 0) + len(shelf.blocks)
        return HoldingStatistics(
            num_blocks=num_blocks,
            block_size=self.block_size,
            num_ranks=len(self.by_rank),
            num_stored=self.num_stored,
            num_removed=self.num_removed,
            num_unplaced=self.num_unplaced,
            num_unknown_removals=self.num_unknown_removals,
            num_ignored=self.num_ignored,
            num_clears=self.num_clears,
        )
