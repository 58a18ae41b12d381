"""What trust in a replica can be, why, and when it changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from headstart.prefix.stream_step import StreamFault


class TrustMode(Enum):
    """Which prediction a replica is routed by."""

    PRECISE = "precise"
    APPROXIMATE = "approximate"
    LOAD_ONLY = "load-only"


class TrustReason(Enum):
    """Why it is this mode."""

    PROVED = "events are complete and right"
    NO_STREAM = "no event stream"
    TOKENS_UNCHECKED = "tokens not yet compared with the engine's"
    TOKENS_DIFFER = "tokens differ from the engine's"
    STREAM_WAITING = "nothing heard on the event stream"
    STREAM_REPLAYING = "event stream has a gap; replay under way"
    STREAM_LOST = "event stream cut"
    STREAM_SILENT = "serves, but no events come"
    STREAM_UNPROVED = "event stream began mid-way; not yet proved right"
    STREAM_DOUBTED = "event stream sends unknown events; not yet proved right"
    PREDICTIONS_OFF = "precise predictions were wrong"
    HOPELESS = "approximate predictions are worse than none"


@dataclass(frozen=True, slots=True)
class TrustConfig:
    """When to believe.

    Attributes:
        silence_s: a prompt was computed and no event has come for this long: the stream is cut.
        window: answers over which predictions are judged.
        min_answers: with fewer, a share says nothing.
        max_off_ratio: share of precise predictions that may be off by more than a block.
        max_off_in_a_row: so many in a row are enough without a share.
        proof_answers: right in a row that prove a stream again; doubles each time its predictions
            fail, up to `max_proof_answers`.
        max_proof_answers: see there.
        hopeless_slack_ratio: share of all input tokens by which approximate predictions may be
            worse than predicting nothing.
    """

    silence_s: float = 1.0
    window: int = 50
    min_answers: int = 20
    max_off_ratio: float = 0.1
    max_off_in_a_row: int = 4
    proof_answers: int = 8
    max_proof_answers: int = 64
    hopeless_slack_ratio: float = 0.1


class TrustChange(msgspec.Struct, frozen=True):
    """A replica went from one mode to another, or is where it is for another reason.

    Attributes:
        before, after: the modes.
        reason: of the new one.
        at_s: monotonic seconds.
    """

    before: TrustMode
    after: TrustMode
    reason: TrustReason
    at_s: float


class TrustStatistics(msgspec.Struct, frozen=True):
    """One replica's trust in figures.

    Attributes:
        mode, reason: now.
        since_s: monotonic seconds of the last change of mode.
        num_changes: of mode.
        num_answers: with a precise prediction.
        num_off: of these, off by more than a block.
        num_silences: times that events were owed for too long.
        faults: of all its streams, by kind.
    """

    mode: TrustMode
    reason: TrustReason
    since_s: float
    num_changes: int
    num_answers: int
    num_off: int
    num_silences: int
    faults: Mapping[StreamFault, int]
