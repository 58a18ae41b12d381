"""What a feed shows of itself."""

from dataclasses import dataclass

from headstart.engines.kv_feed.capacity import KvCapacity
from headstart.prefix.stream import StreamStanding


@dataclass(frozen=True, slots=True)
class KvStreamStatistics:
    """One publisher's stream at one moment; counts are since the feed knows it.

    Attributes:
        rank: which engine of a data-parallel group.
        endpoint: of the publisher.
        is_connected: the connection is up.
        standing: how complete it is.
        last_seq: number of the last batch that was applied; None before the first.
        batches: applied.
        blocks: stored or removed by them.
        replays: asked for.
        replays_failed: of these, those that brought no end.
        gaps: times that batches were missing.
        resets: times that everything was forgotten.
        decode_failures: messages that could not be read.
        lag_s: from the engine's clock in the last batch to ours when it was applied; None before.
    """

    rank: int
    endpoint: str
    is_connected: bool
    standing: StreamStanding
    last_seq: int | None
    batches: int
    blocks: int
    replays: int
    replays_failed: int
    gaps: int
    resets: int
    decode_failures: int
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class KvReplicaStatistics:
    """One replica's streams at one moment.

    Attributes:
        name: of the replica.
        capacity: as its metrics page said last; None before.
        streams: one a rank; empty if it publishes nothing that can be read.
        trouble: why there is no stream; empty if nothing is wrong.
    """

    name: str
    capacity: KvCapacity | None
    streams: tuple[KvStreamStatistics, ...]
    trouble: str
