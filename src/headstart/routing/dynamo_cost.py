"""Dynamo's KV router: what a replica would have to prefill, and what it would decode over."""

from collections.abc import Sequence
from math import inf
from random import Random

from headstart.routing.config import DynamoCostConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.ties import pick_at_random


class DynamoCost:
    """Chooses the least cost; of equals any, as its source does at temperature 0.

        cost = prefill_scale · max(pending + prompt − credit · matched, 0) + active + prompt

    All of it is in tokens; the source counts blocks of one size. `pending` are uncached tokens
    without a first token, `active` those that running requests have added to the KV. Its credits
    for what lies on the host or on disk have no counterpart: indexes know of the device only.

    Args:
        config: scale and credit.
        rng: where chance comes from.

    Source: https://docs.nvidia.com/dynamo/latest/router, cost function
    """

    __slots__ = ("_config", "_rng")

    def __init__(self, config: DynamoCostConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "dynamo_cost"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the cheapest of `candidates`; prices are in tokens.

        Cost: O(candidates).
        """
        config, num_tokens = self._config, request.input_tokens
        scale, credit, decay = config.prefill_scale, config.overlap_credit, 0.0
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        least = 0
        if config.credit_decay:
            least = min(each.load.pending_tokens for each in candidates if each.has_room)
            decay = config.credit_decay / max(num_tokens, 1)
        prices = []
        for replica, matched in zip(candidates, matched_tokens, strict=True):
            if not replica.has_room:
                prices.append(inf)
                continue
            load = replica.load
            pending = load.pending_tokens
            credited = credit * matched
            if decay:
                credited /= 1.0 + decay * (pending - least)
            prefill = pending + num_tokens - credited
            prices.append(
                (scale * prefill if prefill > 0.0 else 0.0) + load.active_tokens + num_tokens
            )
        index = pick_at_random(prices, self._rng)
        return Decision(candidates[index], "dynamo_cost", "least cost", prices)
