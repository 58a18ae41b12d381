"""GORGO: round trip, own prefill and the queue, each at a rate that is fitted online."""

from collections.abc import Sequence
from math import inf

from headstart.routing.config import GorgoConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.ties import FewestAssigned


class Gorgo:
    """Chooses the least `rtt + prefill_rate · uncached + queue_rate · queued tokens`.

    Both rates are the replica's seconds per uncached token, times a factor. The round trip is not
    measured by itself: it is in what an all-cached prompt takes, which counts as far as
    `rtt_weight` says. Its source leaves ties open.

    Args:
        config: factors of the rates.

    Source: https://arxiv.org/abs/2602.11688
    """

    __slots__ = ("_config", "_ties")

    def __init__(self, config: GorgoConfig) -> None:
        self._config = config
        self._ties = FewestAssigned()

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "gorgo"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the cheapest of `candidates`; prices are in seconds.

        Cost: O(candidates).
        """
        config, num_tokens = self._config, request.input_tokens
        rtt, prefill, queue = config.rtt_weight, config.prefill_weight, config.queue_weight
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        prices = []
        for replica, matched in zip(candidates, matched_tokens, strict=True):
            if not replica.has_room:
                prices.append(inf)
                continue
            load = replica.load
            uncached = num_tokens - matched
            tokens = prefill * (uncached if uncached > 1 else 1) + queue * load.pending_tokens
            prices.append(rtt * load.base_s + load.rates.linear_s * tokens)
        index = self._ties.pick(prices, candidates)
        return Decision(candidates[index], "gorgo", "least cost", prices)
