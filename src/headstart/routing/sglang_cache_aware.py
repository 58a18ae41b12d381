"""SGLang's `cache_aware`: the longest match while loads are about even."""

from collections.abc import Sequence

from headstart.routing.config import SglangCacheAwareConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class SglangCacheAware:
    """Follows the cache while loads are about even, and the load otherwise.

    A baseline, faithful where that hurts: equals go to the first in the list, and nothing spills
    below `balance_abs_threshold` requests of imbalance. It is given our index in place of its
    tree of characters.

    Source: https://docs.sglang.ai/advanced_features/router.html
    """

    __slots__ = ("_config",)

    def __init__(self, config: SglangCacheAwareConfig) -> None:
        self._config = config

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "sglang_cache_aware"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose by match or by load, as the balance of `candidates` says.

        Cost: O(candidates).
        """
        config = self._config
        loads = [replica.load.in_flight for replica in candidates]
        most, least = max(loads), min(loads)
        open_ones = [index for index, replica in enumerate(candidates) if replica.has_room]
        is_even = (
            most - least <= config.balance_abs_threshold
            or most <= config.balance_rel_threshold * least
        )
        matched_tokens = request.matched_tokens
        if is_even and matched_tokens:
            index = max(open_ones, key=matched_tokens.__getitem__)
            if matched_tokens[index] > config.cache_threshold * request.input_tokens:
                return Decision(candidates[index], self.name, "longest match")
        index = min(open_ones, key=loads.__getitem__)
        reason = "short match, least loaded" if is_even else "uneven, least loaded"
        return Decision(candidates[index], self.name, reason)
