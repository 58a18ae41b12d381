"""Consistent hashing with bounded load over a prompt's leading blocks."""

from collections.abc import Sequence
from math import ceil
from typing import Final

from headstart.routing.config import PrefixHashConfig
from headstart.routing.least_loaded import LeastLoaded
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.ring import HashRing

MAX_RINGS: Final = 32
"""Sets of candidates whose rings are kept; building one takes 0.1 ms for each of its members."""


class PrefixHash:
    """Prompts that begin alike go to one replica, unless it has more than its share.

    The key is the hash of the first 1, 2, 4 … blocks, as many as the prompt has and at most
    `leading_blocks`. A conversation that grows thus changes its key, and possibly its replica, at
    most log2(leading_blocks) times, and not once per turn. A prompt shorter than a block has no
    key: it goes where there is least to do.

    A replica takes a request only while it then has at most `ceil(load_bound × mean × weight)` in
    flight; the next on the ring takes over. The mean is that per unit of weight and counts this
    request. The ring's order is the same for every request with that key, so a hot prefix spreads
    over the same few replicas; and while a replica that has returned has a small weight, most of
    its prefixes stay with those that have them warm, having stood in for it.

    Keeps one ring for each of the last sets of candidates: models have sets of their own, and a
    retry leaves out the replica that failed.

    Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018
    (arXiv:1608.01350).
    """

    __slots__ = ("_candidates", "_config", "_least_loaded", "_max_blocks", "_ring", "_rings")

    def __init__(self, config: PrefixHashConfig) -> None:
        self._config = config
        self._max_blocks = floor_power_of_two(config.leading_blocks)
        self._least_loaded = LeastLoaded()
        self._candidates: tuple[Replica, ...] = ()
        self._ring: HashRing | None = None
        self._rings: dict[tuple[Replica, ...], HashRing] = {}

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "prefix_hash"

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the first replica on the ring that is below its bound.

        Cost: O(candidates + log(candidates)) while the set of candidates stays the same.
        """
        num_blocks = min(len(request.prefix_keys), self._max_blocks)
        if num_blocks == 0:
            replica = self._least_loaded.pick(candidates)
            return Decision(replica, self.name, "short prompt, least loaded")
        key = request.prefix_keys[floor_power_of_two(num_blocks) - 1]
        allowed = self._load_per_weight(candidates)
        is_owner = True
        for index in self._ring_of(candidates).walk(key):
            replica = candidates[index]
            if replica.in_flight < ceil(allowed * replica.weight) and replica.has_room:
                reason = "ring owner" if is_owner else "ring owner over its bound"
                return Decision(replica, self.name, reason)
            is_owner = False
        # Where no replica is full, one is below its bound: the bounds exceed the means.
        return Decision(self._least_loaded.pick(candidates), self.name, "others full, least loaded")

    def _load_per_weight(self, candidates: Sequence[Replica]) -> float:
        total, weight = 1, 0.0
        for replica in candidates:
            total += replica.in_flight
            weight += replica.weight
        return self._config.load_bound * total / weight

    def _ring_of(self, candidates: Sequence[Replica]) -> HashRing:
        # The fleet hands out the same tuple until something changes. Identity is a sound test
        # only for a tuple, and only while it is kept here.
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


def floor_power_of_two(number: int) -> int:
    """Return the largest power of two that is at most `number` (>= 1)."""
    assert number >= 1
    return 1 << (number.bit_length() - 1)
