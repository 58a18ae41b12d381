"""Runs of several seeds as one line, with confidence intervals."""

from collections.abc import Sequence
from math import sqrt
from typing import Final

import msgspec

from headstart.simulator.outcome import Outcome

_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t for 1..30 degrees of freedom."""

_NORMAL: Final = 1.960

FIGURES: Final = (
    "hit_ratio",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "goodput",
    "goodput_ratio",
    "imbalance",
    "evicted_blocks",
    "error_ratio",
)
"""Of an outcome, those of which means are given."""


class Interval(msgspec.Struct, frozen=True):
    """A mean, and the half-width of its 95 % confidence interval; 0 for one run."""

    mean: float
    half_width: float


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of `values`, at least one, and how sure it is.

    Source: Student's t, since seeds are few.
    """
    num = len(values)
    mean = sum(values) / num
    if num == 1:
        return Interval(mean, 0.0)
    variance = sum((value - mean) ** 2 for value in values) / (num - 1)
    quantile = _T[num - 2] if num - 2 < len(_T) else _NORMAL
    return Interval(mean, quantile * sqrt(variance / num))


def summarise(outcomes: Sequence[Outcome]) -> dict[str, Interval]:
    """Return the interval of each figure over `outcomes`, runs that differ in their seed."""
    return {
        figure: interval([float(getattr(outcome, figure)) for outcome in outcomes])
        for figure in FIGURES
    }
