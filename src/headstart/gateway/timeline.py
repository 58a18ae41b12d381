"""When things happened to one request."""

import msgspec


class Timeline(msgspec.Struct):
    """One request's times; mutable while it runs.

    Attributes:
        time_s: seconds since 1970 UTC when the head was complete.
        accepted_at: monotonic seconds of the same moment.
        queue_s: how long it has waited in the gateway for a replica.
        first_content_at: monotonic seconds of the first piece of content; None before.
        last_content_at: of the last one so far.
    """

    time_s: float
    accepted_at: float
    queue_s: float = 0.0
    first_content_at: float | None = None
    last_content_at: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """From accept to the first content; None without content."""
        first = self.first_content_at
        return None if first is None else first - self.accepted_at

    def tpot_s(self, num_tokens: int) -> float | None:
        """Return the time per output token after the first; None if nothing tells it.

        Args:
            num_tokens: the output's.
        """
        first, last = self.first_content_at, self.last_content_at
        # What came in one piece says nothing about the time between its tokens.
        if first is None or last is None or last <= first or num_tokens < 2:
            return None
        return (last - first) / (num_tokens - 1)
