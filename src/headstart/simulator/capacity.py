"""The highest rate that a fleet serves with the best of several policies."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headstart.routing.config import PolicyName

MeetsBound = Callable[[PolicyName, float], bool]
"""Whether TTFT P90 stays under the bound with this policy at this rate."""

_GROWTH: Final = 2.0
_MAX_DOUBLINGS: Final = 24


class Capacity(msgspec.Struct, frozen=True):
    """What bisection found.

    Attributes:
        rate: requests per second, the highest that met the bound.
        policy: that met it there.
        num_runs: replays that it took.
    """

    rate: float
    policy: PolicyName
    num_runs: int


def find_capacity(
    policies: Sequence[PolicyName],
    meets_bound: MeetsBound,
    start_rate: float,
    precision: float = 0.02,
) -> Capacity:
    """Return the highest rate at which any of `policies` meets the bound.

    Doubles or halves until the bound lies between two rates, then bisects on a logarithmic scale.
    A policy that has met the bound last is asked first, so that most steps take one run.

    Args:
        policies: at least one.
        meets_bound: runs a replay.
        start_rate: requests per second to begin with, > 0.
        precision: of the result, as a share.

    Raises:
        ValueError: no policy meets the bound, however low the rate.
    """
    search = _Search(list(policies), meets_bound)
    low, high = search.bracket(start_rate)
    while high > low * (1.0 + precision):
        middle = (low * high) ** 0.5
        if search.any_meets(middle):
            low = middle
        else:
            high = middle
    return Capacity(low, search.order[0], search.num_runs)


class _Search:
    def __init__(self, order: list[PolicyName], meets_bound: MeetsBound) -> None:
        self.order = order
        self.num_runs = 0
        self._meets_bound = meets_bound

    def any_meets(self, rate: float) -> bool:
        for policy in self.order:
            self.num_runs += 1
            if self._meets_bound(policy, rate):
                self.order.remove(policy)
                self.order.insert(0, policy)
                return True
        return False

    def bracket(self, rate: float) -> tuple[float, float]:
        """Return a rate that meets the bound, and a higher one that does not."""
        if self.any_meets(rate):
            for _ in range(_MAX_DOUBLINGS):
                if not self.any_meets(rate * _GROWTH):
                    return rate, rate * _GROWTH
                rate *= _GROWTH
            raise ValueError(f"TTFT P90 is under its bound at {rate:.3g} requests/s still")
        for _ in range(_MAX_DOUBLINGS):
            rate /= _GROWTH
            if self.any_meets(rate):
                return rate, rate * _GROWTH
        raise ValueError(f"TTFT P90 is above its bound at {rate:.3g} requests/s already")
