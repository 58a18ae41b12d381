"""Preble's E2: exploit what is cached, or explore for the least load.

A request of which more is cached than is missing goes to a replica with the longest match, the
least loaded of those that have it. Any other goes where this is least, all in seconds:

    L   load: prefill and decoding of what was sent there in the last three minutes
    M   what would have to be computed again of what is evicted for it
    P   prefill of its own uncached tokens

Two corrections keep affinity from piling up. Where the heaviest replica's load is more than
`balance_ratio` times the lightest's, requests that would exploit the one go to the other. And where
TTFT behind a prefix has doubled from one half of the window to the next, one request is sent to the
lightest replica that does not have it, which then does.

Three things differ from the source, which has them from the engines. Prefill times are our fitted
rates, for which its regressions are the prior. The output of every request is taken to be
`output_tokens` long. And the TTFT behind a prefix is what was expected of it, since a policy does
not hear how a request went. Its balancing of prefill against decode is left out: replicas here do
both.

Source: https://arxiv.org/abs/2407.00023; that rebalancing begins with the 50th request, and the
output of 45 tokens, are from its code, https://github.com/WukLab/preble
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from typing import Final

from headstart.routing.config import PrebleE2Config
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.ties import FewestAssigned
from headstart.types import PrefixKey

MAX_PREFIXES: Final = 4096
"""Prefixes whose TTFT is followed; the least recently used is forgotten."""

_NUM_BUCKETS: Final = 60
_FIRST_REBALANCED: Final = 50


class PrebleE2:
    """See the module.

    Args:
        config: window and thresholds.
    """

    __slots__ = ("_config", "_num_requests", "_prefixes", "_ties", "_window")

    def __init__(self, config: PrebleE2Config) -> None:
        self._config = config
        self._window = LoadWindow(config.window_s)
        self._prefixes: OrderedDict[PrefixKey, PrefixTrend] = OrderedDict()
        self._ties = FewestAssigned()
        self._num_requests = 0

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "preble_e2"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Exploit or explore.

        Mutates: its own account of what was sent where.
        Cost: O(candidates).
        """
        self._window.advance(request.now)
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        loads = self._open_loads(candidates)
        longest = max(
            matched for matched, load in zip(matched_tokens, loads, strict=True) if load < inf
        )
        if longest > request.input_tokens - longest:
            holders = [
                load if matched == longest else inf
                for load, matched in zip(loads, matched_tokens, strict=True)
            ]
            index = self._ties.pick(holders, candidates)
            index, reason = self._adjust(request, candidates, index, loads, holders)
            prices: Sequence[float] = ()
        else:
            prices = self._costs(request, candidates, matched_tokens, loads)
            index, reason = self._ties.pick(prices, candidates), "explore"
        replica = candidates[index]
        decode_s = self._config.output_tokens * replica.load.rates.output_s
        prefill_s = _prefill_s(replica, request.input_tokens, matched_tokens[index])
        self._window.add(replica.name, prefill_s + decode_s)
        self._num_requests += 1
        return Decision(replica, "preble_e2", reason, prices)

    def check_integrity(self) -> None:
        """Assert the bounds."""
        assert len(self._prefixes) <= MAX_PREFIXES
        self._window.check_integrity()

    def _open_loads(self, candidates: Sequence[Replica]) -> list[float]:
        """Return L of each candidate, infinite where there is no room."""
        totals = self._window.totals
        return [
            totals.get(replica.name, 0.0) if replica.has_room else inf for replica in candidates
        ]

    def _costs(
        self,
        request: RoutingRequest,
        candidates: Sequence[Replica],
        matched_tokens: Sequence[int],
        loads: Sequence[float],
    ) -> list[float]:
        num_tokens = request.input_tokens
        return [
            load_s
            + max(num_tokens - matched, 1) * replica.load.evict_s
            + _prefill_s(replica, num_tokens, matched)
            for load_s, replica, matched in zip(loads, candidates, matched_tokens, strict=True)
        ]

    def _adjust(
        self,
        request: RoutingRequest,
        candidates: Sequence[Replica],
        index: int,
        loads: Sequence[float],
        holders: Sequence[float],
    ) -> tuple[int, str]:
        """Return the index of who takes a request that would exploit `index`, and why."""
        if self._num_requests >= _FIRST_REBALANCED:
            totals = self._window.totals
            heaviest = max(totals.get(replica.name, 0.0) for replica in candidates)
            if loads[index] == heaviest > self._config.balance_ratio * min(loads):
                return self._ties.pick(loads, candidates), "rebalance"
        if self._is_hot(request, candidates[index], request.matched_tokens[index]):
            others = [
                load if held == inf else inf for load, held in zip(loads, holders, strict=True)
            ]
            if min(others) < inf:
                return self._ties.pick(others, candidates), "replicate"
        return index, "exploit"

    def _is_hot(self, request: RoutingRequest, replica: Replica, matched: int) -> bool:
        """Note the TTFT that is expected behind the matched prefix; return whether it doubled."""
        key = _matched_key(request, matched)
        if key is None:
            return False
        prefixes = self._prefixes
        trend = prefixes.get(key)
        if trend is None:
            trend = prefixes[key] = PrefixTrend()
            if len(prefixes) > MAX_PREFIXES:
                prefixes.popitem(last=False)
        else:
            prefixes.move_to_end(key)
        now = request.now
        ttft_s = replica.load.wait_s(now) + _prefill_s(replica, request.input_tokens, matched)
        trend.observe(int(now / (0.5 * self._config.window_s)), ttft_s)
        if trend.has_grown(self._config.replicate_ratio):
            del prefixes[key]
            return True
        return False


class LoadWindow:
    """Seconds of work of the last minutes, by name, in sixtieths of the window.

    Who was given nothing in all that time is forgotten.

    Attributes:
        totals: of those that were given some.
    """

    __slots__ = ("_bucket", "_bucket_s", "_rows", "totals")

    def __init__(self, window_s: float) -> None:
        self._bucket_s = window_s / _NUM_BUCKETS
        self._bucket = 0
        self._rows: dict[str, list[float]] = {}
        self.totals: dict[str, float] = {}

    def advance(self, now: float) -> None:
        """Drop what is older than the window.

        Cost: O(1), and O(names) sixty times in a window.
        """
        bucket = int(now / self._bucket_s)
        passed = bucket - self._bucket
        if passed <= 0:
            return
        self._bucket = bucket
        gone = [(bucket - step) % _NUM_BUCKETS for step in range(min(passed, _NUM_BUCKETS))]
        for name, row in list(self._rows.items()):
            for place in gone:
                row[place] = 0.0
            self.totals[name] = sum(row)
            if not any(row):
                del self._rows[name], self.totals[name]

    def add(self, name: str, seconds: float) -> None:
        """Count work that is given now."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = [0.0] * _NUM_BUCKETS
        row[self._bucket % _NUM_BUCKETS] += seconds
        self.totals[name] = self.totals.get(name, 0.0) + seconds

    def check_integrity(self) -> None:
        """Assert that totals are those of the rows."""
        assert self.totals.keys() == self._rows.keys()
        for name, row in self._rows.items():
            assert abs(sum(row) - self.totals[name]) <= 1e-6 * (1.0 + self.totals[name])


class PrefixTrend:
    """Mean TTFT behind one prefix, in this half of the window and the one before it."""

    __slots__ = ("_before", "_half", "_now")

    def __init__(self) -> None:
        self._half = 0
        self._before = (0.0, 0)  # sum and count
        self._now = (0.0, 0)

    def observe(self, half: int, seconds: float) -> None:
        """Note one, in the half window of this number."""
        if half != self._half:
            self._before = self._now if half == self._half + 1 else (0.0, 0)
            self._now = (0.0, 0)
            self._half = half
        total, count = self._now
        self._now = (total + seconds, count + 1)

    def has_grown(self, ratio: float) -> bool:
        """Return whether the mean is `ratio` times that of the half before, or more."""
        (before, num_before), (total, count) = self._before, self._now
        return num_before > 0 and total * num_before >= ratio * before * count


def _prefill_s(replica: Replica, num_tokens: int, matched: int) -> float:
    uncached = max(num_tokens - matched, 1)
    rates = replica.load.rates
    return rates.base_s + rates.prefill_s(uncached, uncached * (num_tokens - 0.5 * uncached))


def _matched_key(request: RoutingRequest, matched: int) -> PrefixKey | None:
    """Return the key of the matched part; None of a prompt without keys or a match."""
    prompt = request.prompt
    if not prompt.keys or not matched:
        return None
    # What is matched ends where a block does; tokens and bytes need not agree to the last one.
    ends, num_bytes = prompt.ends, prompt.num_bytes * matched / max(request.input_tokens, matched)
    index = bisect_left(ends, num_bytes)
    if index == len(ends) or (index and num_bytes - ends[index - 1] < ends[index] - num_bytes):
        index -= 1
    return prompt.keys[index]
