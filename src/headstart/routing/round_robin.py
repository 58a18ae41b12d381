"""Each replica in turn."""

from collections.abc import Sequence

from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class RoundRobin:
    """The baseline: blind to load and to prefixes.

    A replica with a weight below 1 lets turns pass: it collects its weight at each of them and
    takes one when that has come to 1. It takes the first at once.
    """

    __slots__ = ("_credit", "_turn")

    def __init__(self) -> None:
        self._turn = -1
        self._credit: dict[str, float] = {}  # of replicas with a weight below 1 only

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "round_robin"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return False

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002  blind by definition
        candidates: Sequence[Replica],
    ) -> Decision:
        """Choose the next of `candidates`.

        Cost: O(1) while all weights are 1.
        """
        while True:
            self._turn += 1
            replica = candidates[self._turn % len(candidates)]
            if replica.has_room and self._takes(replica):
                return Decision(replica, self.name, "next in turn")

    def _takes(self, replica: Replica) -> bool:
        if replica.weight >= 1.0:
            self._credit.pop(replica.name, None)
            return True
        credit = self._credit.get(replica.name, 1.0) + replica.weight
        is_due = credit >= 1.0
        self._credit[replica.name] = credit - 1.0 if is_due else credit
        return is_due
