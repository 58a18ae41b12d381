"""How a simulated gateway sees into replicas' caches: as they are, or by their events, late.

The structures of the latter are the gateway's own (`prefix.holders`); what is left out is the wire:
blocks come with their keys instead of their tokens, and no event is lost.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from headstart.prefix.holders import Holders, Shelf
from headstart.types import PrefixKey


class Sight(Protocol):
    """What can be seen of all replicas' caches."""

    def num_blocks(self, keys: Sequence[PrefixKey], slots: Sequence[int], now: float) -> list[int]:
        """Return how many leading blocks each of `slots` holds."""
        ...

    def has(self, slot: int, key: PrefixKey) -> bool:
        """Return whether a replica holds a block, whatever lies before it."""
        ...

    def publish(self, slot: int, events: Sequence[KvEvent], now: float) -> None:
        """Hear of what happened in a cache."""
        ...


class Cache(Protocol):
    """A replica's cache (`engine.SimulatedEngine`)."""

    def num_cached(self, keys: Sequence[PrefixKey]) -> int:
        """Return how many leading blocks it holds."""
        ...

    def has(self, key: PrefixKey) -> bool:
        """Return whether it holds a block, whatever lies before it."""
        ...


class DirectSight:
    """Sees the caches themselves.

    Args:
        caches: of each slot.
    """

    __slots__ = ("_caches",)

    def __init__(self, caches: Sequence[Cache]) -> None:
        self._caches = caches

    def num_blocks(
        self,
        keys: Sequence[PrefixKey],
        slots: Sequence[int],
        now: float,  # noqa: ARG002
    ) -> list[int]:
        """Return how many leading blocks each of `slots` holds."""
        caches = self._caches
        return [caches[slot].num_cached(keys) for slot in slots]

    def has(self, slot: int, key: PrefixKey) -> bool:
        """Return whether a replica holds a block."""
        return self._caches[slot].has(key)

    def publish(self, slot: int, events: Sequence[KvEvent], now: float) -> None:
        """Hear of what happened in a cache, which can be seen anyway."""


class EventSight:
    """Sees what events say, `delay_s` after they happened.

    Args:
        num_replicas: slots are 0..num_replicas - 1.
        delay_s: >= 0.
    """

    def __init__(self, num_replicas: int, delay_s: float) -> None:
        self._delay_s = delay_s
        self._holders = Holders()
        self._shelves = [Shelf(1 << slot) for slot in range(num_replicas)]
        self._all = (1 << num_replicas) - 1
        self._late: deque[tuple[float, int, Sequence[KvEvent]]] = deque()

    def num_blocks(self, keys: Sequence[PrefixKey], slots: Sequence[int], now: float) -> list[int]:
        """Return how many leading blocks each of `slots` holds."""
        self._catch_up(now)
        held = [0] * len(self._shelves)
        for num_blocks, mask in self._holders.walk(keys, self._all):
            while mask:
                bit = mask & -mask
                held[bit.bit_length() - 1] = num_blocks
                mask ^= bit
        return [held[slot] for slot in slots]

    def has(self, slot: int, key: PrefixKey) -> bool:
        """Return whether a replica holds a block."""
        return bool(self._holders.mask(key) >> slot & 1)

    def publish(self, slot: int, events: Sequence[KvEvent], now: float) -> None:
        """Hear of what happened in a cache."""
        self._late.append((now + self._delay_s, slot, events))

    def _catch_up(self, now: float) -> None:
        late = self._late
        while late and late[0][0] <= now:
            _, slot, events = late.popleft()
            self._apply(slot, events)

    def _apply(self, slot: int, events: Sequence[KvEvent]) -> None:
        shelf, holders = self._shelves[slot], self._holders
        for event in events:
            if isinstance(event, BlockStored):
                keys = cast("Sequence[PrefixKey]", event.block_hashes)
                parent = cast("PrefixKey | None", event.parent_block_hash)
                holders.store(shelf, parent, event.token_ids, keys)
            elif isinstance(event, BlockRemoved):
                holders.remove(shelf, [block_number(key) for key in event.block_hashes])
            elif isinstance(event, AllBlocksCleared):
                holders.clear(shelf)


def block_key(number: int) -> PrefixKey:
    """Return the key of a node of a trace's prefix tree."""
    return PrefixKey(number.to_bytes(16, "big"))


def block_number(key: bytes) -> int:
    """Return the node of a key."""
    return int.from_bytes(key, "big")
