"""What each replica holds, as its engine's own events say.

Theory of operation: a replica has one cache per data-parallel rank, and each is a bit in the masks
of `prefix.holders`. `prefix.ingest` gives every stored block our own key, chained as
`prompt.token_keys` chains those of a request, so a look-up is a walk along the request's keys. To
what is held come `prefix.promises`: what a replica was sent and has not computed yet.

A request is matched with the rank that holds most of it: a gateway cannot choose the rank, and an
engine that knows its ranks' caches chooses that one.

Not its job: whether the events are complete (`prefix.stream`) and to be believed (`prefix.trust`).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headstart.prefix.caches import HoldingStatistics, RankCache, ReplicaCaches
from headstart.prefix.ingest import Ingest
from headstart.prefix.promises import Promises
from headstart.prefix.tiers import Tier
from headstart.prompt.token_keys import TokenPrompt
from headstart.types import PrefixKey
from headstart.wire.kv_events import KvEventBatch

__all__ = ["HoldingStatistics", "PreciseIndex", "Tier", "usable_keys"]


def usable_keys(tokens: TokenPrompt, block_size: int) -> Sequence[PrefixKey]:
    """Return the keys of the blocks that an engine may reuse for a prompt.

    The last token is always computed, so a prompt of full blocks cannot use the last one.
    """
    keys = tokens.keys_by_block_size.get(block_size, ())
    limit = max(tokens.num_tokens - 1, 0) // block_size
    return keys if len(keys) <= limit else keys[:limit]


Plan = list[tuple[int, int, dict[int, int], bool]]
"""Of a look-up, per size of block: the caches to ask, for each of their bits the position of its
replica, and whether these are all replicas that were asked for."""

_MAX_PLANS: Final = 256


class PreciseIndex:
    """Learns from events, answers for prompts; knows nothing of trust."""

    def __init__(self) -> None:
        self._ingest = Ingest()
        self._device = self._ingest.holders[Tier.DEVICE]
        self._promises = Promises()
        self._replicas: dict[int, ReplicaCaches] = {}
        self._used_bits = 0
        self._plans: dict[tuple[int, ...], Plan] = {}

    def add_replica(self, slot: int) -> None:
        """Make room for a replica whose slot is free."""
        assert slot not in self._replicas
        self._replicas[slot] = ReplicaCaches()

    def remove_replica(self, slot: int) -> None:
        """Forget a replica. Cost: about 0.2 us per block that it held."""
        replica = self._replicas[slot]
        for rank in list(replica.by_rank):
            self.remove_rank(slot, rank)
        self._promises.clear(slot)
        self._plans.clear()
        del self._replicas[slot]

    def remove_rank(self, slot: int, rank: int) -> None:
        """Forget one rank's cache, if there is one."""
        replica = self._replicas[slot]
        cache = replica.by_rank.pop(rank, None)
        if cache is not None:
            self._ingest.empty(cache)
            self._used_bits ^= cache.bit
            replica.mask ^= cache.bit
            self._plans.clear()

    def clear(self, slot: int, rank: int) -> None:
        """Forget what one rank holds: its stream was reset."""
        replica = self._replicas[slot]
        cache = replica.by_rank.get(rank)
        if cache is not None:
            replica.num_clears += 1
            self._ingest.empty(cache)

    def apply(self, slot: int, rank: int, batches: Iterable[KvEventBatch]) -> None:
        """Take in what happened in one rank's cache, in order.

        Cost: about 1.5 us per block of 16 tokens in long events, 4 us for an event of one block.
        """
        replica = self._replicas[slot]
        cache = replica.by_rank.get(rank) or self._add_cache(replica, rank)
        block_size = replica.block_size
        for batch in batches:
            self._ingest.apply(replica, cache, batch)
        if replica.block_size != block_size:
            self._plans.clear()

    def expect_block_size(self, slot: int, block_size: int) -> None:
        """Take what the engine says of itself until its events say it."""
        replica = self._replicas[slot]
        if replica.block_size is None:
            replica.block_size = block_size
            self._plans.clear()

    def block_sizes(self) -> frozenset[int]:
        """Return the sizes of block in use: prompts need keys for each."""
        sizes = {replica.block_size for replica in self._replicas.values()}
        return frozenset(size for size in sizes if size is not None)

    def block_size(self, slot: int) -> int | None:
        """Return a replica's tokens per block; None before its first event."""
        return self._replicas[slot].block_size

    def match(self, tokens: TokenPrompt, slots: Sequence[int]) -> list[int]:
        """Return per slot how many leading tokens of the prompt it holds, or has promised.

        The last token is always computed, so a prompt that is held as a whole counts one block
        less.

        Cost: about 5 us, and 1 us for each place along the prompt where its holders change.
        """
        plan = self._plans.get(tuple(slots)) or self._plan(tuple(slots))
        matched = [0] * len(slots)
        for size, mask, positions, is_of_all in plan:
            keys = usable_keys(tokens, size)
            for num_blocks, stopped in self._device.walk(keys, mask):
                if num_blocks:
                    num_tokens = num_blocks * size
                    if stopped == mask and is_of_all:
                        matched = [num_tokens] * len(slots)
                        break
                    # The later a rank stops, the more it holds: the best of a replica is last.
                    while stopped:
                        bit = stopped & -stopped
                        matched[positions[bit]] = num_tokens
                        stopped ^= bit
        if self._promises:
            self._extend(tokens, slots, matched)
        return matched

    def match_tiers(self, tokens: TokenPrompt, slot: int) -> dict[Tier, int]:
        """Return how many leading tokens a replica holds in each tier, each in its fastest one.

        The sum is the longest prefix of which every block is somewhere; promises do not count.
        """
        replica = self._replicas[slot]
        best = dict.fromkeys(Tier, 0)
        if replica.block_size is None:
            return best
        for cache in replica.by_rank.values():
            held = dict.fromkeys(Tier, 0)
            for key in usable_keys(tokens, replica.block_size):
                tier = self._tier(key, cache.bit)
                if tier is None:
                    break
                held[tier] += replica.block_size
            if sum(held.values()) > sum(best.values()):
                best = held
        return best

    def promise(self, slot: int, tokens: TokenPrompt, matched_tokens: int, now: float) -> None:
        """Count what a replica was just sent as held until `withdraw`.

        Args:
            slot: of the replica.
            tokens: the prompt; the same object is given to `withdraw`.
            matched_tokens: what `match` said of it.
            now: monotonic seconds.
        """
        size = self._replicas[slot].block_size
        if size is not None:
            keys = tokens.keys_by_block_size.get(size, [])
            self._promises.add(slot, tokens, keys[matched_tokens // size :], now)

    def withdraw(self, slot: int, tokens: TokenPrompt) -> None:
        """End a promise: the prompt was computed, and events say so, or it never will be."""
        self._promises.withdraw(slot, tokens)

    def statistics(self, slot: int) -> HoldingStatistics:
        """Return figures about one replica."""
        return self._replicas[slot].statistics()

    def check_integrity(self) -> None:
        """Assert that all that is held is held by a cache that there is."""
        caches = [
            cache for replica in self._replicas.values() for cache in replica.by_rank.values()
        ]
        assert sum(cache.bit for cache in caches) == self._used_bits
        for replica in self._replicas.values():
            assert replica.mask == sum(cache.bit for cache in replica.by_rank.values())
        for tier, holders in self._ingest.holders.items():
            shelves = [cache.shelves[tier] for cache in caches if tier in cache.shelves]
            holders.check_integrity(shelves)
        self._promises.check_integrity()

    def _add_cache(self, replica: ReplicaCaches, rank: int) -> RankCache:
        bit = ~self._used_bits & (self._used_bits + 1)  # The lowest that is free.
        self._used_bits |= bit
        replica.mask |= bit
        self._plans.clear()
        cache = replica.by_rank[rank] = RankCache(bit)
        return cache

    def _plan(self, slots: tuple[int, ...]) -> Plan:
        """Sort out which bits to ask for and whose they are; kept until a replica changes."""
        masks: dict[int, int] = {}
        positions: dict[int, dict[int, int]] = {}
        for position, slot in enumerate(slots):
            replica = self._replicas[slot]
            if replica.block_size is not None:
                masks[replica.block_size] = masks.get(replica.block_size, 0) | replica.mask
                of_size = positions.setdefault(replica.block_size, {})
                of_size.update((cache.bit, position) for cache in replica.by_rank.values())
        plan = [
            (size, mask, positions[size], len(set(positions[size].values())) == len(slots))
            for size, mask in masks.items()
        ]
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[slots] = plan
        return plan

    def _extend(self, tokens: TokenPrompt, slots: Sequence[int], matched: list[int]) -> None:
        """Go on through blocks that are promised, and held blocks behind them."""
        for position, slot in enumerate(slots):
            promised = self._promises.of(slot)
            if promised is None:
                continue
            replica = self._replicas[slot]
            size = replica.block_size
            assert size is not None
            keys = usable_keys(tokens, size)
            num_blocks = matched[position] // size
            while num_blocks < len(keys) and (
                keys[num_blocks] in promised or self._device.mask(keys[num_blocks]) & replica.mask
            ):
                num_blocks += 1
            matched[position] = num_blocks * size

    def _tier(self, key: PrefixKey, bit: int) -> Tier | None:
        for tier, holders in self._ingest.holders.items():
            if holders.mask(key) & bit:
                return tier
        return None
