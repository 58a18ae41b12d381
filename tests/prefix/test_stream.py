"""A stream of batches is applied in order and whole, or known not to be."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headstart.prefix.stream import EventStream, StreamFault, StreamStanding
from headstart.wire.kv_events import (
    ClearedBlocks,
    KvEventBatch,
    RemovedBlocks,
    decode_batch,
    encode_batch,
)


def payload(number, ts=0.0):
    return encode_batch(KvEventBatch(ts, (RemovedBlocks((number,)),)))


def numbers(step):
    return [batch.events[0].block_hashes[0] for batch in step.batches]


def built(*seqs):
    """A stream with a replay endpoint that has replayed `seqs` from the start."""
    stream = EventStream(has_replay=True)
    assert stream.connected().replay_from == 0
    for seq in seqs:
        stream.replayed(seq, payload(seq))
    stream.replay_ended()
    return stream


def test_batches_in_order_are_applied_as_they_come():
    stream = EventStream(has_replay=False)
    for seq in range(5):
        step = stream.receive(seq, payload(seq))
        assert numbers(step) == [seq]
        assert step.standing is StreamStanding.COMPLETE
        assert (step.is_reset, step.replay_from, step.fault) == (False, None, None)


def test_the_first_connection_asks_for_everything_and_holds_live_batches_back_until_then():
    stream = EventStream(has_replay=True)
    assert stream.standing is StreamStanding.WAITING
    step = stream.connected()
    assert (step.replay_from, step.standing) == (0, StreamStanding.REPLAYING)
    assert numbers(stream.receive(2, payload(2))) == []
    assert numbers(stream.replayed(0, payload(0))) == [0]
    assert numbers(stream.replayed(1, payload(1))) == [1]
    step = stream.replay_ended()
    assert numbers(step) == [2]
    assert step.standing is StreamStanding.COMPLETE


def test_a_publisher_that_has_published_nothing_is_followed_from_its_start():
    stream = EventStream(has_replay=True)
    stream.connected()
    assert stream.replay_ended().standing is StreamStanding.COMPLETE
    assert numbers(stream.receive(0, payload(0))) == [0]


def test_a_replay_that_does_not_reach_back_to_the_start_leaves_the_stream_partial():
    stream = EventStream(has_replay=True)
    stream.connected()
    assert numbers(stream.replayed(7, payload(7))) == [7]
    step = stream.replay_ended()
    assert step.standing is StreamStanding.PARTIAL
    assert not step.is_reset


def test_without_a_replay_a_stream_begins_mid_way_and_a_clear_makes_it_whole():
    stream = EventStream(has_replay=False)
    assert stream.connected().standing is StreamStanding.WAITING
    assert stream.receive(41, payload(41)).standing is StreamStanding.PARTIAL
    step = stream.receive(42, encode_batch(KvEventBatch(0.0, (ClearedBlocks(),))))
    assert step.standing is StreamStanding.COMPLETE


def test_a_gap_is_filled_from_one_batch_before_it():
    stream = built(0, 1)
    step = stream.receive(4, payload(4))
    assert (step.replay_from, step.fault) == (1, StreamFault.GAP)
    assert step.standing is StreamStanding.REPLAYING
    assert numbers(stream.replayed(1, payload(1))) == []
    assert numbers(stream.replayed(2, payload(2))) == [2]
    assert numbers(stream.receive(5, payload(5))) == []
    assert numbers(stream.replayed(3, payload(3))) == [3]
    step = stream.replay_ended()
    assert (numbers(step), step.standing) == ([4, 5], StreamStanding.COMPLETE)


def test_live_copies_of_replayed_batches_are_dropped():
    stream = built(0, 1)
    stream.receive(3, payload(3))
    for seq in (1, 2, 3, 4):
        stream.replayed(seq, payload(seq))
    assert numbers(stream.replay_ended()) == []
    assert numbers(stream.receive(4, payload(4))) == []
    assert numbers(stream.receive(5, payload(5))) == [5]
    assert stream.statistics().num_duplicates == 2


def test_without_a_replay_a_gap_resets_and_begins_there():
    stream = EventStream(has_replay=False)
    stream.receive(0, payload(0))
    step = stream.receive(2, payload(2))
    assert step.is_reset
    assert numbers(step) == [2]
    assert (step.standing, step.fault) == (StreamStanding.PARTIAL, StreamFault.UNFILLED)


def test_a_gap_older_than_what_the_publisher_keeps_resets_and_begins_at_the_oldest():
    stream = built(0, 1)
    stream.receive(9, payload(9))
    step = stream.replayed(6, payload(6))
    assert step.is_reset
    assert numbers(step) == [6]
    assert step.fault is StreamFault.UNFILLED
    for seq in (7, 8, 9):
        stream.replayed(seq, payload(seq))
    step = stream.replay_ended()
    assert (step.standing, step.is_reset) == (StreamStanding.PARTIAL, False)
    assert numbers(stream.receive(10, payload(10))) == [10]


@pytest.mark.parametrize("seq", [0, 1])
def test_a_number_that_goes_back_means_a_restart_and_a_rebuild(seq):
    stream = EventStream(has_replay=True)
    stream.connected()
    stream.replay_ended()
    for number in range(3):
        stream.receive(number, payload(number))
    step = stream.receive(seq, payload(100 + seq, ts=5.0))
    assert (step.is_reset, step.fault) == (True, StreamFault.RESTART)
    if seq == 0:
        assert (numbers(step), step.standing) == ([100], StreamStanding.COMPLETE)
    else:
        assert step.replay_from == 0
        assert numbers(stream.replayed(0, payload(100))) == [100]
        assert numbers(stream.replayed(1, payload(101, ts=5.0))) == [101]
        assert stream.replay_ended().standing is StreamStanding.COMPLETE


def test_a_restart_that_published_more_than_before_is_seen_by_its_other_contents():
    stream = built(0, 1, 2)
    assert stream.lost().standing is StreamStanding.LOST
    assert stream.connected().replay_from == 2
    stream.receive(5, payload(5, ts=9.0))
    stream.replayed(2, payload(2, ts=9.0))
    assert numbers(stream.replayed(3, payload(3, ts=9.0))) == []
    step = stream.replay_ended()
    assert (step.is_reset, step.fault, step.replay_from) == (True, StreamFault.RESTART, 0)
    for seq in range(6):
        assert numbers(stream.replayed(seq, payload(seq, ts=9.0))) == [seq]
    assert stream.replay_ended().standing is StreamStanding.COMPLETE


def test_a_restart_that_published_less_is_seen_by_its_empty_replay():
    stream = built(0, 1, 2)
    stream.lost()
    stream.connected()
    step = stream.replay_ended()
    assert (step.is_reset, step.fault, step.replay_from) == (True, StreamFault.RESTART, 0)


def test_a_cut_without_loss_is_over_when_the_last_batch_came_back():
    stream = built(0, 1, 2)
    stream.lost()
    assert stream.connected().standing is StreamStanding.LOST
    stream.replayed(2, payload(2))
    step = stream.replay_ended()
    assert (step.standing, step.is_reset) == (StreamStanding.COMPLETE, False)


def test_without_a_replay_a_cut_is_over_with_the_next_batch_that_follows():
    stream = EventStream(has_replay=False)
    stream.receive(0, payload(0))
    stream.lost()
    assert stream.connected().standing is StreamStanding.LOST
    assert stream.receive(1, payload(1)).standing is StreamStanding.COMPLETE


def test_a_probe_asks_for_the_last_batch_and_brings_what_was_missed():
    stream = built(0, 1)
    step = stream.probe()
    assert (step.replay_from, step.standing) == (1, StreamStanding.COMPLETE)
    assert numbers(stream.receive(2, payload(2))) == [2]
    stream.replayed(1, payload(1))
    assert numbers(stream.replayed(2, payload(2))) == []
    assert numbers(stream.replayed(3, payload(3))) == [3]
    assert stream.replay_ended().standing is StreamStanding.COMPLETE
    assert numbers(stream.receive(3, payload(3))) == []


def test_a_probe_without_answer_means_lost_unless_live_batches_came_meanwhile():
    stream = built(0)
    stream.probe()
    stream.receive(1, payload(1))
    assert stream.replay_failed().standing is StreamStanding.COMPLETE
    stream.probe()
    assert stream.replay_failed().standing is StreamStanding.LOST
    assert stream.probe().replay_from == 1
    stream.replayed(1, payload(1))
    assert stream.replay_ended().standing is StreamStanding.COMPLETE


def test_a_replay_that_fails_with_live_batches_held_back_begins_again_with_those():
    stream = built(0)
    stream.receive(3, payload(3))
    stream.receive(4, payload(4))
    step = stream.replay_failed()
    assert step.is_reset
    assert numbers(step) == [3, 4]
    assert step.standing is StreamStanding.PARTIAL


def test_a_replay_that_broke_off_is_continued():
    stream = built(0)
    stream.receive(9, payload(9))
    stream.replayed(0, payload(0))
    stream.replayed(1, payload(1))
    step = stream.replay_failed()
    assert (step.replay_from, step.is_reset) == (1, False)


def test_a_hole_in_a_replay_is_asked_for_again_while_there_is_progress():
    stream = built(0)
    stream.receive(4, payload(4))
    stream.replayed(0, payload(0))
    stream.replayed(1, payload(1))
    assert numbers(stream.replayed(3, payload(3))) == []
    assert stream.replay_ended().replay_from == 1
    for _ in range(2):
        stream.replayed(1, payload(1))
        stream.replayed(3, payload(3))
        step = stream.replay_ended()
    assert (step.fault, numbers(step)) == (StreamFault.UNFILLED, [4])
    assert step.is_reset


def test_a_payload_that_cannot_be_read_resets_and_the_stream_goes_on_from_there():
    stream = built(0)
    step = stream.receive(1, b"\xc1")
    assert (step.is_reset, step.fault) == (True, StreamFault.UNDECODABLE)
    assert step.standing is StreamStanding.PARTIAL
    assert numbers(stream.receive(2, payload(2))) == [2]


def test_an_unknown_type_of_event_is_told_once_and_the_rest_is_applied():
    stream = built(0)
    odd = b"\x92\x00\x92\x91\xaaBlockMoved\x92\xacBlockRemoved\x91\x07"
    step = stream.receive(1, odd)
    assert (step.fault, numbers(step)) == (StreamFault.UNKNOWN_EVENT, [7])
    assert stream.receive(2, odd).fault is None


def test_what_is_held_back_is_bounded():
    stream = EventStream(has_replay=True, max_held_back_bytes=100)
    stream.connected()
    for seq in range(1, 20):
        step = stream.receive(seq, payload(seq))
        stream.check_integrity()
        if step.fault is not None:
            break
    assert (step.fault, step.is_reset) == (StreamFault.OVERFLOW, True)
    assert stream.receive(20, payload(20)).standing is StreamStanding.PARTIAL


def test_a_rebuild_forgets_and_asks_for_everything():
    stream = built(0, 1)
    step = stream.rebuild()
    assert (step.is_reset, step.replay_from) == (True, 0)
    stream.replayed(0, payload(0))
    stream.replayed(1, payload(1))
    assert stream.replay_ended().standing is StreamStanding.COMPLETE


class Publisher:
    """One incarnation of a publisher: all that it said, and how much of it it keeps."""

    def __init__(self, name, keeps):
        self.name, self.keeps, self.said = name, keeps, []

    def publish(self):
        number = self.name * 1000 + len(self.said)
        self.said.append(payload(number, ts=float(self.name)))
        return len(self.said) - 1

    def replay(self, start):
        oldest = max(0, len(self.said) - self.keeps)
        return deque((seq, self.said[seq]) for seq in range(max(start, oldest), len(self.said)))


class StreamMachine(RuleBasedStateMachine):
    """A publisher that restarts and forgets, and two channels to it that lose messages."""

    def __init__(self):
        super().__init__()
        self.name = 0
        self.publisher = Publisher(0, keeps=6)
        self.stream = EventStream(has_replay=True)
        self.applied = []
        self.live = deque()
        self.replies = None
        self.is_connected = False

    def carry_out(self, step):
        if step.is_reset:
            self.applied = []
        self.applied += numbers(step)
        if step.replay_from is not None:
            self.replies = self.publisher.replay(step.replay_from)

    @rule(is_lost=st.booleans())
    def publish(self, is_lost):
        seq = self.publisher.publish()
        if self.is_connected and not is_lost:
            self.live.append((seq, self.publisher.said[seq]))

    @rule()
    @precondition(lambda self: self.live)
    def deliver(self):
        self.carry_out(self.stream.receive(*self.live.popleft()))

    @rule(is_lost=st.booleans())
    @precondition(lambda self: self.replies)
    def deliver_reply(self, is_lost):
        reply = self.replies.popleft()
        if not is_lost:
            self.carry_out(self.stream.replayed(*reply))

    @rule()
    @precondition(lambda self: self.replies is not None and not self.replies)
    def end_replay(self):
        self.replies = None
        self.carry_out(self.stream.replay_ended())

    @rule()
    @precondition(lambda self: self.replies is not None)
    def fail_replay(self):
        self.replies = None
        self.carry_out(self.stream.replay_failed())

    @rule()
    @precondition(lambda self: self.is_connected)
    def cut(self):
        self.is_connected = False
        self.live.clear()
        self.replies = None
        self.carry_out(self.stream.lost())

    @rule()
    @precondition(lambda self: self.is_connected)
    def probe(self):
        self.carry_out(self.stream.probe())

    @rule()
    @precondition(lambda self: not self.is_connected)
    def restart(self):
        self.name += 1
        self.publisher = Publisher(self.name, keeps=6)

    @rule()
    def connect(self):
        if not self.is_connected:
            self.is_connected = True
            self.carry_out(self.stream.connected())

    @rule()
    def settle(self):
        """Deliver everything without loss; then the stream knows all that can be known."""
        if not self.is_connected:
            self.connect()
        for _ in range(8):
            while self.live:
                self.deliver()
            if self.replies is None:
                self.carry_out(self.stream.probe())
            while self.replies:
                self.deliver_reply(is_lost=False)
            self.end_replay()
        said = [decode_batch(p).events[0].block_hashes[0] for p in self.publisher.said]
        assert self.applied == said[len(said) - len(self.applied) :]
        assert self.stream.statistics().next_seq == len(said)
        assert self.stream.standing in (StreamStanding.COMPLETE, StreamStanding.PARTIAL)
        if self.stream.standing is StreamStanding.COMPLETE:
            assert self.applied == said

    @invariant()
    def what_is_applied_is_one_run_of_one_publisher(self):
        for before, after in zip(self.applied, self.applied[1:], strict=False):
            assert after == before + 1
        if self.stream.standing is StreamStanding.COMPLETE and self.applied:
            assert self.applied[0] % 1000 == 0

    @invariant()
    def the_stream_is_sound(self):
        self.stream.check_integrity()


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
