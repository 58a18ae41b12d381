"""One timer for all deadlines."""

import asyncio
from collections.abc import Callable, Sequence

from headstart.clock import Clock


class Sweeper:
    """Calls each target with the time, again and again.

    A timer per request would cost more than all deadlines together are worth: they are long, and
    being late by one interval harms nobody.

    Args:
        targets: called with monotonic seconds.
        interval_s: between two sweeps; deadlines are kept to within this.
        clock: gives the time.
    """

    def __init__(
        self, targets: Sequence[Callable[[float], None]], interval_s: float, clock: Clock
    ) -> None:
        self._targets = tuple(targets)
        self._interval_s = interval_s
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Sweep from now on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._sweep)

    def stop(self) -> None:
        """Sweep no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        # Armed first, so that a target's error cannot end all deadlines.
        self.start()
        now = self._clock.monotonic()
        for target in self._targets:
            target(now)
