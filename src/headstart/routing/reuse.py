"""How likely a prompt is to be continued, by how long it has been idle.

Theory of operation: of every prompt the key of its last block is kept, and looked for in later
prompts. One that is found was reused after a gap, and the gap is counted in a bucket (powers of two
of a second). What was idle for longer than a gap can no longer be reused at it, so

    Pr(reused | idle for a) = reused after more than a / (all - reused within a)

Both counts fade, so that they follow the traffic. What a replica is about to evict has been idle
longest there: this is the share of it that will be missed.
"""

from collections import OrderedDict
from math import frexp
from typing import Final

from headstart.prompt.fingerprint import PromptKeys
from headstart.types import PrefixKey

MAX_PROMPTS: Final = 8192
"""Prompts whose end is remembered; about 0.2 KB each."""

_NUM_BUCKETS: Final = 20
_GROWTH: Final = 1 + 1 / 4096
"""Of the weight of each further prompt: the last four thousand count."""

_MAX_WEIGHT: Final = 1e9
_PRIOR_WEIGHT: Final = 16.0
_PRIOR_REUSE: Final = 0.5


class ReuseModel:
    """Learns from prompts; asked for probabilities."""

    __slots__ = ("_last_used", "_num_prompts", "_reused", "_weight")

    def __init__(self) -> None:
        # The oldest first; finding that in a dict whose oldest always go takes 5 us.
        self._last_used: OrderedDict[PrefixKey, float] = OrderedDict()
        self._weight = 1.0
        self._num_prompts = 0.0
        self._reused = [0.0] * _NUM_BUCKETS

    def observe(self, prompt: PromptKeys, now: float) -> None:
        """Learn from a prompt that is sent, with at least one key.

        Cost: 1 us, and 0.03 us for each block.
        """
        keys, last_used = prompt.keys, self._last_used
        if not last_used.keys().isdisjoint(keys):  # which most are, as quick as can be found out
            for key in reversed(keys):
                used = last_used.pop(key, None)
                if used is not None:
                    self._reused[_bucket(now - used)] += self._weight
                    break
        # Newer ones weigh more, instead of all older ones less.
        self._weight *= _GROWTH
        self._num_prompts += self._weight
        last_used[keys[-1]] = now
        if len(last_used) > MAX_PROMPTS:
            last_used.popitem(last=False)
        if self._weight > _MAX_WEIGHT:
            self._rescale()

    def probability(self, idle_s: float) -> float:
        """Return how likely what was idle for `idle_s` is to be used again, 0..1."""
        bucket = _bucket(idle_s)
        later = sum(self._reused[bucket:])
        still = max(self._num_prompts - sum(self._reused[:bucket]), later)
        prior = _PRIOR_WEIGHT * self._weight
        return (later + prior * _PRIOR_REUSE) / (still + prior)

    def check_integrity(self) -> None:
        """Assert the bounds."""
        assert len(self._last_used) <= MAX_PROMPTS
        assert 1.0 <= self._weight <= _MAX_WEIGHT
        assert all(count >= 0.0 for count in self._reused)
        assert sum(self._reused) <= self._num_prompts * (1 + 1e-9)

    def _rescale(self) -> None:
        self._num_prompts /= self._weight
        self._reused = [count / self._weight for count in self._reused]
        self._weight = 1.0


def _bucket(seconds: float) -> int:
    """Return the power of two, from a sixteenth of a second on."""
    return min(max(frexp(max(seconds, 0.0))[1] + 4, 0), _NUM_BUCKETS - 1)
