"""`Breaker`: when it opens, when it lets one try, and how long it waits."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headstart.routing.breaker import Breaker, BreakerConfig, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def opened(config=None, now=0.0) -> Breaker:
    breaker = Breaker(config or BreakerConfig())
    breaker.trip(now)
    return breaker


def half_opened(config=None) -> Breaker:
    breaker = opened(config)
    breaker.step(1.0)
    assert breaker.state is HALF_OPEN
    return breaker


def test_failures_in_a_row_open_it():
    """Not one fewer."""
    breaker = Breaker(BreakerConfig(failures=3))
    for state in (CLOSED, CLOSED, OPEN):
        breaker.failed(0.0)
        assert breaker.state is state


def test_a_success_ends_the_row():
    """Requests that an engine cannot digest come among others."""
    breaker = Breaker(BreakerConfig(failures=2, window=100))
    for _ in range(20):
        breaker.failed(0.0)
        breaker.succeeded(0.0)
    assert breaker.state is CLOSED


def test_a_share_of_the_last_outcomes_opens_it():
    """An engine that fails every other request is of no use either."""
    breaker = Breaker(BreakerConfig(failures=5, window=8, failure_ratio=0.5))
    for _ in range(3):
        breaker.failed(0.0)
        breaker.succeeded(0.0)
    assert breaker.state is CLOSED
    breaker.failed(0.0)
    assert breaker.state is OPEN


def test_outcomes_before_the_first_count_as_successes():
    """The first request that fails is no reason to give an engine up."""
    breaker = Breaker(BreakerConfig(failures=5, window=20, failure_ratio=0.1))
    breaker.failed(0.0)
    assert breaker.state is CLOSED
    breaker.failed(0.0)
    assert breaker.state is OPEN


def test_old_failures_are_forgotten():
    """Only the window counts."""
    breaker = Breaker(BreakerConfig(failures=5, window=8, failure_ratio=0.5))
    for _ in range(3):
        breaker.failed(0.0)
    assert not breaker.is_pristine
    for _ in range(8):
        breaker.succeeded(0.0)
    assert breaker.is_pristine


def test_it_half_opens_after_open_s():
    """And not before."""
    breaker = opened(BreakerConfig(open_s=2.0), now=10.0)
    breaker.step(11.9)
    assert breaker.state is OPEN
    breaker.step(12.0)
    assert breaker.state is HALF_OPEN


def test_outcomes_while_open_change_nothing():
    """They belong to requests that were sent before."""
    breaker = opened()
    breaker.succeeded(0.1)
    breaker.failed(0.2)
    assert breaker.state is OPEN
    breaker.step(1.0)
    assert breaker.state is HALF_OPEN


def test_a_success_on_trial_closes_and_a_failure_opens_again():
    """One outcome decides."""
    breaker = half_opened()
    breaker.succeeded(1.0)
    assert breaker.state is CLOSED
    assert breaker.is_pristine
    breaker = half_opened()
    breaker.failed(1.0)
    assert breaker.state is OPEN


def test_the_wait_doubles_up_to_its_maximum():
    """A dead engine costs one request in half a minute, not one a second."""
    config = BreakerConfig(open_s=1.0, max_open_s=6.0)
    breaker, now, waits = opened(config), 0.0, []
    for _ in range(5):
        began = now
        while breaker.state is OPEN:
            now += 0.5
            breaker.step(now)
        waits.append(now - began)
        breaker.failed(now)
    assert waits == [1.0, 2.0, 4.0, 6.0, 6.0]


@pytest.mark.parametrize(("well_s", "wait_s"), [(5.0, 2.0), (31.0, 1.0)])
def test_the_wait_starts_anew_only_after_it_was_well_for_long(well_s, wait_s):
    """An engine that flaps is not trusted at once."""
    breaker = half_opened(BreakerConfig(open_s=1.0, max_open_s=30.0))
    breaker.succeeded(1.0)
    breaker.trip(1.0 + well_s)
    breaker.step(1.0 + well_s + wait_s - 0.01)
    assert breaker.state is OPEN
    breaker.step(1.0 + well_s + wait_s)
    assert breaker.state is HALF_OPEN


def test_reset_forgets_everything():
    """The wait included."""
    breaker = half_opened()
    breaker.failed(1.0)
    breaker.reset()
    assert breaker.is_pristine
    breaker.trip(2.0)
    breaker.step(3.0)
    assert breaker.state is HALF_OPEN


def test_an_engine_away_for_days_overflows_nothing():
    """The wait stays at its maximum."""
    breaker, now = opened(), 0.0
    for _ in range(5000):
        now += 30.0
        breaker.step(now)
        assert breaker.state is HALF_OPEN
        breaker.failed(now)


class NaiveBreaker:
    """The rules once more, over a list of all outcomes."""

    def __init__(self, config):
        self.config, self.history, self.state = config, [], CLOSED
        self.closed_at, self.try_at, self.wait_s = None, 0.0, 0.0

    def succeeded(self, now):
        if self.state is CLOSED:
            self.history.append(False)
        elif self.state is HALF_OPEN:
            self.state, self.closed_at, self.history = CLOSED, now, []

    def failed(self, now):
        if self.state is HALF_OPEN:
            self.trip(now)
        elif self.state is CLOSED:
            self.history.append(True)
            window = self.history[-self.config.window :]
            in_a_row = min(self.config.failures, self.config.window)
            is_row = len(window) >= in_a_row and all(window[-in_a_row:])
            if is_row or sum(window) / self.config.window >= self.config.failure_ratio:
                self.trip(now)

    def trip(self, now):
        was_well = self.state is CLOSED and (
            self.closed_at is None or now - self.closed_at >= self.config.max_open_s
        )
        self.wait_s = self.config.open_s if was_well else self.wait_s * 2
        most = max(self.config.open_s, self.config.max_open_s)
        self.state, self.try_at, self.history = OPEN, now + min(self.wait_s, most), []

    def step(self, now):
        if self.state is OPEN and now >= self.try_at:
            self.state = HALF_OPEN


class BreakerMachine(RuleBasedStateMachine):
    """Any order of outcomes and any passing of time."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    @initialize(
        failures=st.integers(1, 4),
        window=st.integers(1, 8),
        ratio=st.sampled_from([0.25, 0.5, 1.0]),
        waits=st.sampled_from([(1.0, 4.0), (1.0, 30.0), (2.0, 1.0)]),
    )
    def build(self, failures, window, ratio, waits):
        config = BreakerConfig(failures, window, ratio, *waits)
        self.breaker, self.naive = Breaker(config), NaiveBreaker(config)

    @rule(name=st.sampled_from(["succeeded", "failed", "failed", "trip", "step"]))
    def happen(self, name):
        for each in (self.breaker, self.naive):
            getattr(each, name)(self.now)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 8.0, 40.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule()
    def leave_out_a_success_that_changes_nothing(self):
        if self.breaker.is_pristine:
            self.naive.succeeded(self.now)

    @invariant()
    def agree(self):
        self.breaker.check_integrity()
        assert self.breaker.state is self.naive.state


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=150, stateful_step_count=40)
