"""What is known of one replica's health, and what follows from it for routing.

Facts come from outside: checks, progress, the outcomes of requests, the operator. They are kept
apart, because each has its own end: a replica that is drained may also be down, and a restart ends
the one and not the other. The state that people see is the first of these that applies:

    draining   the operator took it out, or removed it       no requests
    down       its check fails                               no requests
    stalled    it answers checks, but nothing of it moves    no requests
    open       too many failures                             only if there is nothing else
    half_open  likewise, and a trial decides                 one request, or the gateway's own
    warming    it was out, and its cache is cold             a growing share
    available
"""

from enum import Enum
from math import inf
from typing import Final

from headstart.routing.breaker import Breaker, BreakerConfig, BreakerState
from headstart.routing.replica import Standing

FIRST_WEIGHT: Final = 0.1
"""Share of a replica that has just returned; not zero, so that it is in use at once."""


class HealthState(Enum):
    """One word for a replica's health, as `/replicas`, `/metrics` and the log show it."""

    AVAILABLE = "available"
    WARMING = "warming"
    HALF_OPEN = "half_open"
    OPEN = "open"
    STALLED = "stalled"
    DOWN = "down"
    DRAINING = "draining"


_ADDED: Final = "it was added, and its cache is cold"
_REMOVED: Final = "removed; what it was sent finishes"

_STANDINGS: Final = {
    HealthState.AVAILABLE: Standing.USABLE,
    HealthState.WARMING: Standing.USABLE,
    HealthState.HALF_OPEN: Standing.TRIAL,
    HealthState.OPEN: Standing.LAST_RESORT,
    HealthState.STALLED: Standing.OUT,
    HealthState.DOWN: Standing.OUT,
    HealthState.DRAINING: Standing.OUT,
}


class ReplicaHealth:
    """Collects the facts about one replica; call `step` after any of them, and now and then.

    It starts as down, "not checked yet"; if its first check succeeds, that is no return.

    Args:
        breaker: when too many failures are too many.
        slow_start_s: from a return to the full share, >= 0.
        is_cold: it joins others at work, so its first check counts as a return: the prefixes that
            become its own come to an empty cache.

    Attributes:
        is_draining: the operator took it out.
        is_leaving: it was removed, and is still there for what it has been sent.
        is_own_trial: the gateway tries it out with requests of its own, so that clients need not.
        weight: its share of the load, 0 < weight <= 1.
    """

    __slots__ = (
        "_breaker",
        "_down",
        "_failure",
        "_is_first_check",
        "_is_silenced",
        "_is_trying",
        "_slow_start_s",
        "_stall",
        "_warming",
        "_warming_since",
        "_was_out",
        "is_draining",
        "is_leaving",
        "is_own_trial",
        "weight",
    )

    def __init__(
        self, breaker: BreakerConfig, slow_start_s: float, *, is_cold: bool = False
    ) -> None:
        self._breaker = Breaker(breaker)
        self._slow_start_s = slow_start_s
        self._down = "not checked yet"
        self._stall = ""
        self._failure = ""
        self._warming = ""
        self._warming_since: float | None = None
        self._is_first_check = True
        self._is_silenced = False
        self._is_trying = False
        self._was_out = _ADDED if is_cold else ""
        self.is_draining = False
        self.is_leaving = False
        self.is_own_trial = False
        self.weight = FIRST_WEIGHT if is_cold else 1.0

    @property
    def state(self) -> HealthState:
        """The first state of the module's list that applies."""
        is_out = self.is_draining or self.is_leaving
        return HealthState.DRAINING if is_out else self.condition

    @property
    def condition(self) -> HealthState:
        """Its state but for the operator's order: a drained replica still has requests to end."""
        if self._down:
            return HealthState.DOWN
        if self._stall:
            return HealthState.STALLED
        if self._breaker.state is BreakerState.OPEN:
            return HealthState.OPEN
        if self._breaker.state is BreakerState.HALF_OPEN:
            return HealthState.HALF_OPEN
        return HealthState.AVAILABLE if self._warming_since is None else HealthState.WARMING

    @property
    def standing(self) -> Standing:
        """What the router may do with it."""
        standing = _STANDINGS[self.state]
        if standing is Standing.TRIAL and (self._is_trying or self.is_own_trial):
            return Standing.LAST_RESORT
        return standing

    @property
    def reason(self) -> str:
        """Why it is in its state, in words for people; empty if it is available."""
        match self.state:
            case HealthState.AVAILABLE:
                return ""
            case HealthState.WARMING:
                return self._warming
            case HealthState.DRAINING:
                order = _REMOVED if self.is_leaving else "taken out by the operator"
                return order + (f"; {self._down}" if self._down else "")
        return self._trouble()

    @property
    def wants_successes(self) -> bool:
        """A success would change something; while it would not, none need be reported."""
        return not self._breaker.is_pristine

    # Checks.

    def answered_check(self) -> None:
        """Hear that the last check succeeded."""
        if self._down and not self._is_first_check:
            # It may be another process now: it is tried at once, or trusted if it cannot be.
            if self.is_own_trial:
                self._breaker.step(inf)
            else:
                self._breaker.reset()
        if not self.is_own_trial:
            self._stall = ""
        self._down = ""
        self._is_first_check = False

    def failed_check(self, reason: str) -> None:
        """Hear that the last check failed, or that no connection can be made."""
        self._down = reason
        self._is_first_check = False

    # Progress.

    def stalled(self, reason: str) -> None:
        """Hear that it owes answers and nothing of it moves."""
        self._stall = reason

    def silenced(self, now: float, reason: str) -> None:
        """Hear that every stream of it went silent, where nothing more can be known."""
        self._is_silenced = True
        self._failure = reason
        self._breaker.trip(now)

    def moved(self) -> None:
        """Hear that a byte of an answer came, or its counters moved."""
        self._stall = ""
        if self._is_silenced:
            self._breaker.reset()
            self._is_silenced = False

    # Requests.

    def failed(self, now: float, reason: str) -> None:
        """Hear that a request was not answered, or with a fault of the engine's."""
        self._failure = reason
        self._breaker.failed(now)

    def succeeded(self, now: float) -> None:
        """Hear that a request was answered; see `wants_successes`."""
        self._breaker.succeeded(now)

    def trial_passed(self, now: float) -> None:
        """Hear that the gateway's own trial was answered."""
        self._stall = ""
        self._breaker.succeeded(now)

    def trial_begun(self) -> None:
        """Hear that a client's request is the trial; no other is let through meanwhile."""
        self._is_trying = True

    def trial_ended(self) -> None:
        """Hear that this request has ended, with or without an outcome."""
        self._is_trying = False

    # Time.

    def step(self, now: float) -> None:
        """Let what depends on time follow: the breaker's next trial, the growing share."""
        self._breaker.step(now)
        if self._breaker.state is BreakerState.CLOSED:
            self._is_silenced = False
        if not self._is_first_check and (trouble := self._trouble()):
            self._was_out = f"back after: {trouble}"
            self._warming_since = None
            self.weight = FIRST_WEIGHT
        elif self._was_out and not self._is_first_check and not self.is_draining:
            self._warming, self._was_out = self._was_out, ""
            self._warming_since = now
        if self._warming_since is not None:
            self._warm(now - self._warming_since)

    def _warm(self, elapsed_s: float) -> None:
        if elapsed_s >= self._slow_start_s:
            self._warming_since = None
            self.weight = 1.0
        else:
            self.weight = max(FIRST_WEIGHT, elapsed_s / self._slow_start_s)

    def _trouble(self) -> str:
        if self._down or self._stall:
            return self._down or self._stall
        return "" if self._breaker.state is BreakerState.CLOSED else f"failures: {self._failure}"

    def check_integrity(self) -> None:
        """Assert what holds between the facts."""
        self._breaker.check_integrity()
        assert FIRST_WEIGHT <= self.weight <= 1.0
        assert (self.state is HealthState.AVAILABLE) <= (self.weight == 1.0 or bool(self._was_out))
        assert (self.standing is Standing.USABLE) == (
            self.state in (HealthState.AVAILABLE, HealthState.WARMING)
        )
