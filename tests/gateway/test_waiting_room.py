"""`WaitingRoom` over a fleet that comes and goes, without sockets."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headstart.clock import VirtualClock
from headstart.errors import (
    NotFound,
    ObjectiveMissed,
    QueueFull,
    QueueTimeout,
    UpstreamUnavailable,
)
from headstart.gateway.waiting import WaitingRoom
from headstart.routing.fleet import Fleet
from headstart.routing.queue import Line, QueueConfig
from headstart.routing.queue_orders import NO_MATCH
from headstart.routing.replica import Replica, Standing

CONFIG = QueueConfig(max_in_flight=1, max_waiting=5, max_wait_s=10)
MODELS = st.sampled_from(["x", "y", ""])


class Request:
    """What an exchange does with its turn: go to the first target with room."""

    def __init__(self, room, number, model):
        self.room, self.number, self.model = room, number, model
        self.place = None
        self.replica = None
        self.failed = None
        self.error = None
        self.soonest_s = 0.0

    def go(self, targets):
        try:
            self.place = self.room.enter(self, Line(self.model, self.failed), targets, 1)
        except (QueueFull, ObjectiveMissed) as error:
            self.error = error
            return
        if self.place is None:
            self.turn_came(targets)

    def match_on(self, targets):
        return NO_MATCH, self.soonest_s

    def turn_came(self, targets):
        self.place = None
        self.replica = next(replica for replica in targets if replica.has_room)
        assert self.replica is not self.failed or len(targets) == 1
        self.replica.begin(1)

    def turn_failed(self, error):
        self.place = None
        self.error = error

    def end(self):
        replica, self.replica = self.replica, None
        replica.end(1)
        self.room.serve()


class RoomMachine(RuleBasedStateMachine):
    """Nobody overtakes, nobody waits for what is free, no replica has too many."""

    def __init__(self):
        super().__init__()
        self.replicas = [
            Replica("a", frozenset({"x"})),
            Replica("b", frozenset({"x", "y"})),
            Replica("c", frozenset({"y"})),
        ]
        self.fleet = Fleet(self.replicas)
        self.clock = VirtualClock()
        self.room = WaitingRoom(self.fleet, CONFIG, self.clock)
        self.requests = []

    def waiting(self):
        return [each for each in self.requests if each.place is not None]

    def running(self):
        return [each for each in self.requests if each.replica is not None]

    @rule(model=MODELS)
    def arrive(self, model):
        candidates = self.fleet.candidates(model)
        if not candidates:
            return
        num_waiting = len(self.waiting())
        request = Request(self.room, len(self.requests), model)
        request.go(candidates)
        self.requests.append(request)
        if request.error is not None:
            assert isinstance(request.error, QueueFull)
            assert num_waiting == CONFIG.max_waiting

    @rule(data=st.data())
    def end(self, data):
        if self.running():
            before = self.waiting()
            data.draw(st.sampled_from(self.running())).end()
            self.check_order(before)

    def check_order(self, before):
        """Of those that nobody had failed, no one went before an older one that could go too."""
        went = [each for each in before if each.replica is not None and each.failed is None]
        for stayed in (each for each in self.waiting() if each.failed is None):
            for each in went:
                could_go = each.replica in self.fleet.candidates(stayed.model)
                assert not (could_go and stayed.number < each.number)

    @rule(data=st.data())
    def fail(self, data):
        fresh = [each for each in self.running() if each.failed is None]
        if not fresh:
            return
        request = data.draw(st.sampled_from(fresh))
        request.failed = request.replica
        request.end()
        candidates = self.fleet.candidates(request.model)
        others = tuple(each for each in candidates if each is not request.failed)
        if others:
            request.go(others)

    @rule(data=st.data())
    def leave(self, data):
        if self.waiting():
            request = data.draw(st.sampled_from(self.waiting()))
            self.room.leave(request.place)
            request.place = None

    @rule(index=st.integers(0, 2), standing=st.sampled_from([Standing.OUT, Standing.USABLE]))
    def change_standing(self, index, standing):
        self.fleet.set_standing(self.replicas[index], standing)
        before = self.waiting()
        self.room.sweep(self.clock.monotonic())
        for request in before:
            if request.error is not None:
                assert isinstance(request.error, UpstreamUnavailable)
                assert not self.fleet.candidates(request.model)

    @rule(seconds=st.sampled_from([1, 6, 11]))
    def let_time_pass(self, seconds):
        self.clock.advance(seconds)
        now, before = self.clock.monotonic(), self.waiting()
        late = [each for each in before if now - each.place.since > CONFIG.max_wait_s]
        self.room.sweep(now)
        assert [each for each in before if isinstance(each.error, QueueTimeout)] == late

    @invariant()
    def nobody_waits_for_what_is_free(self):
        for request in self.waiting():
            failed = request.place.line.failed
            candidates = self.fleet.candidates(request.model)
            assert candidates
            targets = [each for each in candidates if each is not failed] or candidates
            assert not any(replica.has_room for replica in targets)

    @invariant()
    def no_replica_has_too_many(self):
        for replica in self.replicas:
            assert replica.in_flight <= CONFIG.max_in_flight
            assert replica.in_flight == sum(each.replica is replica for each in self.requests)
        assert self.room.num_waiting == len(self.waiting())

    def teardown(self):
        waiting = self.waiting()
        self.room.close()
        assert all(isinstance(each.error, UpstreamUnavailable) for each in waiting)
        assert self.room.num_waiting == self.room.num_waiting_bytes == 0


TestRoom = RoomMachine.TestCase
TestRoom.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def test_a_model_that_no_replica_serves_any_more_is_not_found():
    """The next sweep tells those who wait for it; until then they are in nobody's way."""
    replica = Replica("a", frozenset({"x", "y"}))
    fleet = Fleet([replica])
    room = WaitingRoom(fleet, QueueConfig(max_in_flight=1), VirtualClock())
    requests = [Request(room, number, model) for number, model in enumerate("xyx")]
    for request in requests:
        request.go(fleet.candidates(request.model))
    fleet.set_models(replica, frozenset({"x"}))
    requests[0].end()
    assert requests[2].replica is replica
    room.sweep(0.0)
    assert isinstance(requests[1].error, NotFound)


def test_who_comes_later_does_not_overtake_on_a_replica_that_has_just_returned():
    """Before any sweep has noticed it."""
    replicas = [Replica("a"), Replica("b")]
    fleet = Fleet(replicas)
    room = WaitingRoom(fleet, QueueConfig(max_in_flight=1), VirtualClock())
    fleet.set_standing(replicas[1], Standing.OUT)
    requests = [Request(room, number, "x") for number in range(3)]
    for request in requests[:2]:
        request.go(fleet.candidates("x"))
    fleet.set_standing(replicas[1], Standing.USABLE)
    requests[2].go(fleet.candidates("x"))
    assert [request.replica for request in requests] == [*replicas, None]


# The objective.


def room_with_objective(*replicas, **config):
    clock, fleet = VirtualClock(), Fleet(replicas)
    config = {"max_wait_s": 1000.0, **config}
    config = QueueConfig(max_in_flight=1, ttft_objective_s=2.0, **config)
    return WaitingRoom(fleet, config, clock), fleet, clock


def arrive(room, fleet, model, number=0, soonest_s=0.0):
    request = Request(room, number, model)
    request.soonest_s = soonest_s
    request.go(fleet.candidates(model))
    return request


def test_a_wait_is_expected_to_go_on_as_it_went():
    """Three turns a second apart, and the fourth in line would be late."""
    room, fleet, clock = room_with_objective(Replica("a"))
    running = arrive(room, fleet, "x")
    waiting = [arrive(room, fleet, "x") for _ in range(4)]
    for request in waiting[:3]:
        clock.advance(1.0)
        running.end()
        running = request
    in_time = arrive(room, fleet, "x")  # behind one: two seconds
    assert in_time.place is not None
    with pytest.raises(
        ObjectiveMissed, match=r"in 3\.0 s, and queue\.ttft_objective_s is 2"
    ) as one:
        room.enter(Request(room, 9, "x"), Line("x"), fleet.candidates("x"), 1)
    assert one.value.retry_after_s == 1
    # One that goes before the others has less to wait for.
    assert room.enter(Request(room, 9, "x"), Line("x", None, -1), fleet.candidates("x"), 1)


def test_where_nobody_goes_the_wait_grows():
    """What has hung for longer than the objective lets nobody in, though it was quick before."""
    room, fleet, clock = room_with_objective(Replica("a"))
    arrive(room, fleet, "x")
    first = arrive(room, fleet, "x")
    clock.advance(1.9)
    assert arrive(room, fleet, "x").place is not None
    clock.advance(0.2)
    assert isinstance(arrive(room, fleet, "x").error, ObjectiveMissed)
    assert first.place is not None  # who waits was told nothing else, and goes on waiting


def test_another_models_queue_is_nobodys_wait():
    """However many wait for it and however slowly they go."""
    room, fleet, clock = room_with_objective(
        Replica("a", frozenset("x")), Replica("b", frozenset("y"), slot=1)
    )
    arrive(room, fleet, "x")
    for _ in range(5):
        arrive(room, fleet, "x")
    clock.advance(60.0)
    arrive(room, fleet, "y")
    assert arrive(room, fleet, "y").place is not None
    assert isinstance(arrive(room, fleet, "x").error, ObjectiveMissed)


def test_who_was_failed_is_not_refused_for_being_late():
    """It was taken, and has been sent once."""
    room, fleet, clock = room_with_objective(Replica("a"), Replica("b", slot=1))
    running = [arrive(room, fleet, "x") for _ in range(2)]
    arrive(room, fleet, "x")
    clock.advance(60.0)
    running[0].failed = running[0].replica
    others = [replica for replica in fleet.replicas if replica is not running[0].failed]
    running[0].go(others)
    assert running[0].place is not None


def test_one_slow_turn_keeps_nobody_out_for_ever():
    """The first to wait is always let in, and what it sees is learned."""
    room, fleet, clock = room_with_objective(Replica("a"))
    running = arrive(room, fleet, "x")
    for seconds in (20.0, *[0.1] * 30):
        waiting = arrive(room, fleet, "x")
        assert waiting.place is not None
        clock.advance(seconds)
        running.end()
        running = waiting
    assert arrive(room, fleet, "x").place is not None
    assert arrive(room, fleet, "x").place is not None


def test_a_wait_that_was_given_up_is_not_expected_of_others():
    """Since when nobody goes counts from the first of those that wait."""
    room, fleet, clock = room_with_objective(Replica("a"))
    arrive(room, fleet, "x")
    room.leave(arrive(room, fleet, "x").place)
    clock.advance(60.0)
    assert arrive(room, fleet, "x").place is not None
    assert arrive(room, fleet, "x").place is not None
    clock.advance(2.1)
    assert isinstance(arrive(room, fleet, "x").error, ObjectiveMissed)


def test_one_is_tried_now_and_then():
    """Rates are learned from what is sent: with a wrong one nothing else would be sent again."""
    room, fleet, clock = room_with_objective(Replica("a"), max_wait_s=30.0)
    answers = []
    for _ in range(80):
        clock.advance(1.0)
        request = arrive(room, fleet, "x", soonest_s=1e6)
        answers.append(request.error is None)
        if request.replica is not None:
            request.end()
        else:
            assert request.error.retry_after_s == 30
    assert [number for number, is_sent in enumerate(answers) if is_sent] == [30, 60]


def test_paces_are_bounded():
    """Clients may make up models where an engine does not say which it has."""
    room, fleet, _clock = room_with_objective(Replica("a"), max_waiting=5000)
    for number in range(3000):
        arrive(room, fleet, f"m{number}")
    assert len(room._paces) == 1024
