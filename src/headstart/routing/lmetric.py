"""LMetric: uncached tokens times requests."""

from collections.abc import Sequence
from math import inf

from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class LMetric:
    """Chooses the least `uncached_tokens × (in_flight + 1)`, equals in turn.

    A baseline: nothing may lose to these two lines without saying so.

    Source: https://arxiv.org/abs/2603.15202
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = 0

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "lmetric"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the least product of `candidates`; prices are in tokens.

        Cost: O(candidates).
        """
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        prices = [
            max(request.input_tokens - matched, 1) * (replica.load.in_flight + 1.0)
            if replica.has_room
            else inf
            for replica, matched in zip(candidates, matched_tokens, strict=True)
        ]
        self._turn += 1
        num = len(candidates)
        turns = [(self._turn + step) % num for step in range(num)]
        index = min(turns, key=prices.__getitem__)
        return Decision(candidates[index], self.name, "least uncached times load", prices)
