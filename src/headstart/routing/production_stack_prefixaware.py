"""vLLM production-stack's `prefixaware`: the longest match, whatever the load."""

from collections.abc import Sequence
from random import Random

from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class ProductionStackPrefixaware:
    """Any of those that hold the longest prefix; any of all where none holds something.

    A baseline, faithful where that hurts: load plays no part. It is given our index in place of
    its trie of 128-character chunks, which never forgets, so it is not led to replicas that have
    evicted what they held.

    Args:
        rng: where chance comes from.

    Source: https://docs.vllm.ai/projects/production-stack, "Prefix aware routing"
    """

    __slots__ = ("_rng",)

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "production_stack_prefixaware"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose one of the longest match.

        Cost: O(candidates).
        """
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        longest = -1
        holders: list[Replica] = []
        for replica, matched in zip(candidates, matched_tokens, strict=True):
            if matched < longest or not replica.has_room:
                continue
            if matched > longest:
                longest = matched
                holders.clear()
            holders.append(replica)
        replica = holders[0] if len(holders) == 1 else self._rng.choice(holders)
        reason = "longest match" if longest > 0 else "no match, drawn"
        return Decision(replica, "production_stack_prefixaware", reason)
