"""A table that is bounded in bytes and forgets what was used longest ago."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

_Value = TypeVar("_Value")

ENTRY_BYTES: Final = 250
"""What an entry takes besides its value: a 16-byte key, its objects, its place in the table."""


class TableStatistics(msgspec.Struct, frozen=True):
    """What a table holds and did.

    Attributes:
        num_entries: of it.
        num_bytes: about what they take.
        num_hits: look-ups that found something.
        num_misses: look-ups that did not.
        num_evicted: entries that were forgotten for want of room.
    """

    num_entries: int
    num_bytes: int
    num_hits: int
    num_misses: int
    num_evicted: int


class LruTable(Generic[_Value]):
    """Values by digest. Not thread-safe.

    Args:
        max_bytes: the least recently used entries go when there are more.
    """

    __slots__ = ("_entries", "_hits", "_max_bytes", "_misses", "_num_bytes", "_num_evicted")

    def __init__(self, max_bytes: int) -> None:
        self._entries: OrderedDict[bytes, tuple[_Value, int]] = OrderedDict()
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._hits = self._misses = self._num_evicted = 0

    def get(self, key: bytes) -> _Value | None:
        """Return the value and count it as used."""
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
            return None
        self._hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def leading(self, keys: Sequence[bytes]) -> list[_Value]:
        """Return the values of the first keys, up to one that has none; `use` counts the use."""
        entries = self._entries
        values: list[_Value] = []
        for key in keys:
            entry = entries.get(key)
            if entry is None:
                self._misses += 1
                break
            values.append(entry[0])
        self._hits += len(values)
        return values

    def use(self, keys: Sequence[bytes]) -> None:
        """Count those of the keys that are there as used, the last first.

        So what others stand on is forgotten after them.
        """
        entries = self._entries
        move_to_end = entries.move_to_end
        for key in keys[::-1]:
            if key in entries:
                move_to_end(key)

    def put(self, key: bytes, value: _Value, value_bytes: int) -> None:
        """Set a value; others may be forgotten for it, and it itself if it is too large.

        Args:
            key: a digest.
            value: anything.
            value_bytes: what it takes.
        """
        old = self._entries.pop(key, None)
        if old is not None:
            self._num_bytes -= old[1]
        size = ENTRY_BYTES + value_bytes
        self._entries[key] = value, size
        self._num_bytes += size
        while self._num_bytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self._num_bytes -= freed
            self._num_evicted += 1

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._num_bytes = 0

    def statistics(self) -> TableStatistics:
        """Return what it holds and did."""
        return TableStatistics(
            len(self._entries), self._num_bytes, self._hits, self._misses, self._num_evicted
        )

    def check_integrity(self) -> None:
        """Check that the bytes are those of the entries, and within the bound."""
        assert self._num_bytes == sum(size for _, size in self._entries.values())
        assert self._num_bytes <= self._max_bytes
