"""The less loaded of two that are drawn."""

from collections.abc import Sequence
from random import Random

from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class PowerOfTwo:
    """Draws two replicas and takes the one with fewer requests in flight, by weight.

    Of equals it takes the one that was drawn first, which is chance as well.

    Args:
        rng: where chance comes from.

    Source: M. Mitzenmacher, "The power of two choices in randomized load balancing", IEEE
    Transactions on Parallel and Distributed Systems 12 (10), 2001.
    """

    __slots__ = ("_rng",)

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "power_of_two"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return False

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002  the load alone decides
        candidates: Sequence[Replica],
    ) -> Decision:
        """Choose between two of `candidates`.

        Cost: O(candidates).
        """
        open_ones = [replica for replica in candidates if replica.has_room]
        if len(open_ones) == 1:
            return Decision(open_ones[0], "power_of_two", "the only one with room")
        first, second = self._rng.sample(open_ones, 2)
        is_less = second.load.in_flight / second.weight < first.load.in_flight / first.weight
        replica = second if is_less else first
        return Decision(replica, "power_of_two", "less loaded of two")
