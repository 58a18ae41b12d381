"""A replica's mode follows the evidence, down and up again."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headstart.prefix.stream_step import StreamFault, StreamStanding
from headstart.prefix.trust import Trust, TrustConfig, TrustMode, TrustReason

COMPLETE, PARTIAL = StreamStanding.COMPLETE, StreamStanding.PARTIAL


@pytest.fixture
def trust():
    """A replica whose tokens agree and whose stream is complete, at time 0."""
    trust = Trust(TrustConfig(), 0.0)
    trust.tokens_agree(True, 0.0)
    trust.stream_standing(0, COMPLETE, None, 0.0)
    assert trust.mode is TrustMode.PRECISE
    return trust


def answer(trust, matched, cached, now=1.0, times=1, approximate=None):
    changes = [
        trust.answered(
            input_tokens=1000,
            cached_tokens=cached,
            block_size=16,
            precise_tokens=matched,
            approximate_tokens=approximate,
            now=now,
        )
        for _ in range(times)
    ]
    trust.check_integrity()
    return [change for change in changes if change is not None]


def test_without_a_stream_a_replica_is_approximate():
    trust = Trust(TrustConfig(), 0.0)
    assert (trust.mode, trust.reason) == (TrustMode.APPROXIMATE, TrustReason.NO_STREAM)


def test_precise_needs_tokens_that_were_compared():
    trust = Trust(TrustConfig(), 0.0)
    trust.stream_standing(0, COMPLETE, None, 0.0)
    assert trust.reason is TrustReason.TOKENS_UNCHECKED
    change = trust.tokens_agree(True, 1.0)
    assert (change.before, change.after) == (TrustMode.APPROXIMATE, TrustMode.PRECISE)
    assert trust.tokens_agree(False, 2.0).reason is TrustReason.TOKENS_DIFFER
    assert trust.mode is TrustMode.APPROXIMATE


@pytest.mark.parametrize(
    ("standing", "fault", "reason"),
    [
        (StreamStanding.REPLAYING, StreamFault.GAP, TrustReason.STREAM_REPLAYING),
        (StreamStanding.LOST, StreamFault.DISCONNECTED, TrustReason.STREAM_LOST),
        (StreamStanding.WAITING, None, TrustReason.STREAM_WAITING),
    ],
)
def test_a_stream_that_is_not_whole_degrades_at_once_and_recovers_with_it(
    trust, standing, fault, reason
):
    change = trust.stream_standing(0, standing, fault, 5.0)
    assert (change.after, change.reason, change.at_s) == (TrustMode.APPROXIMATE, reason, 5.0)
    assert trust.stream_standing(0, COMPLETE, None, 6.0).after is TrustMode.PRECISE


def test_one_rank_that_is_cut_is_enough(trust):
    assert trust.stream_standing(1, StreamStanding.LOST, None, 1.0).after is TrustMode.APPROXIMATE
    assert trust.stream_removed(1, 2.0).after is TrustMode.PRECISE


def test_a_stream_from_mid_way_has_to_prove_right_first():
    trust = Trust(TrustConfig(proof_answers=3), 0.0)
    trust.tokens_agree(True, 0.0)
    trust.stream_standing(0, PARTIAL, None, 0.0)
    assert trust.reason is TrustReason.STREAM_UNPROVED
    answer(trust, 160, 160, times=2)
    answer(trust, 0, 160)
    answer(trust, 160, 160, times=2)
    assert trust.mode is TrustMode.APPROXIMATE
    (change,) = answer(trust, 160, 160)
    assert change.after is TrustMode.PRECISE


def test_answers_about_nothing_prove_a_quarter():
    trust = Trust(TrustConfig(proof_answers=2), 0.0)
    trust.tokens_agree(True, 0.0)
    trust.stream_standing(0, PARTIAL, None, 0.0)
    answer(trust, 0, 0, times=7)
    assert trust.mode is TrustMode.APPROXIMATE
    answer(trust, 0, 0)
    assert trust.mode is TrustMode.PRECISE


def test_a_reset_asks_for_a_new_proof(trust):
    trust.stream_standing(0, PARTIAL, None, 0.0)
    answer(trust, 160, 160, times=8)
    assert trust.mode is TrustMode.PRECISE
    assert trust.stream_reset(0, 2.0).reason is TrustReason.STREAM_UNPROVED
    assert trust.stream_standing(0, COMPLETE, None, 3.0).after is TrustMode.PRECISE


def test_unknown_events_raise_doubt_until_the_index_has_proved_right(trust):
    change = trust.stream_standing(0, COMPLETE, StreamFault.UNKNOWN_EVENT, 1.0)
    assert change.reason is TrustReason.STREAM_DOUBTED
    answer(trust, 160, 160, times=8)
    assert trust.mode is TrustMode.PRECISE


def test_a_computed_prompt_without_events_is_silence_after_its_time(trust):
    trust.stream_flows(0, 1.0)
    trust.prefilled(sent_s=2.0, now=2.5)
    assert trust.tick(3.4) is None
    change = trust.tick(3.5)
    assert (change.after, change.reason) == (TrustMode.APPROXIMATE, TrustReason.STREAM_SILENT)
    trust.check_integrity()
    assert trust.stream_flows(0, 4.0).after is TrustMode.PRECISE


def test_events_that_came_since_the_request_was_sent_are_not_owed(trust):
    trust.stream_flows(0, 2.2)
    trust.prefilled(sent_s=2.0, now=2.5)
    assert trust.tick(100.0) is None
    assert trust.mode is TrustMode.PRECISE


def test_wrong_predictions_in_a_row_degrade_and_right_ones_recover(trust):
    assert not answer(trust, 160, 0, times=3)
    (change,) = answer(trust, 160, 0)
    assert (change.after, change.reason) == (TrustMode.APPROXIMATE, TrustReason.PREDICTIONS_OFF)
    assert not answer(trust, 160, 176, times=15)
    (change,) = answer(trust, 160, 176)
    assert change.after is TrustMode.PRECISE


def test_errors_of_one_block_are_none(trust):
    assert not answer(trust, 160, 176, times=60)
    assert not answer(trust, 176, 160, times=60)
    assert trust.statistics().num_off == 0


def test_too_large_a_share_of_wrong_predictions_degrades_in_either_direction(trust):
    changes = []
    for index in range(30):
        changes += answer(trust, 160 if index % 2 else 0, 160 if index % 4 > 1 else 0)
    assert changes[0].reason is TrustReason.PREDICTIONS_OFF


def test_wrong_predictions_while_the_stream_is_cut_do_not_delay_the_return(trust):
    trust.stream_standing(0, StreamStanding.LOST, None, 1.0)
    answer(trust, 160, 0, times=20)
    assert trust.stream_standing(0, COMPLETE, None, 2.0).after is TrustMode.PRECISE
    for _ in range(20):
        trust.answered(
            input_tokens=1000,
            cached_tokens=0,
            block_size=16,
            precise_tokens=160,
            approximate_tokens=None,
            now=3.0,
            sent_s=1.5,
        )
    assert trust.mode is TrustMode.PRECISE


def test_each_failure_asks_for_a_longer_proof_up_to_a_bound(trust):
    lengths = []
    for _ in range(5):
        answer(trust, 160, 0, times=4)
        assert trust.mode is TrustMode.APPROXIMATE
        length = 0
        while trust.mode is not TrustMode.PRECISE:
            answer(trust, 160, 160)
            length += 1
        lengths.append(length)
    assert lengths == [16, 32, 64, 64, 64]


def test_a_hopeless_approximate_index_leaves_only_the_load():
    trust = Trust(TrustConfig(), 0.0)
    (change,) = answer(trust, None, 0, times=20, approximate=800)
    assert (change.after, change.reason) == (TrustMode.LOAD_ONLY, TrustReason.HOPELESS)
    changes = answer(trust, None, 800, times=50, approximate=800)
    assert changes[-1].after is TrustMode.APPROXIMATE


def test_an_approximate_index_that_promises_too_little_is_not_hopeless():
    trust = Trust(TrustConfig(), 0.0)
    assert not answer(trust, None, 800, times=50, approximate=0)


def test_the_statistics_count_what_happened(trust):
    trust.stream_standing(0, StreamStanding.LOST, StreamFault.DISCONNECTED, 4.0)
    answer(trust, 160, 0)
    shown = trust.statistics()
    assert (shown.mode, shown.reason) == (TrustMode.APPROXIMATE, TrustReason.STREAM_LOST)
    assert (shown.since_s, shown.num_answers, shown.num_off) == (4.0, 1, 1)
    assert shown.faults == {StreamFault.DISCONNECTED: 1}


class TrustMachine(RuleBasedStateMachine):
    """Any evidence in any order leaves a mode that follows from it, and a way back up."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.trust = Trust(TrustConfig(window=8, min_answers=4, proof_answers=2), 0.0)
        self.modes = [self.trust.mode]

    def note(self, change):
        if change is not None:
            assert change.before is self.modes[-1]
            assert change.at_s == self.now
            self.modes.append(change.after)

    @rule(seconds=st.floats(0.0, 2.0))
    def wait(self, seconds):
        self.now += seconds
        self.note(self.trust.tick(self.now))

    @rule(
        rank=st.integers(0, 1),
        standing=st.sampled_from(StreamStanding),
        fault=st.none() | st.sampled_from(StreamFault),
    )
    def stand(self, rank, standing, fault):
        self.note(self.trust.stream_standing(rank, standing, fault, self.now))

    @rule(rank=st.integers(0, 1))
    def reset(self, rank):
        self.note(self.trust.stream_reset(rank, self.now))

    @rule(rank=st.integers(0, 1))
    def flow(self, rank):
        self.note(self.trust.stream_flows(rank, self.now))

    @rule(ago=st.floats(0.0, 2.0))
    def prefill(self, ago):
        self.note(self.trust.prefilled(self.now - ago, self.now))

    @rule(agree=st.sampled_from([True, False, None]))
    def compare(self, agree):
        self.note(self.trust.tokens_agree(agree, self.now))

    @rule(
        matched=st.none() | st.sampled_from([0, 160]),
        approximate=st.none() | st.sampled_from([0, 160]),
        cached=st.sampled_from([0, 160]),
    )
    def answer(self, matched, approximate, cached):
        self.note(
            self.trust.answered(
                input_tokens=200,
                cached_tokens=cached,
                block_size=16,
                precise_tokens=matched,
                approximate_tokens=approximate,
                now=self.now,
            )
        )

    @rule()
    def recover(self):
        """Whatever happened: whole streams, agreeing tokens and right answers suffice."""
        self.compare(True)
        for rank in (0, 1):
            self.stand(rank, COMPLETE, None)
            self.flow(rank)
        for _ in range(64):
            self.answer(160, 160, 160)
        assert self.trust.mode is TrustMode.PRECISE

    @invariant()
    def it_is_sound(self):
        self.trust.check_integrity()
        assert self.trust.mode is self.modes[-1]


TestTrustMachine = TrustMachine.TestCase
TestTrustMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
