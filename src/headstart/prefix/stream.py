"""One publisher's event stream: what to apply, what to ask for, how complete it is; no sockets.

Theory of operation: batches are numbered from 0 and applied strictly in order. Whoever owns the
sockets hands in what arrives and carries out the `StreamStep` that it gets back.

    live batch, the expected number   apply
    live batch, a higher number       a gap: hold live batches back, ask for a replay
    live batch, a lower number        a replay had brought it, or the publisher restarted
    replay ends                       apply what was held back, or ask again while there is progress

A replay is asked for from one batch *before* the first missing one. We applied that one; if it
comes back with other contents, or not at all, the publisher restarted meanwhile and the numbers
that seem to follow belong to another cache. Nothing else shows a restart after which more was
published than before it.

What cannot be filled (publishers keep their last 10,000 batches) is never guessed at: with a
removal missed we would promise what is gone. The index is reset and built again from there on, and
the stream is `PARTIAL`: it may know too little, never too much. An event that clears everything
makes it complete again.

Source: vLLM `vllm/distributed/kv_events.py`, `ZmqEventPublisher`: a batch is sent and kept for
replays before the next replay is served. SGLang has a copy of it.
"""

from typing import Final

from headstart.prefix.stream_cursor import Cursor
from headstart.prefix.stream_replay import HeldBack, Purpose, Replay
from headstart.prefix.stream_step import (
    StreamFault,
    StreamStanding,
    StreamStatistics,
    StreamStep,
)
from headstart.wire.kv_events import KvEventBatch

__all__ = ["EventStream", "StreamFault", "StreamStanding", "StreamStatistics", "StreamStep"]

MAX_HELD_BACK_BYTES: Final = 64 << 20
"""During one replay; 10,000 batches of a busy engine have about a third of that."""

_MAX_FRUITLESS: Final = 2
"""Replays in a row that may bring nothing: the first may have been served before the hole."""


class EventStream:
    """Follows one publisher.

    Args:
        has_replay: the publisher has a replay endpoint.
        max_held_back_bytes: of live batches during a replay.
    """

    def __init__(self, *, has_replay: bool, max_held_back_bytes: int = MAX_HELD_BACK_BYTES) -> None:
        self.has_replay = has_replay
        self._cursor = Cursor()
        self._last_live = -1
        self._is_lost = False
        self._replay: Replay | None = None
        self._held_back = HeldBack(max_held_back_bytes)
        self._num_fruitless = 0
        self._num_replayed = 0
        self._num_duplicates = 0
        self._faults: dict[StreamFault, int] = {}
        self._begin_step()

    @property
    def standing(self) -> StreamStanding:
        """How much was heard."""
        if self._is_lost:
            return StreamStanding.LOST
        if self._replay is not None and self._replay.holds_back:
            return StreamStanding.REPLAYING
        if self._cursor.next is None:
            return StreamStanding.WAITING
        return StreamStanding.COMPLETE if self._cursor.is_whole else StreamStanding.PARTIAL

    @property
    def is_replaying(self) -> bool:
        """A replay was asked for and has neither ended nor failed."""
        return self._replay is not None

    def connected(self) -> StreamStep:
        """Find out what was missed: the live socket is connected, or connected again."""
        if self.has_replay:
            self._ask(Purpose.BUILD if self._cursor.next is None else Purpose.FILL)
        # Without a replay the next live batch shows whether something was missed.
        return self._end_step()

    def lost(self) -> StreamStep:
        """Stop believing: the live socket was cut, or is to be taken as cut."""
        self._replay = None
        self._held_back.clear()
        self._is_lost = True
        self._note(StreamFault.DISCONNECTED)
        return self._end_step()

    def probe(self) -> StreamStep:
        """Ask whether something was missed; the publisher answers with one batch if not.

        Nothing happens during a replay, or without a replay endpoint.
        """
        if self.has_replay and self._replay is None:
            if self._cursor.next is None:
                self._ask(Purpose.BUILD)
            else:
                self._ask(Purpose.FILL if self._is_lost else Purpose.PROBE)
        return self._end_step()

    def rebuild(self) -> StreamStep:
        """Forget everything and ask for all that the publisher still has."""
        self._reset()
        self._held_back.clear()
        self._replay = None
        if self.has_replay:
            self._ask(Purpose.BUILD)
        return self._end_step()

    def receive(self, seq: int, payload: bytes) -> StreamStep:
        """Take a live batch."""
        replay = self._replay
        if replay is not None:
            replay.num_live += 1
        if seq <= self._last_live:
            self._restarted(seq, payload)  # A PUB socket never repeats itself.
        elif replay is not None and replay.holds_back:
            self._hold_back(seq, payload)
        elif self._is_lost and self.has_replay and self._cursor.next is not None:
            self._ask(Purpose.FILL)  # It seems to follow, but nobody has proved that it does.
            self._hold_back(seq, payload)
        else:
            self._take(seq, payload)
        self._last_live = seq
        return self._end_step()

    def replayed(self, seq: int, payload: bytes) -> StreamStep:
        """Take a batch of the replay under way, not its end marker."""
        replay = self._replay
        if replay is not None and not replay.is_broken:
            if replay.is_proved:
                self._take_replayed(replay, seq, payload)
            else:
                self._prove(replay, seq, payload)
        return self._end_step()

    def replay_ended(self) -> StreamStep:
        """Take the end marker of the replay under way."""
        replay, self._replay = self._replay, None
        if replay is None:
            return self._end_step()
        if not replay.is_proved:
            self._note(StreamFault.RESTART)
            self._reset()
            self._held_back.clear()
            self._last_live = -1
            self._ask(Purpose.BUILD)
            return self._end_step()
        self._is_lost = False
        if self._cursor.next is None:
            self._cursor.begin_at(0)  # Nothing to replay: it has published nothing yet.
        if replay.is_broken:
            self._ask_again(replay)
        else:
            self._drain(replay)
        return self._end_step()

    def replay_failed(self) -> StreamStep:
        """Do without the replay under way: no answer in time, or refused."""
        replay, self._replay = self._replay, None
        if replay is not None:
            self._note(StreamFault.REPLAY_FAILED)
            if replay.is_proved and self._cursor.num_batches > replay.num_batches_before:
                self._ask(Purpose.FILL)  # It broke off: publishers drop what we read too slowly.
            elif self._held_back:
                self._give_up()
            elif not replay.num_live and self._cursor.next is not None:
                self._is_lost = True
        return self._end_step()

    def statistics(self) -> StreamStatistics:
        """Return figures about the stream."""
        return StreamStatistics(
            standing=self.standing,
            next_seq=self._cursor.next,
            num_batches=self._cursor.num_batches,
            num_replayed=self._num_replayed,
            num_duplicates=self._num_duplicates,
            num_held_back=len(self._held_back),
            faults=dict(self._faults),
        )

    def check_integrity(self) -> None:
        """Assert what holds between any two calls."""
        self._held_back.check_integrity()
        self._cursor.check_integrity()
        assert self.has_replay or self._replay is None
        assert self._replay is not None or not self._held_back

    # One step: what a public method found, and what is to be done about it.

    def _begin_step(self) -> None:
        self._batches: list[KvEventBatch] = []
        self._is_reset = False
        self._replay_from: int | None = None
        self._fault: StreamFault | None = None

    def _end_step(self) -> StreamStep:
        step = StreamStep(
            self.standing, self._is_reset, self._batches, self._replay_from, self._fault
        )
        self._begin_step()
        return step

    def _note(self, fault: StreamFault) -> None:
        self._faults[fault] = self._faults.get(fault, 0) + 1
        self._fault = fault

    # Live batches.

    def _take(self, seq: int, payload: bytes) -> None:
        """Apply a live batch that nothing holds back, or find out why it does not follow."""
        if self._cursor.next is None:
            self._cursor.begin_at(seq)
        elif seq < self._cursor.next:
            self._take_old(seq, payload)
            return
        elif seq > self._cursor.next:
            self._note(StreamFault.GAP)
            if self.has_replay:
                self._ask(Purpose.FILL)
                self._hold_back(seq, payload)
                return
            self._note(StreamFault.UNFILLED)
            self._reset()
            self._cursor.begin_at(seq)
        self._is_lost = False
        self._apply(seq, payload)

    def _take_old(self, seq: int, payload: bytes) -> None:
        """Drop a live copy of a replayed batch; anything else comes from another publisher."""
        if self._cursor.is_copy(seq, payload):
            self._num_duplicates += 1
        else:
            self._restarted(seq, payload)

    def _restarted(self, seq: int, payload: bytes) -> None:
        self._note(StreamFault.RESTART)
        self._reset()
        self._held_back.clear()
        self._replay = None
        if seq and self.has_replay:
            self._ask(Purpose.BUILD)
            self._hold_back(seq, payload)
        else:
            self._is_lost = False
            self._cursor.begin_at(seq)
            self._apply(seq, payload)

    def _hold_back(self, seq: int, payload: bytes) -> None:
        if not self._held_back.add(seq, payload):
            self._note(StreamFault.OVERFLOW)
            self._held_back.clear()
            self._replay = None
            self._reset()

    def _drain(self, replay: Replay) -> None:
        """Apply what was held back, up to a hole in it."""
        while self._held_back:
            if self._cursor.next is None:
                return  # one of them came from another publisher, which is asked from the start
            seq = self._held_back.first_seq
            if seq > self._cursor.next:
                self._ask_again(replay)
                return
            seq, payload = self._held_back.pop()
            if seq < self._cursor.next:
                self._take_old(seq, payload)
            else:
                self._apply(seq, payload)

    # Replays.

    def _ask(self, purpose: Purpose) -> None:
        cursor = self._cursor
        proof_seq = cursor.next - 1 if cursor.next else None
        self._replay = Replay(
            purpose, proof_seq, cursor.last_payload, cursor.num_batches, is_proved=proof_seq is None
        )
        self._replay_from = self._replay.start

    def _ask_again(self, replay: Replay) -> None:
        is_fruitless = self._cursor.num_batches == replay.num_batches_before
        self._num_fruitless = self._num_fruitless + 1 if is_fruitless else 0
        if self._num_fruitless < _MAX_FRUITLESS:
            self._ask(Purpose.FILL)
        else:
            self._give_up()

    def _prove(self, replay: Replay, seq: int, payload: bytes) -> None:
        assert replay.proof_seq is not None
        if seq == replay.proof_seq:
            replay.is_proved = payload == replay.proof
            replay.is_broken = not replay.is_proved
        elif seq > replay.proof_seq:
            # The publisher no longer keeps what we had last.
            self._note(StreamFault.UNFILLED)
            self._reset()
            replay.is_proved = True
            self._take_replayed(replay, seq, payload)

    def _take_replayed(self, replay: Replay, seq: int, payload: bytes) -> None:
        if self._cursor.next is None:
            self._cursor.begin_at(seq)
        if seq > self._expected:
            replay.is_broken = True  # Dropped on its way: asked for again at the end.
        elif seq == self._expected:
            self._apply(seq, payload)
            self._num_replayed += 1
            self._cursor.remember_replayed(seq, payload)

    def _give_up(self) -> None:
        """Build again from what was held back: the hole before it cannot be filled."""
        self._note(StreamFault.UNFILLED)
        self._reset()
        self._is_lost = False
        self._num_fruitless = 0
        while self._held_back:
            seq, payload = self._held_back.pop()
            if self._cursor.next is not None and seq != self._cursor.next:
                self._reset()
            if self._cursor.next is None:
                self._cursor.begin_at(seq)
            self._apply(seq, payload)

    # What is applied.

    @property
    def _expected(self) -> int:
        assert self._cursor.next is not None
        return self._cursor.next

    def _reset(self) -> None:
        self._cursor.reset()
        self._batches.clear()
        self._is_reset = True

    def _apply(self, seq: int, payload: bytes) -> None:
        batch, fault = self._cursor.apply(seq, payload)
        if fault is not None:
            self._note(fault)
        if batch is not None:
            self._batches.append(batch)
        else:
            self._batches.clear()
            self._is_reset = True
