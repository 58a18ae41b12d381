"""Time as an argument: the system's clock for the shell, a virtual one for tests and simulation."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: one to order and subtract, one to write down."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards; only differences have a meaning."""
        ...

    def time(self) -> float:
        """Return seconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's own clocks: their functions themselves, which are read for each piece."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


class VirtualClock:
    """A clock that moves only when told to; both readings advance together."""

    __slots__ = ("_elapsed_s", "_epoch_s")

    def __init__(self, epoch_s: float = 0.0) -> None:
        self._elapsed_s = 0.0
        self._epoch_s = epoch_s

    def monotonic(self) -> float:
        """Return the seconds that were added so far."""
        return self._elapsed_s

    def time(self) -> float:
        """Return the epoch given at the start plus the seconds that were added."""
        return self._epoch_s + self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds` (>= 0)."""
        assert seconds >= 0
        self._elapsed_s += seconds
