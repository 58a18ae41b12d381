"""One replica's part of the approximate index: its chains of blocks, in order of last use."""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf

from headstart.prefix.entries import SIZE_UNIT_BYTES, End, Entry, LastUse
from headstart.prompt.fingerprint import PromptKeys
from headstart.types import PrefixKey


class Holdings:
    """Which blocks a replica holds, and which it loses next; see `prefix.approximate`.

    Args:
        entries: all replicas' blocks, shared by their holdings.
        slot: the number of its bit.
        capacity: bound on `size`.
        max_entries: bound on `num_entries`.
        ttl_s: see below.

    Attributes:
        bit: its bit in masks.
        ends: least recently touched first. Every block without a successor is one of them; others
            are ends of prompts that others continue.
        branches: how many successors a block has, where more than one.
        roots: the first blocks.
        size: of all blocks, in `SIZE_UNIT_BYTES`.
        num_entries: blocks.
        ttl_s: what is untouched for longer is to be dropped; None: nothing.
        clock: tokens that its engine is known to have computed; the age of what was not used for a
            while is told in them, since only they push anything out.
        num_evicted: blocks dropped for room, ever.
    """

    __slots__ = (
        "_dropped",
        "_entries",
        "bit",
        "branches",
        "capacity",
        "clock",
        "ends",
        "max_entries",
        "num_entries",
        "num_evicted",
        "roots",
        "size",
        "ttl_s",
    )

    def __init__(
        self,
        entries: dict[PrefixKey, Entry],
        slot: int,
        capacity: int,
        max_entries: int,
        ttl_s: float | None,
    ) -> None:
        self._entries = entries
        self.bit = 1 << slot
        self.ends: OrderedDict[PrefixKey, End] = OrderedDict()
        self.branches: dict[PrefixKey, int] = {}
        self.roots: dict[PrefixKey, LastUse] = {}
        self.size = 0
        self.num_entries = 0
        self.capacity = capacity
        self.max_entries = max_entries
        self.ttl_s = ttl_s
        self.clock = 0
        self.num_evicted = 0
        self._dropped: list[PrefixKey] | None = None  # written down, where it is

    def depth(self, keys: Sequence[PrefixKey], guess: int = 0) -> int:
        """Return how many leading blocks are held; `guess` is looked at first, and may be wrong."""
        get, bit = self._entries.get, self.bit
        low, high = 0, len(keys)
        if guess:
            entry = get(keys[guess - 1])
            if entry is not None and entry.held & bit:
                low = guess
        if low < high:
            entry = get(keys[low])
            if entry is None or not entry.held & bit:
                return low
            low += 1
        while low < high:
            middle = (low + high) >> 1
            entry = get(keys[middle])
            if entry is not None and entry.held & bit:
                low = middle + 1
            else:
                high = middle
        return low

    def warm_depth(self, keys: Sequence[PrefixKey], depth: int) -> int:
        """Return how many of the `depth` leading blocks, all held, are warm."""
        entries, bit = self._entries, self.bit
        low, high = 0, depth
        while low < high:
            middle = (low + high) >> 1
            if entries[keys[middle]].warm & bit:
                low = middle + 1
            else:
                high = middle
        return low

    def oldest(self) -> float | None:
        """Return when the end that was not used for longest was used; None without ends."""
        for end in self.ends.values():
            return end.touched
        return None

    def add(self, prompt: PromptKeys, depth: int, warm: int, tokens_per_byte: float) -> None:
        """Hold the blocks from `depth` on, of which there is at least one; `touch` has to follow.

        Args:
            prompt: its keys before `depth` are held, that at `depth` is not.
            depth: blocks.
            warm: the own bit, or 0.
            tokens_per_byte: to guess tokens of new blocks by.
        """
        entries, keys, ends, bit = self._entries, prompt.keys, prompt.ends, self.bit
        parent: PrefixKey | None = None
        start = tokens = size = 0
        if depth:
            parent, start = keys[depth - 1], ends[depth - 1]
            before = entries[parent]
            tokens = before.tokens >> 2
            if before.inner & bit:
                self.branches[parent] = self.branches.get(parent, 1) + 1
            before.inner |= bit
        at, last = depth, len(keys) - 1
        while at <= last and (entry := entries.get(keys[at])) is not None:  # others hold it
            entry.held |= bit
            entry.warm |= warm
            if at < last:
                entry.inner |= bit
            parent, start, tokens = keys[at], ends[at], entry.tokens >> 2
            size += entry.size
            at += 1
        known = start
        while at <= last:  # nobody holds it, nor what follows
            key, end = keys[at], ends[at]
            units = (end - start + SIZE_UNIT_BYTES - 1) // SIZE_UNIT_BYTES
            guess = tokens + int((end - known) * tokens_per_byte)
            entries[key] = Entry(bit, warm, bit if at < last else 0, parent, units, guess << 2)
            parent, start = key, end
            size += units
            at += 1
        self.size += size
        self.num_entries += len(keys) - depth

    def warm(self, keys: Sequence[PrefixKey], depth: int) -> None:
        """Mark the `depth` leading blocks, all held, as answered for; `touch` has to follow."""
        entries, bit = self._entries, self.bit
        for key in reversed(keys[:depth]):
            entry = entries[key]
            if entry.warm & bit:
                # What ended here goes on: the new end stands for it.
                self.ends.pop(key, None)
                return
            entry.warm |= bit

    def touch(self, root: PrefixKey, last: PrefixKey, now: float) -> None:
        """Note the use of a prompt that is held to its last block; mind the number of blocks."""
        end = self.ends.get(last)
        if end is None:
            self.ends[last] = End(now)
        else:
            end.touched = now
            self.ends.move_to_end(last)
        self.roots[root] = LastUse(now, self.clock)
        if self.num_entries > self.max_entries:
            self._drop_until(inf)

    def make_room(self) -> list[PrefixKey]:
        """Drop what there is no room for, and return it. Cost: O(what is dropped)."""
        dropped: list[PrefixKey] = []
        self._dropped = dropped
        if self.size > self.capacity:
            self._drop_until(self.capacity)
        self._dropped = None
        return dropped

    def resize(self, entry: Entry, size: int) -> None:
        """Take over that a block which is held has another size than it says."""
        self.size += size - entry.size

    def forget_until(self, moment: float) -> None:
        """Drop what was not used since `moment`, itself included. Cost: O(what is dropped)."""
        while (oldest := self.oldest()) is not None and oldest <= moment:
            self._drop_oldest(-1)

    def drop_promise(self, last: PrefixKey, sent_at: float, now: float) -> None:
        """Drop promised blocks up to one that is warm, goes on, or was used after `sent_at`."""
        bit = self.bit
        key: PrefixKey | None = last
        while key is not None:
            entry = self._entries.get(key)
            if entry is None or not entry.held & bit or entry.inner & bit:
                return
            end = self.ends.get(key)
            if entry.warm & bit or (end is not None and end.touched > sent_at):
                if end is None:
                    self.ends[key] = End(now)
                return
            if end is not None:
                del self.ends[key]
            self._remove(key, entry)
            key = entry.parent

    def clear(self) -> None:
        """Drop everything. Cost: O(blocks)."""
        for end in self.ends:
            key: PrefixKey | None = end
            while key is not None:
                entry = self._entries.get(key)
                if entry is None or not entry.held & self.bit:
                    break
                self._unmark(key, entry)
                key = entry.parent
        self.ends.clear()
        self.branches.clear()
        self.roots.clear()
        self.size = self.num_entries = 0

    def check_integrity(self) -> None:
        """Assert every invariant. Cost: O(all blocks); for tests."""
        bit = self.bit
        mine = {key: entry for key, entry in self._entries.items() if entry.held & bit}
        assert self.num_entries == len(mine)
        assert self.size == sum(entry.size for entry in mine.values())
        assert self.roots.keys() == {key for key, entry in mine.items() if entry.parent is None}
        successors = dict.fromkeys(mine, 0)
        for entry in mine.values():
            if entry.parent is not None:
                successors[entry.parent] += 1
        for key, count in successors.items():
            assert bool(mine[key].inner & bit) == (count > 0)
            assert self.branches.get(key, 1) == max(count, 1)
            assert count or key in self.ends, "it could never be dropped"
        assert self.ends.keys() <= mine.keys()
        assert self.branches.keys() <= mine.keys()

    def _drop_until(self, capacity: float) -> None:
        before = self.num_entries
        while self.size > capacity or self.num_entries > self.max_entries:
            self._drop_oldest(capacity)
        self.num_evicted += before - self.num_entries

    def _drop_oldest(self, capacity: float) -> None:
        """Drop the oldest end and what only it stood on, as long as there is too much."""
        key, end = self.ends.popitem(last=False)
        entry = self._entries[key]
        while not entry.inner & self.bit:
            self._remove(key, entry)
            if entry.parent is None or entry.parent in self.ends:
                return
            key = entry.parent
            entry = self._entries[key]
            if self.size <= capacity and self.num_entries <= self.max_entries:
                if not entry.inner & self.bit:
                    self.ends[key] = End(end.touched)
                    self.ends.move_to_end(key, last=False)
                return

    def _remove(self, key: PrefixKey, entry: Entry) -> None:
        """Drop a block without successors; whether its parent is an end now is the caller's."""
        self._unmark(key, entry)
        if self._dropped is not None:
            self._dropped.append(key)
        self.size -= entry.size
        self.num_entries -= 1
        if entry.parent is None:
            del self.roots[key]
            return
        count = self.branches.get(entry.parent)
        if count is None:
            self._entries[entry.parent].inner &= ~self.bit
        elif count == 2:
            del self.branches[entry.parent]
        else:
            self.branches[entry.parent] = count - 1

    def _unmark(self, key: PrefixKey, entry: Entry) -> None:
        others = ~self.bit
        entry.held &= others
        entry.warm &= others
        entry.inner &= others
        if not entry.held:
            del self._entries[key]
