"""A conversation stays where it began, by the name that its client gives it."""

from collections.abc import Sequence

import xxhash

from headstart.routing.bounded_ring import BoundedRing
from headstart.routing.config import PrefixHashConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.prefix_hash import PrefixHash
from headstart.routing.replica import Replica
from headstart.types import PrefixKey


class SessionAffinity:
    """Consistent hashing with bounded load over the session's name; without one, over the prompt.

    Clients name sessions in header fields of several names; which ones are read is the wire's
    business.

    Args:
        config: the bound, and the blocks for requests without a session.
    """

    __slots__ = ("_prefix_hash", "_ring")

    def __init__(self, config: PrefixHashConfig) -> None:
        self._ring = BoundedRing(config.load_bound)
        self._prefix_hash = PrefixHash(config)

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "session_affinity"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return False

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the session's replica, or the next on the ring that is below its bound.

        Cost: O(candidates + log(candidates)) while the set of candidates stays the same.
        """
        if not request.session:
            decision = self._prefix_hash.choose(request, candidates)
            return Decision(decision.replica, self.name, f"no session, {decision.reason}")
        data = request.session.encode("utf-8", "surrogatepass")
        replica, reason = self._ring.pick(PrefixKey(xxhash.xxh3_128_digest(data)), candidates)
        return Decision(replica, self.name, f"session, {reason}")
