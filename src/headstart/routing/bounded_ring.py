"""The first replica on the ring that has not more than its share."""

from collections.abc import Sequence
from math import ceil

from headstart.routing.least_loaded import LeastLoaded
from headstart.routing.replica import Replica
from headstart.routing.ring import RingCache
from headstart.types import PrefixKey


class BoundedRing:
    """Consistent hashing with bounded load.

    A replica takes a request only while it then has at most `ceil(load_bound × mean × weight)` in
    flight; the next on the ring takes over. The mean is that per unit of weight and counts this
    request. The ring's order is the same for every request with that key, so what is hot spreads
    over the same few replicas; and while a replica that has returned has a small weight, most of
    its keys stay with those that have them warm, having stood in for it.

    Args:
        load_bound: a replica takes at most this multiple of the mean load, > 1.

    Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018
    (arXiv:1608.01350).
    """

    __slots__ = ("_least_loaded", "_load_bound", "_rings")

    def __init__(self, load_bound: float) -> None:
        self._load_bound = load_bound
        self._least_loaded = LeastLoaded()
        self._rings = RingCache()

    def pick(self, key: PrefixKey, candidates: Sequence[Replica]) -> tuple[Replica, str]:
        """Return the replica for `key`, and why.

        Cost: O(candidates + log(candidates)) while the set of candidates stays the same.
        """
        allowed = self._load_per_weight(candidates)
        is_owner = True
        for index in self._rings.ring_of(candidates).walk(key):
            replica = candidates[index]
            if replica.in_flight < ceil(allowed * replica.weight) and replica.has_room:
                return replica, "ring owner" if is_owner else "ring owner over its bound"
            is_owner = False
        # Where no replica is full, one is below its bound: the bounds exceed the means.
        return self._least_loaded.pick(candidates), "others full, least loaded"

    def pick_least_loaded(self, candidates: Sequence[Replica]) -> Replica:
        """Return the replica for a request that has no key."""
        return self._least_loaded.pick(candidates)

    def _load_per_weight(self, candidates: Sequence[Replica]) -> float:
        total, weight = 1, 0.0
        for replica in candidates:
            total += replica.in_flight
            weight += replica.weight
        return self._load_bound * total / weight
