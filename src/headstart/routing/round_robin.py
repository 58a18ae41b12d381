"""Each replica in turn."""

from collections.abc import Sequence

from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class RoundRobin:
    """The baseline: blind to load and to prefixes."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = -1

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "round_robin"

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002  blind by definition
        candidates: Sequence[Replica],
    ) -> Decision:
        """Choose the next of `candidates`."""
        self._turn += 1
        return Decision(candidates[self._turn % len(candidates)], self.name, "next in turn")
