"""After how long without use what a replica holds is gone, room or no room.

vLLM and SGLang keep everything until they need the room. Engines that free idle memory, and
providers, forget after minutes. Three resets after idle times of a minute or more, longer than any
that was survived, set a time to live at the shortest of them; finding what had been given up by it
doubles it, up to a day, after which there is none.
"""

from typing import Final

_LEAST_TTL_S: Final = 60.0
_MOST_TTL_S: Final = 86_400.0
_NUM_MISSES: Final = 3


class TimeToLive:
    """An estimate for one replica.

    Args:
        configured_s: None: entries live until there is no room.
    """

    __slots__ = ("_longest_hit_s", "_num_misses", "_shortest_miss_s", "ttl_s")

    def __init__(self, configured_s: float | None) -> None:
        self.ttl_s = configured_s
        self._longest_hit_s = 0.0
        self._shortest_miss_s = _MOST_TTL_S
        self._num_misses = 0

    def hit(self, idle_s: float) -> None:
        """Take in that something unused for `idle_s` was still there."""
        if idle_s > self._longest_hit_s:
            self._longest_hit_s = idle_s
            if idle_s >= self._shortest_miss_s:  # then those misses had another reason
                self._num_misses, self._shortest_miss_s = 0, _MOST_TTL_S

    def missed(self, idle_s: float) -> None:
        """Take in that something unused for `idle_s` was gone, and not for lack of room."""
        if not max(self._longest_hit_s, _LEAST_TTL_S) < idle_s:
            return
        self._num_misses += 1
        self._shortest_miss_s = min(self._shortest_miss_s, idle_s)
        if self._num_misses >= _NUM_MISSES and (
            self.ttl_s is None or self._shortest_miss_s < self.ttl_s
        ):
            self.ttl_s = self._shortest_miss_s

    def unexpected(self) -> None:
        """Take in that something was there of which nothing was known."""
        if self.ttl_s is not None and self._num_misses >= _NUM_MISSES:
            self.ttl_s *= 2
            self._longest_hit_s = 0.0
            if self.ttl_s > _MOST_TTL_S:
                self.ttl_s, self._num_misses = None, 0
                self._shortest_miss_s = _MOST_TTL_S
