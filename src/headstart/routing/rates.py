"""How quick each replica is: TTFT against work, fitted online.

    seconds = base + linear · tokens + attention · tokens·context
            + linear · interference · tokens · decoding + output · output tokens

`tokens` are the uncached ones of the request and of what was before it in the queue, so that a
replica that is never idle teaches as well as one that is. The last term is there for answers that
came in one piece: their whole time is then what was seen.

Theory of operation: a fit holds the factors by which a replica differs from the prior, one for each
term. An observation is off by a factor of what was expected of it; a part of that (`_GAIN`) is
taken over, each term's factor moving by its share in what was expected. So prompts that are all
base teach the base, and long ones the rate; a prompt of 100 tokens counts as much as one of
100,000; factors stay positive; and what never occurs changes only with the first observations,
which move all terms alike. What is far off counts less, and not as further than a factor of three.

Fits of replicas that are alike differ by chance. `RateBook` gives all those the same rates that
are within a fifth of the fleet's, or a hair's breadth would send every new prefix to one replica.
"""

from math import exp, inf, log
from operator import mul
from typing import Final

import msgspec

_GAIN: Final = 0.08
"""Share of its surprise that an observation is believed, once twelve have come."""

_MOST: Final = log(10_000.0)
"""Bound of each factor, both ways: a GPU of tomorrow, a CPU of yesterday."""

_OUTLIER: Final = log(3.0)
_FIRST_OUTLIER: Final = log(64.0)
_NOTABLE: Final = 0.5
_DRIFT_GAIN: Final = 0.1
"""Observations count as off by at most `_OUTLIER` (`_FIRST_OUTLIER` while little is known) from
what the last ones were off by, and less the further it is more than `_NOTABLE`; logarithms."""

_TRUSTED: Final = 8.0
"""Weight of observations from which on a fit knows what is far off."""

_WELL_KNOWN: Final = 32.0
_MOST_WEIGHT: Final = 40.0
_FADE_S: Final = 300.0
"""Time constant of the weight: a quarter of an hour after its last request a replica that was four
times as slow as the others is taken to be like them again."""

_KNOWN: Final = 1.5
"""Weight from which on a replica's own fit is looked at."""

_ALIKE: Final = 0.2
_DOUBT: Final = 8.0
"""Replicas that differ by less are alike, as a natural logarithm; by up to `_DOUBT` / weight times
more while they are little known."""

_SETTLE_S: Final = 0.25
_REFERENCE_TOKENS: Final = 2048


class Rates(msgspec.Struct, frozen=True):
    """A replica's rates.

    Attributes:
        base_s: TTFT of a prompt that is all cached, on an idle replica.
        linear_s: per uncached token.
        attention_s: per uncached token and token of the context that it attends to.
        interference: share of prefill time that each decoding request adds.
        output_s: per output token.
    """

    base_s: float
    linear_s: float
    attention_s: float
    interference: float
    output_s: float

    def prefill_s(self, tokens: float, attention: float) -> float:
        """Return the time that prefilling takes without the base."""
        return tokens * self.linear_s + attention * self.attention_s


PRIOR: Final = Rates(
    base_s=0.015,
    linear_s=5e-5,
    attention_s=1.6e-9,
    interference=1 / 256,
    output_s=0.005,
)
"""A 7B model on an A100; each decoding request takes as much of a step as 8 tokens of its 2,048.

Source: Preble's fits, https://arxiv.org/abs/2407.00023
"""


class Sample(msgspec.Struct, frozen=True):
    """What was seen of one request.

    Attributes:
        seconds: from being sent to the first token, or to the end if it came in one piece.
        tokens: uncached, of this request and of what was before it.
        attention: the same, times the mean context.
        num_decoding: requests that were being generated for.
        output_tokens: 0 where the first token was seen.
        weight: 0..1, how clean it is.
    """

    seconds: float
    tokens: float
    attention: float
    num_decoding: int = 0
    output_tokens: int = 0
    weight: float = 1.0


class RateFit:
    """The fit of one replica.

    Attributes:
        weight: of what was observed and has not faded, in clean observations.
    """

    __slots__ = ("_drift", "_factors", "_prior", "weight")

    def __init__(self, prior: Rates = PRIOR) -> None:
        self._prior = prior
        self.weight = 0.0
        self._factors = [0.0] * 5  # natural logarithms
        self._drift = 0.0

    @property
    def rates(self) -> Rates:
        """The fit; the prior at first."""
        base, linear, attention, interference, output = map(exp, self._factors)
        prior = self._prior
        return Rates(
            base * prior.base_s,
            linear * prior.linear_s,
            attention * prior.attention_s,
            interference / linear * prior.interference,
            output * prior.output_s,
        )

    def observe(self, sample: Sample) -> None:
        """Learn from `sample`; one of no time or weight is none.

        Cost: about 4 us.
        """
        if sample.seconds <= 0.0 or sample.weight <= 0.0:
            return
        terms = self._terms(sample)
        expected = sum(terms)
        surprise, gain = self._believed(log(sample.seconds / expected), sample.weight)
        shares = [term / expected for term in terms]
        # What is expected moves by `gain * surprise`, whether through one term or through all.
        common = gain * surprise / (1.0 + self.weight)
        own = (gain * surprise - common) / sum(map(mul, shares, shares))
        factors = [
            factor + common + own * share
            for factor, share in zip(self._factors, shares, strict=True)
        ]
        if max(factors) > _MOST or min(factors) < -_MOST:
            factors = [min(max(factor, -_MOST), _MOST) for factor in factors]
        self._factors = factors
        self.weight = min(self.weight + sample.weight, _MOST_WEIGHT)

    def fade(self, seconds: float) -> None:
        """Be less sure, as `seconds` have passed: the replica may have changed unseen."""
        self.weight *= exp(-seconds / _FADE_S)

    def check_integrity(self) -> None:
        """Assert the bounds."""
        assert 0.0 <= self.weight <= _MOST_WEIGHT
        assert all(abs(factor) <= _MOST for factor in self._factors)
        assert abs(self._drift) <= 2 * _MOST + _FIRST_OUTLIER

    def _terms(self, sample: Sample) -> list[float]:
        """Return what is expected of each term, in seconds."""
        prior = self._prior
        linear = prior.linear_s * sample.tokens
        base, per_token, attention, interference, output = map(exp, self._factors)
        return [
            base * prior.base_s,
            per_token * linear,
            attention * prior.attention_s * sample.attention,
            interference * prior.interference * sample.num_decoding * linear,
            output * prior.output_s * sample.output_tokens,
        ]

    def _believed(self, surprise: float, weight: float) -> tuple[float, float]:
        """Return how far an observation is taken to be off, and how much of it to take over."""
        gain = weight * max(_GAIN, 1.0 / (1.0 + self.weight))
        if self.weight < _TRUSTED:
            return min(max(surprise, -_FIRST_OUTLIER), _FIRST_OUTLIER), gain
        # Where all are off by the same, the replica has changed, and none of them is an outlier.
        deviation = min(max(surprise - self._drift, -_OUTLIER), _OUTLIER)
        believed = self._drift + deviation
        self._drift += _DRIFT_GAIN * deviation
        return believed, gain * min(1.0, _NOTABLE / max(abs(deviation), _NOTABLE))


class RateBook:
    """The fits of all replicas, and what they have in common.

    A replica is given its own rates once it has shown that it differs, and the fleet's otherwise,
    so that one of which nothing is known is expected to be like the others. What was known fades,
    or one that seemed slow once would get no request to show the contrary.

    Args:
        prior: of a fleet of which nothing is known.
    """

    __slots__ = ("_common", "_fits", "_num_asked", "_rates", "_settled_at")

    def __init__(self, prior: Rates = PRIOR) -> None:
        self._common = prior
        self._fits: dict[int, RateFit] = {}
        self._rates: dict[int, Rates] = {}  # of those that are known, when last settled
        self._settled_at = -inf
        self._num_asked = 0

    @property
    def common(self) -> Rates:
        """The rates of the replicas that do not differ."""
        return self._common

    def fit(self, slot: int) -> RateFit | None:
        """Return the fit of the replica in `slot`; None if it was never observed."""
        return self._fits.get(slot)

    def is_curious(self, slot: int) -> bool:
        """Return whether to observe the next request: once all is known one in four will do."""
        fit = self._fits.get(slot)
        if fit is None or fit.weight < _WELL_KNOWN:
            return True
        self._num_asked += 1
        return self._num_asked & 3 == 0

    def observe(self, slot: int, sample: Sample, now: float) -> bool:
        """Learn from a request to the replica in `slot`; return whether anybody's rates may be new.

        That is seldom the case once all is known: four times a second at most.
        """
        fit = self._fits.get(slot)
        if fit is None:
            fit = self._fits[slot] = RateFit(self._common)
        fit.observe(sample)
        if now - self._settled_at < _SETTLE_S and fit.weight > _TRUSTED:
            return False
        passed_s = min(now - self._settled_at, 10 * _FADE_S)
        for each in self._fits.values():
            each.fade(passed_s)
        self._settled_at = now
        self._rates = {
            slot: each.rates for slot, each in self._fits.items() if each.weight > _KNOWN
        }
        if self._rates:
            by_speed = sorted(self._rates.values(), key=_reference_s)
            self._common = by_speed[(len(by_speed) - 1) // 2]
        return True

    def rates(self, slot: int) -> Rates:
        """Return what to expect of the replica in `slot`."""
        own, common = self._rates.get(slot), self._common
        if own is None:
            return common
        difference = abs(log(_reference_s(own) / _reference_s(common)))
        doubt = 1.0 + _DOUBT / max(self._fits[slot].weight, _KNOWN)
        return own if difference > _ALIKE * doubt else common

    def forget(self, slot: int) -> None:
        """Forget a replica that is no more: its slot may be another's."""
        self._fits.pop(slot, None)
        self._rates.pop(slot, None)


def _reference_s(rates: Rates) -> float:
    return rates.base_s + rates.prefill_s(_REFERENCE_TOKENS, _REFERENCE_TOKENS**2)
