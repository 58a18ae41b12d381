"""The replica with the least to do."""

from collections.abc import Sequence

from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class LeastLoaded:
    """Fewest requests in flight; then fewest prompt bytes in flight; then in turn.

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
        """Return the least loaded of `candidates`, for policies that fall back on load."""
        self._turn += 1
        num = len(candidates)
        best = candidates[self._turn % num]
        for step in range(1, num):
            other = candidates[(self._turn + step) % num]
            if other.in_flight > best.in_flight:
                continue
            if other.in_flight < best.in_flight or other.in_flight_bytes < best.in_flight_bytes:
                best = other
        return best
