"""Whether time and memory grow with the input as they should."""

import random
import time
from collections.abc import Callable

from fuzz.target import Target

_SHORT_BYTES = 48 * 1024
_FACTOR = 8
# Linear work takes 8 times as long for 8 times the input, quadratic 64 times. CPU time wavers, so
# the line is drawn between the two, and what is done in a moment is not judged.
_MAX_RATIO = 32
_MIN_JUDGED_S = 0.05
_TRIES = 3


def check_growth(target: Target, data: bytes, rng: random.Random) -> None:
    """Blow `data` up by repeating a part of it, and run the product on two lengths of it.

    Raises:
        AssertionError: time grows faster than the input, or more is kept than the bound.
    """
    if target.drive is None or not data:
        return
    start = rng.randrange(len(data))
    end = rng.randint(start + 1, len(data))
    short, long = (
        data[:start] + data[start:end] * (size // (end - start)) + data[end:]
        for size in (_SHORT_BYTES, _SHORT_BYTES * _FACTOR)
    )
    kept = target.drive(long)
    assert kept <= target.max_kept_bytes, f"{kept} bytes are kept of {len(long)}"
    long_s = _cpu_s(target.drive, long, 1)
    if long_s > _MIN_JUDGED_S and long_s > _MAX_RATIO * _cpu_s(target.drive, short, 1):
        short_s, long_s = _cpu_s(target.drive, short, _TRIES), _cpu_s(target.drive, long, _TRIES)
        assert long_s <= _MAX_RATIO * short_s, f"{_FACTOR} times the input, {long_s / short_s:.0f}"


def _cpu_s(drive: Callable[[bytes], int], data: bytes, tries: int) -> float:
    best = float("inf")
    for _ in range(tries):
        start = time.process_time()
        drive(data)
        best = min(best, time.process_time() - start)
    return best
