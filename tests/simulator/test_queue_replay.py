"""The replay of k-LPM: which order of a queue serves its slowest requests best.

300 users with 8 queries each, mixed at random, 8 requests a second to one server whose cache holds
the query before: 20 ms for another of the same user, 200 ms else. Known P99 (`k = 1` is FCFS):
178 s FCFS, 88.8 s LPM with arbitrary ties, 58.7 s k = 3, 30.4 s LPM with the oldest first.

Source: arXiv:2502.04677, and a replay in the material of this project.
"""

from dataclasses import dataclass
from random import Random

import pytest

from headstart.routing.queue_orders import FirstComeFirstServed, LongestPrefixMatch, Match

HIT, MISS = Match(900, 1000), Match(0, 1000)


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    arrived_s: float
    user: int
    group: str = ""
    tenant: str = ""


class ArbitraryTies:
    """Shows an order matches that differ by a little, so that the first of equals is any."""

    def __init__(self, order, seed):
        self._order = order
        self._rng = Random(seed)

    def pick(self, waiting, match_of):
        return self._order.pick(waiting, lambda one: self._blur(match_of(one)))

    def _blur(self, match):
        little = self._rng.randrange(10**6)  # of so many that hardly any are equal
        return Match(match.matched_tokens * 10**6 + little, match.input_tokens * 10**6)


def arrivals(seed):
    rng = Random(seed)
    users = [user for user in range(300) for _ in range(8)]
    rng.shuffle(users)
    at_s = 0.0
    for user in users:
        at_s += rng.expovariate(8.0)
        yield Query(at_s, user)


def replay(order, seed):
    """Return the P99 of latency."""
    coming = list(arrivals(seed))[::-1]
    waiting, latencies = [], []
    now, last = 0.0, None
    while coming or waiting:
        if not waiting:
            now = max(now, coming[-1].arrived_s)
        while coming and coming[-1].arrived_s <= now:
            waiting.append(coming.pop())
        user = last
        query = order.pick(waiting, lambda one, user=user: HIT if one.user == user else MISS)
        waiting.remove(query)
        now += 0.020 if query.user == last else 0.200
        last = query.user
        latencies.append(now - query.arrived_s)
    return sorted(latencies)[int(0.99 * len(latencies))]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_the_orders(seed):
    """Ties decide: served oldest first, LPM is the best of all; at random, worse than k = 3.

    The known figure for k = 3 is with arbitrary ties too; the oldest first make it better.
    """
    orders = (
        FirstComeFirstServed(),
        ArbitraryTies(LongestPrefixMatch(), seed),
        ArbitraryTies(LongestPrefixMatch(k=3), seed),
        LongestPrefixMatch(k=3),
        LongestPrefixMatch(),
    )
    slowest = [replay(order, seed) for order in orders]
    assert slowest == sorted(slowest, reverse=True)
    known = [*slowest[:3], slowest[-1]]
    assert known == pytest.approx([178.0, 88.8, 58.7, 30.4], rel=0.15)


@pytest.mark.parametrize("seed", [1, 2])
def test_first_come_first_served_is_k_of_one(seed):
    """The oldest is always due."""
    assert replay(LongestPrefixMatch(k=1), seed) == replay(FirstComeFirstServed(), seed)
