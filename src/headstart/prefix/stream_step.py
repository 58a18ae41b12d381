"""What a stream of KV events tells whoever drives it and whoever judges it."""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from headstart.wire.kv_events import KvEventBatch


class StreamStanding(Enum):
    """How much of what its publisher said was heard."""

    WAITING = "waiting"
    """Nothing yet."""
    REPLAYING = "replaying"
    """A replay is under way; live batches are held back."""
    COMPLETE = "complete"
    """Everything since the publisher started."""
    PARTIAL = "partial"
    """Everything since some later batch."""
    LOST = "lost"
    """Cut off; what was published since is unknown."""


class StreamFault(Enum):
    """Why a stream lost its thread."""

    GAP = "gap"
    """Batches are missing; a replay may bring them."""
    UNFILLED = "unfilled gap"
    """They are missing for good."""
    RESTART = "restart"
    """The publisher began anew."""
    UNDECODABLE = "undecodable"
    """A batch says something that cannot be read."""
    UNKNOWN_EVENT = "unknown event"
    """A batch holds a type of event that no release known to us sends; noted once per type."""
    REPLAY_FAILED = "replay failed"
    OVERFLOW = "overflow"
    """More was held back than there is room for."""
    DISCONNECTED = "disconnected"


class StreamStep(msgspec.Struct, frozen=True):
    """What follows from something that happened on a stream; to be carried out in this order.

    Attributes:
        standing: of the stream from now on.
        is_reset: drop what the index holds of this stream.
        batches: then apply these, in order.
        replay_from: then ask the replay endpoint for everything from this number on; None asks
            nothing. It replaces a request under way, the rest of which must not be handed in.
        fault: what went wrong just now; None if nothing did.
    """

    standing: StreamStanding
    is_reset: bool = False
    batches: Sequence[KvEventBatch] = ()
    replay_from: int | None = None
    fault: StreamFault | None = None


class StreamStatistics(msgspec.Struct, frozen=True):
    """One stream in figures.

    Attributes:
        standing: see `StreamStanding`.
        next_seq: the batch expected next; None before the first.
        num_batches: applied.
        num_replayed: of these, from replays.
        num_duplicates: live ones dropped, because a replay had brought them.
        num_held_back: until the replay under way ends.
        faults: how often each happened.
    """

    standing: StreamStanding
    next_seq: int | None
    num_batches: int
    num_replayed: int
    num_duplicates: int
    num_held_back: int
    faults: Mapping[StreamFault, int]
