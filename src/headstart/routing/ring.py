"""A hash ring: who owns a key, and who comes next, the same in every process."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import xxhash

NUM_POINTS: Final = 128
"""Points per member. The largest share of 8 members is then about 1.2 times the mean."""

_MASK: Final = (1 << 64) - 1


class HashRing:
    """Consistent hashing of 128-bit keys over members known by name.

    A member's points depend on its name alone: adding or removing one moves only the keys that it
    gains or owned, and gateways that know the same names agree without talking.

    Args:
        names: members, unique, at least one.

    Source: Karger et al., "Consistent hashing and random trees", STOC 1997.
    """

    __slots__ = ("_num_members", "_owners", "_points")

    def __init__(self, names: Sequence[str]) -> None:
        assert names
        assert len(set(names)) == len(names)
        points = sorted(
            (xxhash.xxh3_64_intdigest(f"{name}\x00{point}".encode()), index)
            for index, name in enumerate(names)
            for point in range(NUM_POINTS)
        )
        self._num_members = len(names)
        self._points = [point for point, _ in points]
        self._owners = [index for _, index in points]

    def walk(self, key: int) -> Iterator[int]:
        """Yield the members' indexes, each once, clockwise from `key`: the owner first.

        Cost: O(log points) for the first.
        """
        owners = self._owners
        num_points = len(owners)
        at = bisect_left(self._points, key & _MASK)
        seen: set[int] = set()
        for step in range(num_points):
            owner = owners[(at + step) % num_points]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == self._num_members:
                    return
