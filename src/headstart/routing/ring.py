"""A hash ring: who owns a key, and who comes next, the same in every process."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import xxhash

from headstart.routing.replica import Replica
from headstart.types import PrefixKey

NUM_POINTS: Final = 128
"""Points per member. The largest share of 8 members is then about 1.2 times the mean."""

MAX_RINGS: Final = 32
"""Sets of candidates whose rings are kept; building one takes 0.1 ms for each of its members."""


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

    def walk(self, key: PrefixKey) -> Iterator[int]:
        """Yield the members' indexes, each once, clockwise from `key`: the owner first.

        Cost: O(log points) for the first.
        """
        owners = self._owners
        num_points = len(owners)
        at = bisect_left(self._points, int.from_bytes(key[:8], "little"))
        seen: set[int] = set()
        for step in range(num_points):
            owner = owners[(at + step) % num_points]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == self._num_members:
                    return


class RingCache:
    """Rings of the last sets of candidates.

    Models have sets of their own, and a retry leaves out the replica that failed; the fleet hands
    out the same tuple until something changes.
    """

    __slots__ = ("_candidates", "_ring", "_rings")

    def __init__(self) -> None:
        self._candidates: tuple[Replica, ...] = ()
        self._ring: HashRing | None = None
        self._rings: dict[tuple[Replica, ...], HashRing] = {}

    def __len__(self) -> int:
        return len(self._rings)

    def ring_of(self, candidates: Sequence[Replica]) -> HashRing:
        """Return the ring of `candidates`; its indexes are theirs.

        Cost: O(1) while they are the same tuple, O(candidates) for a set that is kept.
        """
        # Identity is a sound test only for a tuple, and only while it is kept here.
        if self._ring is not None and candidates is self._candidates:
            return self._ring
        key = tuple(candidates)
        ring = self._rings.get(key)
        if ring is None:
            ring = HashRing([replica.name for replica in candidates])
            if len(self._rings) >= MAX_RINGS:
                del self._rings[next(iter(self._rings))]
            self._rings[key] = ring
        if isinstance(candidates, tuple):
            self._candidates = candidates
            self._ring = ring
        return ring
