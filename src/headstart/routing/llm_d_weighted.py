"""llm-d's scheduler: a weighted sum of scores between 0 and 1, the most wins."""

from collections.abc import Sequence
from math import inf
from random import Random

from headstart.routing.config import LlmDWeightedConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.ties import pick_at_random


class LlmDWeighted:
    """Chooses the most of prefix, queue and KV scores; of equals any, as its source does.

        prefix = matched / all tokens of the prompt
        queue  = (most − own) / (most − fewest) requests that wait; 1 where all are the same
        KV     = 1 − share of KV that running requests pin

    Who waits is whoever has no first token yet, by the gateway's own count. A price is what lacks
    to the best score that there can be.

    Args:
        config: weights.
        rng: where chance comes from.

    Source: https://llm-d.ai/docs/architecture, scorers of the endpoint picker
    """

    __slots__ = ("_config", "_rng")

    def __init__(self, config: LlmDWeightedConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "llm_d_weighted"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the highest score of `candidates`.

        Cost: O(candidates).
        """
        config, num_tokens = self._config, request.input_tokens or 1
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        queues = [replica.load.num_pending for replica in candidates if replica.has_room]
        fewest = min(queues)
        spread = max(queues) - fewest
        prefix_weight = config.prefix_weight / num_tokens
        queue_weight = config.queue_weight / spread if spread else 0.0
        kv_weight = config.kv_weight
        prices = []
        for replica, matched in zip(candidates, matched_tokens, strict=True):
            if not replica.has_room:
                prices.append(inf)
                continue
            load = replica.load
            if load.is_stale:
                load.settle()
            prices.append(
                (num_tokens - matched) * prefix_weight
                + (load.num_pending - fewest) * queue_weight
                + min(load.kv_share, 1.0) * kv_weight
            )
        index = pick_at_random(prices, self._rng)
        return Decision(candidates[index], "llm_d_weighted", "highest score", prices)
