"""LMetric: tokens times requests."""

from collections.abc import Sequence
from math import inf
from typing import Final

from headstart.routing.config import LMetricConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica

_DEFAULT: Final = LMetricConfig()


class LMetric:
    """Chooses the least `uncached_tokens × (in_flight + 1)`, equals in turn.

    Its second form counts the uncached tokens that wait there, too:
    `(pending_tokens + uncached_tokens) × (in_flight + 1)`.

    A baseline: nothing may lose to these two lines without saying so.

    Args:
        config: which form.

    Source: https://arxiv.org/abs/2603.15202
    """

    __slots__ = ("_counts_pending", "_turn")

    def __init__(self, config: LMetricConfig = _DEFAULT) -> None:
        self._counts_pending = config.tokens == "pending_and_uncached"
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
        num_tokens, counts_pending = request.input_tokens, self._counts_pending
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        prices = []
        for replica, matched in zip(candidates, matched_tokens, strict=True):
            if not replica.has_room:
                prices.append(inf)
                continue
            load, tokens = replica.load, num_tokens - matched
            if tokens < 1:
                tokens = 1
            if counts_pending:
                tokens += load.pending_tokens
            prices.append(tokens * (load.in_flight + 1.0))
        self._turn += 1
        index = _next_least(prices, self._turn % len(prices))
        return Decision(candidates[index], "lmetric", "least tokens times load", prices)


def _next_least(prices: list[float], first: int) -> int:
    """Return the index of the least price, of equals the next from `first` on."""
    least = min(prices)
    if prices.count(least) == 1:
        return prices.index(least)
    while prices[first] != least:
        first = (first + 1) % len(prices)
    return first
