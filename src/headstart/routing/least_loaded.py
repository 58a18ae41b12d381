"""The replica with the least to do."""

from collections.abc import Sequence
from math import inf

from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class LeastLoaded:
    """Fewest requests in flight by weight; then fewest prompt bytes in flight; then in turn.

    A replica with nothing in flight is the least loaded whatever its weight: one that has just
    returned gets its first request at once, and further ones as its share grows.

    Equals are taken in turn and never in list order, which would send every lone request to the
    first replica.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = 0

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "least_loaded"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return False

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002  the load alone decides
        candidates: Sequence[Replica],
    ) -> Decision:
        """Choose the least loaded of `candidates`.

        Cost: O(candidates).
        """
        return Decision(self.pick(candidates), self.name, "least loaded")

    def pick(self, candidates: Sequence[Replica]) -> Replica:
        """Return the least loaded that has room, for policies that fall back on load."""
        self._turn += 1
        num = len(candidates)
        best, least = candidates[0], inf
        for step in range(num):
            other = candidates[(self._turn + step) % num]
            load = other.in_flight / other.weight
            if load > least or other.in_flight >= other.max_in_flight:
                continue
            if load < least or other.in_flight_bytes < best.in_flight_bytes:
                best, least = other, load
        assert least < inf, "some replica has room"
        return best
