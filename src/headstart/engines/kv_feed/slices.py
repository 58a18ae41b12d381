"""Long work on the event loop in short slices."""

import asyncio
from time import perf_counter


class Slices:
    """Lets others have the loop after each `slice_s` of work.

    Args:
        slice_s: seconds of one slice; a single piece of work may overrun it.
    """

    __slots__ = ("_end", "_slice_s")

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self.begin()

    def begin(self) -> None:
        """Begin a slice now."""
        self._end = perf_counter() + self._slice_s

    async def rest(self) -> None:
        """Let the loop turn once, if the slice is used up."""
        if perf_counter() >= self._end:
            await asyncio.sleep(0)
            self.begin()
