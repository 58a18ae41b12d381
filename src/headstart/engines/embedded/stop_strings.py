"""End text before the first stop string, without ever showing a part of one."""

from collections.abc import Sequence


class StopStrings:
    """Watches one request's text; holds back what could still become a stop string.

    Args:
        stop: non-empty strings; none: all text passes at once.
    """

    __slots__ = ("_held", "_stop")

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Add text.

        Returns:
            The text that is now certain, and whether a stop string was found; then the text ends
            before the one that begins first.
        """
        if not self._stop:
            return text, False
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max(_overlap(text, stop) for stop in self._stop)
        certain = len(text) - keep
        self._held = text[certain:]
        return text[:certain], False

    def flush(self) -> str:
        """Return what is held back: the text ended, so it did not become a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
