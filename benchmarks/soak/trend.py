"""Whether something grows: a line through the samples of the second half."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trend:
    """One figure over a run.

    Attributes:
        first: median of the second half's first tenth.
        last: median of its last tenth.
        slope_per_hour: of the least-squares line through the second half.
        peak: largest of the whole run.
    """

    first: float
    last: float
    slope_per_hour: float
    peak: float

    def grows(self, room: float, span_s: float) -> bool:
        """Return whether line and ends agree that it rises by more than `room` in the second half.

        Args:
            room: by how much it may waver.
            span_s: length of the second half.
        """
        return self.slope_per_hour * span_s / 3600 > room and self.last - self.first > room


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """Fit the second half of `values` (at least two), taken at `times_s`."""
    half = len(values) // 2
    xs, ys = times_s[half:], values[half:]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / (spread or 1.0)
    tenth = max(1, len(ys) // 10)
    return Trend(
        first=sorted(ys[:tenth])[tenth // 2],
        last=sorted(ys[-tenth:])[tenth // 2],
        slope_per_hour=slope * 3600,
        peak=max(values),
    )
