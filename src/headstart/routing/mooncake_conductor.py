"""Mooncake's Conductor: the least transfer, queue and prefill."""

from collections.abc import Sequence
from math import inf

from headstart.routing.config import MooncakeConductorConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.ties import FewestAssigned


class MooncakeConductor:
    """Chooses the least expected TTFT, own request only.

        TTFT = queue + prefill(n − matched)                              where `matched` will do
        TTFT = (longest − matched) / rate + queue + prefill(n − longest)    where it is fetched

    A prefix is fetched from the replica with the longest match where that is
    `balancing_threshold` times as long as the own one or more; only if replicas can, which none
    of this gateway's does unless `transfer_tokens_per_s` says so. Rejecting what cannot meet its
    objective is left to the queue. Its source leaves ties open.

    Args:
        config: of the transfer.

    Source: https://arxiv.org/abs/2407.00079, algorithm 1
    """

    __slots__ = ("_config", "_ties")

    def __init__(self, config: MooncakeConductorConfig) -> None:
        self._config = config
        self._ties = FewestAssigned()

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "mooncake_conductor"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the soonest of `candidates`; prices are in seconds.

        Cost: O(candidates).
        """
        config, num_tokens, now = self._config, request.input_tokens, request.now
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        rate, longest = config.transfer_tokens_per_s, max(matched_tokens)
        # Matches that are shorter than this are made up for, if they can be.
        least = longest / config.balancing_threshold if rate and longest else -1.0
        prices = []
        for replica, matched in zip(candidates, matched_tokens, strict=True):
            if not replica.has_room:
                prices.append(inf)
                continue
            load, ttft_s, held = replica.load, 0.0, matched
            if held <= least:
                ttft_s = (longest - held) / rate
                held = longest
            ttft_s += load.wait_s(now) + load.base_s
            uncached = num_tokens - held if num_tokens - held > 1 else 1
            attention = (num_tokens - 0.5 * uncached) * load.attention_s
            prices.append(ttft_s + uncached * (load.linear_s + attention))
        index = self._ties.pick(prices, candidates)
        return Decision(candidates[index], "mooncake_conductor", "soonest", prices)
