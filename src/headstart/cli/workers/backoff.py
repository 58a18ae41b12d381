"""How long to wait before a worker is replaced."""

_STABLE_S = 10.0
"""A worker that lived so long did not die of its start."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Backoff:
    """None after a worker that had worked; twice as long after each that dies at once."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = 0.0

    def after(self, lived_s: float) -> float:
        """Return the seconds to wait after a worker that lived `lived_s`; the first time none."""
        if lived_s >= _STABLE_S:
            self._next_s = 0.0
        pause_s = self._next_s
        self._next_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        return pause_s
