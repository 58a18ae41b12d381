"""Which of several candidates at the same price, where the source of a policy leaves that open.

List order never decides: it sends every new prefix of an idle fleet to the first replica.
"""

from collections.abc import Sequence
from random import Random

from headstart.routing.replica import Replica


class FewestAssigned:
    """Among equals the one with the fewest uncached tokens assigned lately; then in turn."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = -1

    def pick(self, prices: Sequence[float], candidates: Sequence[Replica]) -> int:
        """Return the index of the least price.

        Args:
            prices: one for each candidate, infinite where it has no room; at least one is finite.
            candidates: the replicas.

        Cost: O(candidates).
        """
        least = min(prices)
        if prices.count(least) == 1:
            return prices.index(least)
        equals = [index for index, price in enumerate(prices) if price == least]
        assigned = [candidates[index].load.assigned_tokens for index in equals]
        fewest = min(assigned)
        rest = [index for index, tokens in zip(equals, assigned, strict=True) if tokens == fewest]
        self._turn += 1
        return rest[self._turn % len(rest)]


def pick_at_random(prices: Sequence[float], rng: Random) -> int:
    """Return the index of the least price; of equals any.

    Args:
        prices: infinite where a candidate has no room; at least one is finite.
        rng: where chance comes from.
    """
    least = min(prices)
    if prices.count(least) == 1:
        return prices.index(least)
    return rng.choice([index for index, price in enumerate(prices) if price == least])
