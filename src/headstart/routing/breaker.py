"""A circuit breaker: whether a replica's recent answers allow to send it more.

    closed ──(failures in a row, or too many of the last)──> open ──(open_s)──> half-open
       ^                                                      ^                   │   │
       └────────────────────────(success)─────────────────────│───────────────────┘   │
                                                              └───────(failure)───────┘

An outcome is a success (the engine answered, a 4xx included: it understood and refused) or a
failure (connection lost, deadline passed, 5xx). A request whose client left is neither.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When a breaker opens, and for how long.

    Attributes:
        failures: so many in a row open it, >= 1. An engine whose worker has died answers 500 to
            everything; one request that it cannot digest must not cost it all others.
        window: how many of the last outcomes are remembered, >= `failures`; those before the
            first count as successes.
        failure_ratio: this share of the window's outcomes opens it too, 0..1.
        open_s: from opening to the first trial.
        max_open_s: each time that it opens again soon after, the wait doubles up to this.
    """

    failures: int = 5
    window: int = 20
    failure_ratio: float = 0.5
    open_s: float = 1.0
    max_open_s: float = 30.0


class BreakerState(Enum):
    """What a breaker lets through: everything, nothing, one trial at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """One replica's breaker; hears outcomes and the time.

    The last outcomes are the bits of one integer, the newest lowest, 1 for a failure. While it is
    zero and the breaker closed a success changes nothing, so successes need not be reported: see
    `is_pristine`.

    Args:
        config: when to open.
    """

    __slots__ = ("_closed_at", "_config", "_num_reopened", "_outcomes", "_try_at", "state")

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._outcomes = 0
        self._num_reopened = 0
        self._closed_at: float | None = None
        self._try_at = 0.0
        self.state = BreakerState.CLOSED

    @property
    def is_pristine(self) -> bool:
        """A success would change nothing."""
        return self._outcomes == 0 and self.state is BreakerState.CLOSED

    def succeeded(self, now: float) -> None:
        """Hear of a success; one after half-opening closes.

        While open it is ignored: it belongs to a request that was sent before.
        """
        if self.state is BreakerState.HALF_OPEN:
            self._close(now)
        elif self.state is BreakerState.CLOSED:
            self._remember(0)

    def failed(self, now: float) -> None:
        """Hear of a failure; it may open, and after half-opening it does."""
        if self.state is BreakerState.HALF_OPEN:
            self.trip(now)
        elif self.state is BreakerState.CLOSED:
            self._remember(1)
            if self._is_bad():
                self.trip(now)

    def trip(self, now: float) -> None:
        """Open whatever the outcomes were, e.g. because all streams have gone silent."""
        config = self._config
        is_soon = self.state is not BreakerState.CLOSED or (
            self._closed_at is not None and now - self._closed_at < config.max_open_s
        )
        self._num_reopened = self._num_reopened + 1 if is_soon else 0
        # The exponent is bounded so that an engine that is away for days does not overflow it.
        wait_s = config.open_s * 2 ** min(self._num_reopened, 32)
        self._try_at = now + min(wait_s, max(config.open_s, config.max_open_s))
        self._outcomes = 0
        self.state = BreakerState.OPEN

    def step(self, now: float) -> None:
        """Half-open when it is time."""
        if self.state is BreakerState.OPEN and now >= self._try_at:
            self.state = BreakerState.HALF_OPEN

    def reset(self) -> None:
        """Forget everything: another process answers there now."""
        self._outcomes = self._num_reopened = 0
        self._closed_at = None
        self.state = BreakerState.CLOSED

    def check_integrity(self) -> None:
        """Assert that what is remembered fits the window, and the state what is remembered."""
        assert 0 <= self._outcomes < 1 << self._config.window
        if self.state is BreakerState.CLOSED:
            assert not self._is_bad()
        else:
            assert self._outcomes == 0

    def _close(self, now: float) -> None:
        self._outcomes = 0
        self._closed_at = now
        self.state = BreakerState.CLOSED

    def _remember(self, is_failure: int) -> None:
        mask = (1 << self._config.window) - 1
        self._outcomes = (self._outcomes << 1 | is_failure) & mask

    def _is_bad(self) -> bool:
        config = self._config
        last = (1 << min(config.failures, config.window)) - 1
        if self._outcomes & last == last:
            return True
        return self._outcomes.bit_count() >= max(1.0, config.failure_ratio * config.window)
