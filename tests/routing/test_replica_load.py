"""A replica's load: sums of what it was sent, and time that works it off."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headstart.routing.load import ASSIGNED_S, RemoteLoad, ReplicaLoad, Work
from headstart.routing.rates import Rates

RATES = Rates(0.0, 0.001, 0.0, 0.5, 0.0)
"""A millisecond a token, half as much again for each that decodes."""


def streamed(tokens: int) -> Work:
    return Work(tokens, 0.0, tokens, is_stream=True)


def in_one_piece(tokens: int) -> Work:
    return Work(tokens, 0.0, tokens, is_stream=False)


def test_a_wait_is_what_others_have_to_prefill():
    """Less what of the first must have been done by now."""
    load = ReplicaLoad(RATES)
    assert load.wait_s(0.0) == 0.0
    load.begin("a", streamed(100), 10.0)
    load.begin("b", streamed(50), 10.02)
    assert load.wait_s(10.02) == pytest.approx(0.13)
    assert load.wait_s(10.06) == pytest.approx(0.09)


def test_what_is_behind_a_silent_stream_is_not_worked_off():
    """Its first token would have been seen."""
    load = ReplicaLoad(RATES)
    load.begin("a", streamed(100), 10.0)
    load.begin("b", streamed(50), 10.0)
    assert load.wait_s(99.0) == pytest.approx(0.05)


def test_a_first_token_starts_the_next_prefill():
    """And what decodes from then on slows it down."""
    load = ReplicaLoad(RATES)
    load.begin("a", streamed(100), 10.0)
    load.begin("b", streamed(50), 10.0)
    load.first_token("a", 10.3)
    load.settle()
    assert load.slowdown == 1.5
    assert load.wait_s(10.3) == pytest.approx(0.075)
    assert load.wait_s(10.32) == pytest.approx(0.055)


def test_answers_in_one_piece_are_worked_off_by_time():
    """Nobody sees their first token, and their whole answer may take long."""
    load = ReplicaLoad(RATES)
    load.begin("a", in_one_piece(100), 10.0)
    load.begin("b", in_one_piece(100), 10.0)
    assert load.wait_s(10.15) == pytest.approx(0.05)
    assert load.wait_s(11.0) == 0.0
    load.begin("c", in_one_piece(100), 10.5)
    assert (load.num_pending, load.num_decoding) == (1, 2)


def test_a_first_token_tells_of_those_before_it():
    """Engines prefill in the order of arrival."""
    load = ReplicaLoad(RATES)
    load.begin("a", in_one_piece(1000), 10.0)
    load.begin("b", streamed(50), 10.0)
    load.begin("c", in_one_piece(50), 10.0)
    load.first_token("b", 10.1)
    assert (load.num_pending, load.num_decoding) == (1, 2)
    assert load.pending_tokens == 50


def test_a_first_token_that_is_told_twice_counts_once():
    """And one of a request that was never begun not at all."""
    load = ReplicaLoad(RATES)
    load.begin("a", streamed(100), 0.0)
    for key in ("a", "a", "x"):
        load.first_token(key, 1.0)
    assert (load.num_pending, load.num_decoding) == (0, 1)


def test_assigned_tokens_fade():
    """A replica that was busy yesterday is not avoided today."""
    load = ReplicaLoad(RATES)
    load.begin("a", streamed(1000), 0.0)
    load.end("a", streamed(1000), 0.0)
    assert (load.assigned_tokens, load.assigned_input_tokens) == (1000, 1000)
    load.fade(ASSIGNED_S)
    assert load.assigned_tokens == pytest.approx(1000 / 2.718281828)


def test_the_kv_share_is_what_requests_pin():
    """Of the capacity, where that is known."""
    load = ReplicaLoad(RATES)
    load.begin("a", streamed(300), 0.0)
    for capacity, share in ((0, 0.0), (1200, 0.25), (None, 0.0)):
        load.set_capacity(capacity)
        load.settle()
        assert load.kv_share == share


def test_what_other_gateways_sent_counts():
    """Until whoever told of it takes it back; and it is not told on."""
    load = ReplicaLoad(RATES)
    load.begin("a", streamed(100), 0.0)
    load.set_remote("one source", RemoteLoad(3, 1, 500, 2000), 1.0)
    load.set_remote("another", RemoteLoad(1, 1, 10, 10), 2.0)
    assert (load.in_flight, load.num_pending, load.num_decoding) == (5, 3, 2)
    assert (load.pending_tokens, load.active_tokens) == (610, 2110)
    assert load.own() == RemoteLoad(1, 1, 100, 100)
    load.set_remote("one source", RemoteLoad(), 3.0)
    assert (load.in_flight, load.pending_tokens) == (2, 110)


def test_the_rates_may_change_under_way():
    """What is pending is then worth another time."""
    load = ReplicaLoad(RATES)
    load.begin("a", streamed(100), 0.0)
    load.set_rates(Rates(0.0, 0.01, 0.0, 0.5, 0.0))
    assert load.wait_s(0.0) == pytest.approx(1.0)


class LoadMachine(RuleBasedStateMachine):
    """Against plain lists: which requests are pending, which decode, and when the first began."""

    def __init__(self) -> None:
        super().__init__()
        self.load = ReplicaLoad(RATES)
        self.now = 100.0
        self.pending: list[tuple[int, Work]] = []
        self.decoding: list[tuple[int, Work]] = []
        self.began_at = 0.0
        self.count = 0
        self.remote = RemoteLoad()

    def take(self, entry: tuple[int, Work], at: float) -> None:
        if self.pending[0] is entry:
            self.began_at = at
        self.pending.remove(entry)
        self.decoding.append(entry)

    def pass_time(self) -> None:
        while self.pending and not self.pending[0][1].is_stream:
            decoding = len(self.decoding) + self.remote.in_flight - self.remote.num_pending
            done_at = self.began_at + self.slowdown * self.pending[0][1].uncached_tokens / 1000
            assert decoding >= 0
            if done_at > self.now:
                break
            self.take(self.pending[0], done_at)

    @rule(tokens=st.integers(0, 5000), is_stream=st.booleans())
    def begin(self, tokens, is_stream):
        self.load.settle()
        self.slowdown = self.load.slowdown
        self.pass_time()
        if not self.load.num_pending:
            self.began_at = self.now
        work = Work(tokens, tokens * 7.0, tokens + 10, is_stream)
        self.count += 1
        self.load.begin(self.count, work, self.now)
        self.pending.append((self.count, work))

    @precondition(lambda self: any(work.is_stream for _, work in self.pending))
    @rule(data=st.data())
    def first_token(self, data):
        streams = [entry for entry in self.pending if entry[1].is_stream]
        entry = data.draw(st.sampled_from(streams))
        before = self.pending[: self.pending.index(entry)]
        for other in [other for other in before if not other[1].is_stream]:
            self.take(other, self.now)
        self.take(entry, self.now)
        self.load.first_token(entry[0], self.now)

    @precondition(lambda self: self.pending or self.decoding)
    @rule(data=st.data())
    def end(self, data):
        entry = data.draw(st.sampled_from(self.pending + self.decoding))
        if entry in self.pending:
            self.take(entry, self.now)
        self.decoding.remove(entry)
        self.load.end(*entry, self.now)

    @rule(in_flight=st.integers(0, 5), pending=st.integers(0, 5), tokens=st.integers(0, 900))
    def other_gateway(self, in_flight, pending, tokens):
        if not self.load.num_pending:
            self.began_at = self.now
        pending = min(in_flight, pending)
        self.remote = RemoteLoad(in_flight, pending, tokens if pending else 0, tokens)
        self.load.set_remote("other", self.remote, self.now)

    @rule(seconds=st.floats(0.0, 3.0))
    def time_passes(self, seconds):
        self.now += seconds

    @invariant()
    def agrees(self):
        load = self.load
        load.check_integrity()
        assert load.in_flight == len(self.pending) + len(self.decoding) + self.remote.in_flight
        assert load.num_pending == len(self.pending) + self.remote.num_pending
        tokens = sum(work.uncached_tokens for _, work in self.pending)
        assert load.pending_tokens == tokens + self.remote.pending_tokens
        everyone = self.pending + self.decoding
        active = sum(work.uncached_tokens for _, work in everyone)
        assert load.active_tokens == active + self.remote.active_tokens
        if self.pending:
            assert load.progress_at == pytest.approx(self.began_at)
        assert 0.0 <= load.wait_s(self.now) <= load.backlog_s + 1e-9


TestLoadMachine = LoadMachine.TestCase
