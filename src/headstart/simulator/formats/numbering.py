"""Numbers for names, in the order in which they first occur."""

from collections.abc import Hashable


class Numbering:
    """Gives 0, 1, 2 … to what is new, and to what is known the number that it has."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, name: Hashable) -> int:
        """Return the number of `name`."""
        return self._numbers.setdefault(name, len(self._numbers))
