"""From KV events to what caches hold.

    stored    parent known       keys computed, held
              parent unknown     the stream began mid-way: counted, not held
              without tokens     offloaded: held on another tier so far, keys taken from there
    removed   unknown            its store was not heard: counted
    cleared                      everything of this rank

Hybrid models announce blocks per KV-cache group. How long a prefix can be reused is decided by the
groups with full attention; the others keep a window or a state, and their removals shorten nothing.
They are counted and left out.
"""

from collections.abc import Sequence
from typing import Final

from headstart.prefix.block_names import BlockNames, Unplaceable, fold, fold_all
from headstart.prefix.caches import RankCache, ReplicaCaches
from headstart.prefix.holders import Holders, Shelf
from headstart.prefix.tiers import Tier, tier_of
from headstart.wire.kv_events import KvEventBatch, RemovedBlocks, StoredBlocks

_BOUNDED_KINDS: Final = ("sliding", "chunked", "local", "mamba", "linear", "cross", "encoder")
"""In the names of kinds of attention whose blocks do not carry a whole prefix."""


class Ingest:
    """Applies events; owns the holders of every tier."""

    def __init__(self) -> None:
        self.holders = {tier: Holders() for tier in Tier}
        self._device = self.holders[Tier.DEVICE]
        self._names = BlockNames()

    def apply(self, replica: ReplicaCaches, cache: RankCache, batch: KvEventBatch) -> None:
        """Take in what one step of a rank's engine changed, in order."""
        for event in batch.events:
            if type(event) is StoredBlocks:
                self._store(replica, cache, event)
            elif type(event) is RemovedBlocks:
                self._remove(replica, cache, event)
            else:
                replica.num_clears += 1
                self.empty(cache)

    def empty(self, cache: RankCache) -> None:
        """Drop all that a rank holds. Cost: about 0.2 us a block."""
        for tier, shelf in cache.shelves.items():
            self.holders[tier].clear(shelf)

    def _store(self, replica: ReplicaCaches, cache: RankCache, event: StoredBlocks) -> None:
        hashes = fold_all(event.block_hashes)
        replica.num_stored += len(hashes)
        kind = event.kv_cache_spec_kind
        if kind != "full_attention" and kind is not None and _is_bounded(kind):
            cache.ignored_groups.add(event.group_idx)
            replica.num_ignored += len(hashes)
            return
        if not event.token_ids:
            self._store_known(replica, cache, event.medium, hashes)
            return
        replica.block_size = event.block_size
        parent_hash = event.parent_block_hash
        parent = self._names.root(event) if parent_hash is None else cache.key(fold(parent_hash))
        if parent is None:
            replica.num_unplaced += len(hashes)
            return
        try:
            keys = self._names.keys(event, parent)
        except Unplaceable:
            replica.num_unplaced += len(hashes)
            return
        holders, shelf = self._place(cache, event.medium)
        holders.store(shelf, parent, hashes, keys)

    def _store_known(
        self, replica: ReplicaCaches, cache: RankCache, medium: str | None, hashes: Sequence[int]
    ) -> None:
        holders, shelf = self._place(cache, medium)
        for block_hash in hashes:
            key = cache.key(block_hash)
            if key is None:
                replica.num_unplaced += 1
            else:
                holders.store(shelf, None, (block_hash,), (key,))

    def _remove(self, replica: ReplicaCaches, cache: RankCache, event: RemovedBlocks) -> None:
        hashes = fold_all(event.block_hashes)
        replica.num_removed += len(hashes)
        if event.group_idx in cache.ignored_groups:
            replica.num_ignored += len(hashes)
            return
        holders, shelf = self._place(cache, event.medium)
        replica.num_unknown_removals += holders.remove(shelf, hashes, event.remaining_copy_counts)

    def _place(self, cache: RankCache, medium: str | None) -> tuple[Holders, Shelf]:
        if medium == "GPU" or medium is None:
            return self._device, cache.device
        tier = tier_of(medium)
        return self.holders[tier], cache.shelf(tier)


def _is_bounded(kind: str) -> bool:
    return any(part in kind for part in _BOUNDED_KINDS)
