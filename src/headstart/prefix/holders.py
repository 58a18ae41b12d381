"""Which caches hold which blocks, in runs, and a walk along a chain of keys.

    Shelf    what one cache holds in one tier, under its engine's own names
    Run      blocks of one chain that follow each other and are held by the same caches
    Holders  for every key, the run that it is in

A key stands for everything before it, so two chains that agree in one key agree in all before. A
walk therefore compares the last key of a run, or searches for the point where the chains part, and
takes a step per run instead of one per block. A cache holds a prefix if it holds every block of it:
the walk keeps the caches that had all runs so far and notes where each drops out. A block that
outlives its parent (engines may tell of removals in any order) starts a run that no walk reaches.

The usual changes only move the end of a run: decoding adds a block, eviction takes the last one.
Shelves exist because a removal names nothing but the engine's hash.

Cost: about 220 bytes per block that a single cache holds. Nothing here is tracked by the garbage
collector, whose pauses would grow with the index.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

import msgspec

from headstart.types import PrefixKey

_WIDTH: Final = 16
"""Bytes of a key."""


class Run(msgspec.Struct, gc=False):
    """Blocks that follow each other, all held by the same caches.

    Attributes:
        keys: theirs, one behind the other.
        mask: the caches.
        parent: key of the block before the first; None if it is not known.
        rest: the run into which blocks went that were cut off the end of this one.
    """

    keys: bytearray
    mask: int
    parent: PrefixKey | None
    rest: "Run | None" = None

    def ends_with(self, key: PrefixKey) -> bool:
        """Whether its last block has this key."""
        return self.keys.endswith(key)

    def length_in(self, keys: Sequence[bytes], at: int) -> int:
        """Return with how many of its blocks the chain goes on at `at`; the first is known to."""
        low, high = 1, min(len(self.keys) // _WIDTH, len(keys) - at)
        while low < high:
            middle = (low + high + 1) >> 1
            end = middle * _WIDTH
            if self.keys[end - _WIDTH : end] == keys[at + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    def position(self, key: PrefixKey) -> int:
        """Return where a key of it starts, in bytes."""
        at = self.keys.index(key)
        while at % _WIDTH:
            at = self.keys.index(key, at + 1)
        return at

    def split(self, at: int) -> list[PrefixKey]:
        """Return the keys from byte `at` on."""
        return [
            PrefixKey(bytes(self.keys[i : i + _WIDTH])) for i in range(at, len(self.keys), _WIDTH)
        ]


class Shelf:
    """What one cache holds in one tier.

    Attributes:
        bit: the cache's, a power of two.
        blocks: engine's hash → key.
        copies: engine's hash → how often it is there beyond once.
        twins: key → how many other engine hashes stand for it too.
    """

    __slots__ = ("bit", "blocks", "copies", "twins")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks: dict[int, PrefixKey] = {}
        self.copies: dict[int, int] = {}
        self.twins: dict[PrefixKey, int] = {}


class Holders:
    """Who holds which block in one tier."""

    def __init__(self) -> None:
        self._runs: dict[PrefixKey, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def store(
        self,
        shelf: Shelf,
        parent: PrefixKey | None,
        hashes: Sequence[int],
        keys: Sequence[PrefixKey],
    ) -> None:
        """Note that the shelf holds these blocks now, or one copy more of them.

        Args:
            shelf: of the cache.
            parent: key of the block before the first; None if it is not known.
            hashes: the engine's.
            keys: one for each hash, each the child of the one before.

        Cost: about 0.2 us a block that nobody else holds, else 2 us.
        """
        assert len(hashes) == len(keys)
        if len(keys) == 1:
            self._store_one(shelf, parent, hashes[0], keys[0])
            return
        blocks, runs = shelf.blocks, self._runs
        if (
            blocks.keys().isdisjoint(hashes)
            and runs.keys().isdisjoint(keys)
            and len(set(hashes)) == len(hashes)
        ):
            blocks.update(zip(hashes, keys))  # noqa: B905  # Checked above.
            self._append(parent, keys, shelf.bit)
            return
        for block_hash, key in zip(hashes, keys):  # noqa: B905
            self._store_one(shelf, parent, block_hash, key)
            parent = key

    def remove(
        self, shelf: Shelf, hashes: Sequence[int], copies_left: Sequence[int] | None = None
    ) -> int:
        """Note that the shelf lost one copy of each; return how many it did not hold.

        Args:
            shelf: of the cache.
            hashes: the engine's.
            copies_left: how many copies of each the engine still has, if it says so.
        """
        if copies_left is not None and len(copies_left) == len(hashes):
            for block_hash, left in zip(hashes, copies_left, strict=True):
                if block_hash in shelf.blocks:
                    shelf.copies.pop(block_hash, None)
                    if left > 0:
                        shelf.copies[block_hash] = left
        num_unknown = 0
        for block_hash in hashes:
            if shelf.copies and self._remove_copy(shelf, block_hash):
                continue
            key = shelf.blocks.pop(block_hash, None)
            if key is None:
                num_unknown += 1
            elif not (shelf.twins and self._remove_twin(shelf, key)):
                self._release(key, shelf.bit)
        return num_unknown

    def clear(self, shelf: Shelf) -> None:
        """Note that the shelf holds nothing. Cost: about 0.1 us a block."""
        runs, bit = self._runs, shelf.bit
        shelf.copies.clear()
        shelf.twins.clear()
        blocks, shelf.blocks = shelf.blocks, {}
        for key in blocks.values():
            run = runs.get(key)
            if run is None or not run.mask & bit:
                continue  # It went with another block of its run.
            if run.mask != bit:
                run.mask ^= bit
                continue
            for gone in run.split(0):
                del runs[gone]
            run.keys.clear()

    def walk(self, keys: Sequence[PrefixKey], wanted: int) -> list[tuple[int, int]]:
        """Follow a chain of keys; return where caches drop out, as (number of blocks held, mask).

        Args:
            keys: of a prompt's blocks, first block first.
            wanted: mask of the caches that are asked about; each is in one of the results, which
                come in ascending order.

        Cost: about 1 us a run, of which a conversation has one for each set of holders.
        """
        get = self._runs.get
        stops: list[tuple[int, int]] = []
        alive, at, end = wanted, 0, len(keys)
        while at < end and alive:
            run = get(keys[at])
            if run is None:
                break
            still = run.mask & alive
            if still != alive:
                stops.append((at, alive ^ still))
                alive = still
            after = at + len(run.keys) // _WIDTH
            if after <= end and run.keys.endswith(keys[after - 1]):
                at = after
            else:
                at += run.length_in(keys, at)
        if alive:
            stops.append((at, alive))
        return stops

    def mask(self, key: PrefixKey) -> int:
        """Return the caches that hold this block, whatever lies before it."""
        run = self._runs.get(key)
        return 0 if run is None else run.mask

    def check_integrity(self, shelves: Iterable[Shelf]) -> None:
        """Assert that masks and shelves say the same; `shelves` are all that there are."""
        expected: dict[PrefixKey, int] = {}
        for shelf in shelves:
            counts: dict[PrefixKey, int] = {}
            for key in shelf.blocks.values():
                counts[key] = counts.get(key, 0) + 1
                expected[key] = expected.get(key, 0) | shelf.bit
            twins = {key: count - 1 for key, count in counts.items() if count > 1}
            assert shelf.twins == twins
            assert shelf.copies.keys() <= shelf.blocks.keys()
            assert all(count > 0 for count in shelf.copies.values())
        assert {key: run.mask for key, run in self._runs.items()} == expected
        num_keys = 0
        for run in {id(run): run for run in self._runs.values()}.values():
            keys = run.split(0)
            assert all(self._runs[key] is run for key in keys)
            num_keys += len(keys)
        assert num_keys == len(self._runs)

    def _store_one(
        self, shelf: Shelf, parent: PrefixKey | None, block_hash: int, key: PrefixKey
    ) -> None:
        known = shelf.blocks.get(block_hash)
        if known == key:
            shelf.copies[block_hash] = shelf.copies.get(block_hash, 0) + 1
            return
        if known is not None:
            # The name stands for other tokens now; what it stood for before is gone.
            shelf.copies.pop(block_hash, None)
            self.remove(shelf, (block_hash,))
        shelf.blocks[block_hash] = key
        run = self._runs.get(key)
        if run is None:
            self._append_one(parent, key, shelf.bit)
        elif run.mask & shelf.bit:
            shelf.twins[key] = shelf.twins.get(key, 0) + 1
        else:
            self._move(run, key, run.mask | shelf.bit)

    def _append(self, parent: PrefixKey | None, keys: Sequence[PrefixKey], mask: int) -> None:
        """Add blocks that nobody holds, to the run of their parent if it has the same caches."""
        run = None if parent is None else self._runs.get(parent)
        if run is None or parent is None or run.mask != mask or not run.ends_with(parent):
            run = Run(bytearray(), mask, parent)
        run.keys += b"".join(keys)
        self._runs.update(zip(keys, repeat(run)))

    def _append_one(self, parent: PrefixKey | None, key: PrefixKey, mask: int) -> None:
        """Do the same for one block."""
        run = None if parent is None else self._runs.get(parent)
        if run is not None and run.mask == mask and parent and run.ends_with(parent):
            run.keys += key
            self._runs[key] = run
        else:
            self._runs[key] = Run(bytearray(key), mask, parent)

    def _release(self, key: PrefixKey, bit: int) -> None:
        """Take one cache away from a block."""
        run = self._runs[key]
        if run.mask != bit:
            self._move(run, key, run.mask ^ bit)
            return
        if run.keys.endswith(key):
            del run.keys[-_WIDTH:]  # The usual case: an engine evicts the end of a prefix first.
        else:
            self._cut(run, key)
        del self._runs[key]

    def _move(self, run: Run, key: PrefixKey, mask: int) -> None:
        """Take a block out of its run, into one with the caches `mask`."""
        parent = self._cut(run, key)
        before = None if parent is None else self._runs.get(parent)
        if before is not None and before.mask == mask and parent and before.ends_with(parent):
            before.keys += key
            self._runs[key] = before
            return
        rest = run.rest
        if rest is not None and rest.keys and rest.mask == mask and rest.parent == key:
            rest.keys[:0] = key
            rest.parent = parent
        else:
            rest = run.rest = Run(bytearray(key), mask, parent)
        self._runs[key] = rest

    def _cut(self, run: Run, key: PrefixKey) -> PrefixKey | None:
        """Take a block out of its run's keys; return its parent."""
        keys = run.keys
        if keys.endswith(key):
            del keys[-_WIDTH:]
            return PrefixKey(bytes(keys[-_WIDTH:])) if keys else run.parent
        if keys.startswith(key):
            del keys[:_WIDTH]
            parent, run.parent = run.parent, key
            return parent
        at = run.position(key)
        after = run.split(at + _WIDTH)
        parent = PrefixKey(bytes(keys[at - _WIDTH : at]))
        del keys[at:]
        behind = Run(bytearray().join(after), run.mask, key)
        self._runs.update(zip(after, repeat(behind)))
        return parent

    def _remove_copy(self, shelf: Shelf, block_hash: int) -> bool:
        left = shelf.copies.pop(block_hash, 0)
        if left > 1:
            shelf.copies[block_hash] = left - 1
        return left > 0

    def _remove_twin(self, shelf: Shelf, key: PrefixKey) -> bool:
        left = shelf.twins.pop(key, 0)
        if left > 1:
            shelf.twins[key] = left - 1
        return left > 0
