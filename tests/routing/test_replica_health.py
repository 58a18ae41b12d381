"""`ReplicaHealth`: what the facts about a replica come to, and how it returns."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headstart.routing.breaker import BreakerConfig
from headstart.routing.health import FIRST_WEIGHT, HealthState, ReplicaHealth
from headstart.routing.replica import Standing

CONFIG = BreakerConfig(failures=2, open_s=1.0, max_open_s=8.0)


def health(*, is_up=True, slow_start_s=10.0) -> ReplicaHealth:
    one = ReplicaHealth(CONFIG, slow_start_s)
    if is_up:
        one.answered_check()
        one.step(0.0)
    return one


def broken(now=0.0) -> ReplicaHealth:
    one = health()
    for _ in range(CONFIG.failures):
        one.failed(now, "it answered 500")
    one.step(now)
    return one


def test_a_replica_is_out_until_it_was_checked():
    """And says so."""
    one = health(is_up=False)
    assert (one.state, one.standing) == (HealthState.DOWN, Standing.OUT)
    assert one.reason == "not checked yet"


def test_the_first_check_is_no_return():
    """At the gateway's start every cache may be warm, and nothing has to be spread."""
    one = health()
    assert (one.state, one.standing) == (HealthState.AVAILABLE, Standing.USABLE)
    assert (one.reason, one.weight) == ("", 1.0)


def test_a_return_starts_with_a_small_share_that_grows():
    """Until slow_start_s have passed."""
    one = health()
    one.failed_check("refused")
    one.step(1.0)
    assert (one.state, one.reason) == (HealthState.DOWN, "refused")
    one.answered_check()
    shares = []
    for now in (2.0, 3.0, 7.0, 11.9):
        one.step(now)
        assert (one.state, one.standing) == (HealthState.WARMING, Standing.USABLE)
        shares.append(one.weight)
    assert shares == [FIRST_WEIGHT, 0.1, 0.5, pytest.approx(0.99)]
    assert one.reason == "back after: refused"
    one.step(12.0)
    assert (one.state, one.weight) == (HealthState.AVAILABLE, 1.0)


def test_one_that_joins_others_at_work_starts_with_a_small_share():
    """The prefixes that become its own come to an empty cache."""
    one = ReplicaHealth(CONFIG, 10.0, is_cold=True)
    one.step(0.0)
    assert (one.state, one.weight) == (HealthState.DOWN, FIRST_WEIGHT)
    one.answered_check()
    one.step(5.0)
    assert (one.state, one.weight) == (HealthState.WARMING, FIRST_WEIGHT)
    assert one.reason == "it was added, and its cache is cold"
    one.step(10.0)
    assert one.weight == 0.5
    one.step(15.0)
    assert (one.state, one.weight) == (HealthState.AVAILABLE, 1.0)


def test_one_that_was_removed_drains_and_may_stay_after_all():
    """The operator's own order to drain is another, and outlives it."""
    one = health()
    one.is_leaving = True
    assert (one.state, one.standing) == (HealthState.DRAINING, Standing.OUT)
    assert one.reason == "removed; what it was sent finishes"
    one.is_draining = True
    one.is_leaving = False
    assert (one.state, one.reason) == (HealthState.DRAINING, "taken out by the operator")
    one.is_draining = False
    one.step(1.0)
    assert (one.state, one.weight) == (HealthState.AVAILABLE, 1.0)


def test_without_slow_start_a_return_is_whole():
    """slow_start_s: 0."""
    one = health(slow_start_s=0.0)
    one.failed_check("refused")
    one.step(1.0)
    one.answered_check()
    one.step(2.0)
    assert (one.state, one.weight) == (HealthState.AVAILABLE, 1.0)


def test_a_stalled_replica_takes_nothing_until_it_moves():
    """Whatever its checks say."""
    one = health()
    one.stalled("nothing moved")
    one.step(1.0)
    assert (one.state, one.standing, one.reason) == (
        *(HealthState.STALLED, Standing.OUT),
        "nothing moved",
    )
    one.is_own_trial = True
    one.answered_check()
    assert one.state is HealthState.STALLED
    one.moved()
    one.step(2.0)
    assert one.state is HealthState.WARMING


def test_a_trial_of_our_own_ends_a_stall():
    """Where no request is in flight that could show it."""
    one = health()
    one.is_own_trial = True
    one.stalled("nothing moved")
    one.step(0.5)
    one.trial_passed(1.0)
    one.step(1.0)
    assert one.state is HealthState.WARMING


def test_an_open_breaker_is_a_last_resort():
    """With the reason of the last failure."""
    one = broken()
    assert (one.state, one.standing) == (HealthState.OPEN, Standing.LAST_RESORT)
    assert one.reason == "failures: it answered 500"


def test_half_open_lets_one_request_through_at_a_time():
    """Whether or not it has an outcome."""
    one = broken()
    one.step(1.0)
    assert (one.state, one.standing) == (HealthState.HALF_OPEN, Standing.TRIAL)
    one.trial_begun()
    assert one.standing is Standing.LAST_RESORT
    one.trial_ended()
    assert one.standing is Standing.TRIAL
    one.trial_begun()
    one.succeeded(1.5)
    one.step(1.5)
    assert one.state is HealthState.WARMING


def test_a_replica_that_is_tried_by_the_gateway_gets_no_clients_trial():
    """Nobody's request need fail for it."""
    one = broken()
    one.is_own_trial = True
    one.step(1.0)
    assert (one.state, one.standing) == (HealthState.HALF_OPEN, Standing.LAST_RESORT)


def test_another_process_is_not_judged_by_the_failures_of_the_last():
    """It was down between."""
    one = broken()
    one.failed_check("refused")
    one.answered_check()
    one.step(0.5)
    assert one.state is HealthState.WARMING


def test_another_process_that_can_be_tried_is_tried_at_once():
    """However long the breaker would have waited."""
    one = broken()
    one.is_own_trial = True
    one.failed_check("refused")
    one.answered_check()
    one.step(0.1)
    assert one.state is HealthState.HALF_OPEN


def test_silent_streams_open_the_breaker_and_a_byte_closes_it():
    """Where nothing but streams can be watched."""
    one = health()
    one.silenced(0.0, "all its 2 streams were silent for 20 s")
    one.step(0.0)
    assert one.state is HealthState.OPEN
    one.moved()
    one.step(0.1)
    assert one.state is HealthState.WARMING


def test_a_byte_does_not_close_what_failures_opened():
    """A replica that answers 500 sends bytes, too."""
    one = broken()
    one.moved()
    one.step(0.1)
    assert one.state is HealthState.OPEN


def test_draining_goes_before_everything_and_ends_by_the_operator_alone():
    """A replica that was restarted meanwhile comes back cold."""
    one = health()
    one.is_draining = True
    one.step(0.0)
    assert (one.state, one.standing) == (HealthState.DRAINING, Standing.OUT)
    one.is_draining = False
    one.step(1.0)
    assert one.state is HealthState.AVAILABLE
    one.is_draining = True
    one.failed_check("refused")
    one.step(2.0)
    assert one.state is HealthState.DRAINING
    assert "refused" in one.reason
    one.answered_check()
    one.step(3.0)
    assert one.state is HealthState.DRAINING
    one.is_draining = False
    one.step(4.0)
    assert one.state is HealthState.WARMING


def test_a_drained_replicas_condition_is_known_all_the_same():
    """It may freeze before its last requests have ended."""
    one = health()
    one.is_draining = True
    one.stalled("nothing moved")
    one.step(1.0)
    assert (one.state, one.condition) == (HealthState.DRAINING, HealthState.STALLED)


def test_successes_are_wanted_only_while_they_could_change_something():
    """So that a request costs nothing while all is well."""
    one = health()
    assert not one.wants_successes
    one.failed(0.0, "lost")
    assert one.wants_successes


class HealthMachine(RuleBasedStateMachine):
    """Facts in any order: the state is always the worst that holds."""

    @initialize(
        slow_start_s=st.sampled_from([0.0, 4.0]), is_own=st.booleans(), is_cold=st.booleans()
    )
    def build(self, slow_start_s, is_own, is_cold):
        self.now = 0.0
        self.health = ReplicaHealth(CONFIG, slow_start_s, is_cold=is_cold)
        self.health.is_own_trial = is_own
        self.is_down = True
        self.is_stalled = self.is_draining = False

    @rule(is_up=st.booleans())
    def check(self, is_up):
        self.is_down = not is_up
        if is_up:
            self.health.answered_check()
            self.is_stalled &= self.health.is_own_trial
        else:
            self.health.failed_check("refused")

    @rule(name=st.sampled_from(["moved", "trial_passed", "stalled"]))
    def progress(self, name):
        self.is_stalled = name == "stalled"
        if name == "stalled":
            self.health.stalled("nothing moved")
        elif name == "moved":
            self.health.moved()
        else:
            self.health.trial_passed(self.now)

    @rule(is_failure=st.booleans())
    def request(self, is_failure):
        if is_failure:
            self.health.failed(self.now, "lost")
        else:
            self.health.succeeded(self.now)

    @rule()
    def fall_silent(self):
        self.health.silenced(self.now, "silent")

    @rule(is_begun=st.booleans())
    def trial(self, is_begun):
        if is_begun:
            self.health.trial_begun()
        else:
            self.health.trial_ended()

    @rule(is_draining=st.booleans(), is_leaving=st.booleans())
    def drain(self, is_draining, is_leaving):
        self.health.is_draining, self.health.is_leaving = is_draining, is_leaving
        self.is_draining = is_draining or is_leaving

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @invariant()
    def the_worst_fact_decides(self):
        if not hasattr(self, "health"):
            return
        self.health.step(self.now)
        self.health.check_integrity()
        state = self.health.state
        if self.is_draining:
            assert state is HealthState.DRAINING
        elif self.is_down:
            assert state is HealthState.DOWN
        elif self.is_stalled:
            assert state is HealthState.STALLED
        else:
            assert state not in (HealthState.DOWN, HealthState.STALLED, HealthState.DRAINING)
        assert (self.health.reason == "") == (state is HealthState.AVAILABLE)


TestHealthMachine = HealthMachine.TestCase
TestHealthMachine.settings = settings(max_examples=150, stateful_step_count=40)
