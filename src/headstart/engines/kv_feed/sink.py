"""What the feed tells of the streams; `prefix.view.PrefixView` is who listens."""

from collections.abc import Sequence
from typing import Protocol

from headstart.prefix.stream import StreamFault, StreamStanding
from headstart.wire.kv_events import KvEventBatch


class KvSink(Protocol):
    """Hears of each stream: one per replica (`slot`) and data-parallel rank.

    All are called on the event loop and return soon; `now` is monotonic seconds. What follows from
    one message is told in the order of the methods here: reset, batches, standing.
    """

    def set_capacity(self, slot: int, tokens: int | None, block_size: int | None) -> None:
        """Hear what the replica can hold; None is unknown."""
        ...

    def stream_reset(self, slot: int, rank: int, now: float) -> None:
        """Forget everything that this stream told."""
        ...

    def stream_batches(
        self, slot: int, rank: int, batches: Sequence[KvEventBatch], now: float
    ) -> None:
        """Apply batches: they come in the order of their numbers, each once."""
        ...

    def stream_standing(
        self,
        slot: int,
        rank: int,
        standing: StreamStanding,
        fault: StreamFault | None,
        now: float,
    ) -> None:
        """Hear how complete the stream is from now on, and of what went wrong just now, if so.

        Called when either changes, and for each fault.
        """
        ...

    def stream_removed(self, slot: int, rank: int) -> None:
        """Forget the stream: its replica left, or publishes elsewhere."""
        ...
