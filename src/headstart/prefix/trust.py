"""How far one replica's index is believed, moved by evidence.

Theory of operation: the mode follows from what is known right now, so every way down has its way
back up, and nothing has to remember how it got there.

    PRECISE      every stream of events is whole, flows, and has proved right; tokens agree
    APPROXIMATE  otherwise
    LOAD_ONLY    even then, where the approximate index predicts worse than nothing would

A stream is whole when everything since its publisher's start, or since a reset, was applied
(`prefix.stream`): a gap or a cut shows at once, and is over as soon as a replay has filled it.
A stream that began mid-way, or again after something unreadable, knows too little until the cache
has turned over; one with events of an unknown type may be wrong. Both have to prove right on
answers before they are believed, while the approximate index predicts. So has a stream whose
predictions failed.

Evidence is the engine's own `cached_tokens`. An answer for which both sides say nothing proves
little and counts a quarter.

Not its job: correcting an index (`prefix.calibration`), and telling anybody: changes are returned.
"""

from collections import deque

import msgspec

from headstart.prefix.stream_step import StreamFault, StreamStanding
from headstart.prefix.trust_mode import (
    TrustChange,
    TrustConfig,
    TrustMode,
    TrustReason,
    TrustStatistics,
)

__all__ = [
    "Trust",
    "TrustChange",
    "TrustConfig",
    "TrustMode",
    "TrustReason",
    "TrustStatistics",
]


class _Stream(msgspec.Struct):
    standing: StreamStanding = StreamStanding.WAITING
    is_proved: bool = False
    is_doubted: bool = False
    last_event_s: float = float("-inf")


_STANDINGS = {
    StreamStanding.WAITING: TrustReason.STREAM_WAITING,
    StreamStanding.REPLAYING: TrustReason.STREAM_REPLAYING,
    StreamStanding.LOST: TrustReason.STREAM_LOST,
}

_UNINFORMATIVE = 0.25


class Trust:
    """Judges one replica.

    Args:
        config: thresholds.
        now: monotonic seconds.
    """

    def __init__(self, config: TrustConfig, now: float) -> None:
        self._config = config
        self._streams: dict[int, _Stream] = {}
        self._has_tokens: bool | None = None
        self._owed_since_s: float | None = None
        self._is_silent = False
        self._are_predictions_off = False
        self._proof = 0.0
        self._proof_needed = config.proof_answers
        self._precise_off: deque[bool] = deque(maxlen=config.window)
        self._num_off_in_a_row = 0
        self._approximate: deque[tuple[int, int, int]] = deque()
        self._approximate_sums = (0, 0, 0)
        self._is_hopeless = False
        self._since_s = now
        self._num_changes = 0
        self._num_answers = 0
        self._num_off = 0
        self._num_silences = 0
        self._faults: dict[StreamFault, int] = {}
        self._mode, self._reason = self._judge()

    @property
    def mode(self) -> TrustMode:
        """What the replica is routed by now."""
        return self._mode

    @property
    def reason(self) -> TrustReason:
        """Why."""
        return self._reason

    def stream_reset(self, rank: int, now: float) -> TrustChange | None:
        """Take in that the index of data-parallel `rank` begins anew."""
        stream = self._streams.setdefault(rank, _Stream())
        stream.is_proved = stream.is_doubted = False
        self._proof = 0.0
        return self._change(now)

    def stream_flows(self, rank: int, now: float) -> TrustChange | None:
        """Take in that events of `rank` came and were applied."""
        self._streams.setdefault(rank, _Stream()).last_event_s = now
        self._owed_since_s = None
        self._is_silent = False
        return self._change(now)

    def stream_standing(
        self, rank: int, standing: StreamStanding, fault: StreamFault | None, now: float
    ) -> TrustChange | None:
        """Take in how complete the stream of `rank` is, and what went wrong just now."""
        stream = self._streams.setdefault(rank, _Stream())
        stream.standing = standing
        if fault is not None:
            self._faults[fault] = self._faults.get(fault, 0) + 1
            if fault is StreamFault.UNKNOWN_EVENT:
                stream.is_doubted = True
                self._proof = 0.0
        return self._change(now)

    def stream_removed(self, rank: int, now: float) -> TrustChange | None:
        """Forget the stream of `rank`: nobody follows it any longer."""
        self._streams.pop(rank, None)
        return self._change(now)

    def tokens_agree(self, agree: bool | None, now: float) -> TrustChange | None:
        """Take in whether our tokens are the engine's; None where that is not known yet."""
        self._has_tokens = agree
        return self._change(now)

    def prefilled(self, sent_s: float, now: float) -> TrustChange | None:
        """Take in that a prompt sent at `sent_s` was computed, at least one new block of it.

        The engine announces such blocks before it answers. If nothing came since the request was
        sent, events are owed from now on.
        """
        last_s = max((stream.last_event_s for stream in self._streams.values()), default=now)
        if last_s < sent_s and self._owed_since_s is None:
            self._owed_since_s = now
        return self.tick(now)

    def tick(self, now: float) -> TrustChange | None:
        """Notice that time has passed; call it a few times per `silence_s`."""
        owed_s = self._owed_since_s
        if owed_s is not None and not self._is_silent and now - owed_s >= self._config.silence_s:
            self._is_silent = True
            self._num_silences += 1
        return self._change(now)

    def answered(
        self,
        *,
        input_tokens: int,
        cached_tokens: int,
        block_size: int,
        precise_tokens: int | None,
        approximate_tokens: int | None,
        now: float,
        sent_s: float | None = None,
    ) -> TrustChange | None:
        """Compare the predictions for a request with what the engine reported.

        Args:
            input_tokens: as the engine counted them.
            cached_tokens: of these, those it had; a request without this figure proves nothing.
            block_size: tokens per block, the error that is allowed.
            precise_tokens: what the precise index predicted, whatever the mode; None if it could
                not.
            approximate_tokens: likewise.
            now: monotonic seconds.
            sent_s: when they were made; those from before the index was believed are not held
                against it.
        """
        if precise_tokens is not None:
            is_off = abs(precise_tokens - cached_tokens) > block_size
            self._num_answers += 1
            self._num_off += is_off
            if self._mode is not TrustMode.PRECISE:
                self._prove(is_off=is_off, is_informative=bool(precise_tokens or cached_tokens))
            elif sent_s is None or sent_s >= self._since_s:
                self._watch(is_off=is_off)
        if approximate_tokens is not None:
            error = abs(approximate_tokens - cached_tokens)
            self._judge_approximate(error, cached_tokens, input_tokens)
        return self._change(now)

    def statistics(self) -> TrustStatistics:
        """Return figures about the replica's trust."""
        return TrustStatistics(
            mode=self._mode,
            reason=self._reason,
            since_s=self._since_s,
            num_changes=self._num_changes,
            num_answers=self._num_answers,
            num_off=self._num_off,
            num_silences=self._num_silences,
            faults=dict(self._faults),
        )

    def check_integrity(self) -> None:
        """Assert that the mode follows from the evidence."""
        assert (self._mode, self._reason) == self._judge()
        assert (self._mode is TrustMode.PRECISE) == (self._reason is TrustReason.PROVED)
        assert len(self._approximate) <= self._config.window
        for at, total in enumerate(self._approximate_sums):
            assert total == sum(answer[at] for answer in self._approximate)
        assert 0 <= self._proof < self._proof_needed
        assert self._config.proof_answers <= self._proof_needed <= self._config.max_proof_answers
        assert self._owed_since_s is not None or not self._is_silent

    def _watch(self, *, is_off: bool) -> None:
        """Judge predictions that requests were routed by."""
        config = self._config
        self._precise_off.append(is_off)
        self._num_off_in_a_row = self._num_off_in_a_row + 1 if is_off else 0
        if self._fails():
            self._are_predictions_off = True
            self._proof_needed = min(2 * self._proof_needed, config.max_proof_answers)
        elif len(self._precise_off) == config.window and not any(self._precise_off):
            self._proof_needed = config.proof_answers  # It has been right for long.

    def _prove(self, *, is_off: bool, is_informative: bool) -> None:
        """Judge predictions that were only made to be compared."""
        if is_off:
            self._proof = 0.0
            return
        self._proof += 1.0 if is_informative else _UNINFORMATIVE
        if self._proof >= self._proof_needed:
            self._proof = 0.0
            self._are_predictions_off = False
            for stream in self._streams.values():
                stream.is_proved, stream.is_doubted = True, False

    @property
    def _needs_proof(self) -> bool:
        return self._are_predictions_off or any(
            stream.is_doubted
            or (stream.standing is StreamStanding.PARTIAL and not stream.is_proved)
            for stream in self._streams.values()
        )

    def _fails(self) -> bool:
        config, answers = self._config, self._precise_off
        return self._num_off_in_a_row >= config.max_off_in_a_row or (
            len(answers) >= config.min_answers
            and sum(answers) > config.max_off_ratio * len(answers)
        )

    def _judge_approximate(self, error: int, error_of_none: int, input_tokens: int) -> None:
        answers, config = self._approximate, self._config
        errors, errors_of_none, all_tokens = self._approximate_sums
        if len(answers) == config.window:
            oldest = answers.popleft()
            errors -= oldest[0]
            errors_of_none -= oldest[1]
            all_tokens -= oldest[2]
        answers.append((error, error_of_none, input_tokens))
        errors += error
        errors_of_none += error_of_none
        all_tokens += input_tokens
        self._approximate_sums = (errors, errors_of_none, all_tokens)
        if len(answers) >= config.min_answers:
            slack = config.hopeless_slack_ratio * all_tokens
            self._is_hopeless = errors > errors_of_none + slack

    def _judge(self) -> tuple[TrustMode, TrustReason]:
        reason = self._precise_reason()
        if reason is TrustReason.PROVED:
            return TrustMode.PRECISE, reason
        if self._is_hopeless:
            return TrustMode.LOAD_ONLY, TrustReason.HOPELESS
        return TrustMode.APPROXIMATE, reason

    def _precise_reason(self) -> TrustReason:
        """Return the first thing that speaks against the precise index."""
        streams = self._streams.values()
        if not streams:
            return TrustReason.NO_STREAM
        if self._has_tokens is not True:
            is_known = self._has_tokens is not None
            return TrustReason.TOKENS_DIFFER if is_known else TrustReason.TOKENS_UNCHECKED
        for stream in streams:
            if stream.standing in _STANDINGS:
                return _STANDINGS[stream.standing]
        if self._is_silent:
            return TrustReason.STREAM_SILENT
        if self._are_predictions_off:
            return TrustReason.PREDICTIONS_OFF
        if any(stream.is_doubted for stream in streams):
            return TrustReason.STREAM_DOUBTED
        if self._needs_proof:
            return TrustReason.STREAM_UNPROVED
        return TrustReason.PROVED

    def _change(self, now: float) -> TrustChange | None:
        before, reason_before = self._mode, self._reason
        self._mode, self._reason = self._judge()
        if self._mode is not before:
            self._num_changes += 1
            self._since_s = now
            self._proof = 0.0
            self._precise_off.clear()
            self._num_off_in_a_row = 0
        elif self._reason is reason_before:
            return None
        return TrustChange(before, self._mode, self._reason, now)
