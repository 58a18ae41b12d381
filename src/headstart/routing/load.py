"""What a replica has to do, as this gateway counts it and as other gateways tell.

Theory of operation: a request is pending from being sent until its first token, then decoding until
it ends. An engine prefills in the order of arrival, so what is pending makes a backlog in seconds,
and time works it off: from `progress_at`, when the engine was last known to begin on the first of
them. A request that is not streamed shows no first token; it is taken to have had it once the time
that its prefill needs has passed, while one that is streamed and silent holds up those behind it.
So what time can have worked off unseen ends with the first streamed request.

Counts are our own: an engine's metrics, polled every second, are older than the requests that
matter most.
"""

from math import exp
from typing import Final

import msgspec

from headstart.routing.rates import PRIOR, Rates

ASSIGNED_S: Final = 120.0
"""Time constant with which assigned tokens are forgotten: Preble balances over minutes."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """What one request asks of a replica.

    Attributes:
        uncached_tokens: to prefill; also the KV that it adds to what is pinned, since what is
            cached is mostly shared with others that run.
        attention: these times the mean length of the context that each attends to.
        input_tokens: all of the prompt.
        is_stream: its first token will be seen.
    """

    uncached_tokens: int
    attention: float
    input_tokens: int
    is_stream: bool


NO_WORK: Final = Work(0, 0.0, 0, is_stream=False)
"""Of a request without a prompt."""


class RemoteLoad(msgspec.Struct, frozen=True):
    """A replica's load from others, as they count their own.

    Attributes:
        in_flight: requests.
        num_pending: of these, without a first token.
        pending_tokens: uncached tokens of those.
        active_tokens: KV that these have added to what is pinned.
    """

    in_flight: int = 0
    num_pending: int = 0
    pending_tokens: int = 0
    active_tokens: int = 0


_NOTHING: Final = RemoteLoad()


class ReplicaLoad:
    """Load of one replica; changed by the router and by gossip, read by policies.

    Counts are always right. What is worked out of them changes far more often than it is read, so
    whoever reads it calls `settle` first.

    Attributes:
        in_flight: requests, those from other gateways included; likewise the next four.
        num_pending: requests without a first token.
        num_decoding: requests past it.
        pending_tokens: uncached tokens of the pending ones.
        active_tokens: KV that requests have added to what is pinned.
        assigned_tokens: uncached tokens sent to it from here, the last `ASSIGNED_S` or so.
        assigned_input_tokens: all prompt tokens, likewise.
        progress_at: when the engine began on the first pending one.
        evict_s: harm of each token that has to be evicted for a new one, in seconds.
        rates: how quick it is.
        base_s: of `rates`.
        is_stale: the following are not worked out yet.
        backlog_s: time that prefilling what is pending takes, from `progress_at` on.
        credit_s: how much of it can have passed unseen.
        slowdown: factor by which what decodes slows prefilling down, >= 1.
        kv_share: of its KV, `active_tokens`; 0 where its capacity is not known.
        linear_s, attention_s: of `rates`, slowed down.
    """

    __slots__ = (
        "_attention",
        "_capacity_tokens",
        "_num_streamed",
        "_pending",
        "_remote",
        "_remotes",
        "active_tokens",
        "assigned_input_tokens",
        "assigned_tokens",
        "attention_s",
        "backlog_s",
        "base_s",
        "credit_s",
        "evict_s",
        "in_flight",
        "is_stale",
        "kv_share",
        "linear_s",
        "num_decoding",
        "num_pending",
        "pending_tokens",
        "progress_at",
        "rates",
        "slowdown",
    )

    def __init__(self, rates: Rates = PRIOR) -> None:
        self.rates = rates
        self.base_s = rates.base_s
        self._pending: dict[object, Work] = {}  # our own, in the order of sending
        self._num_streamed = 0  # of them
        self._attention = 0.0
        self._remotes: dict[str, RemoteLoad] = {}
        self._remote = _NOTHING  # their sum, which is part of the counts
        self._capacity_tokens = 0
        self.in_flight = self.num_pending = self.num_decoding = 0
        self.pending_tokens = self.active_tokens = 0
        self.assigned_tokens = self.assigned_input_tokens = 0.0
        self.progress_at = self.evict_s = 0.0
        self.settle()

    # Requests of our own.

    def begin(self, key: object, work: Work, now: float) -> None:
        """Count a request in.

        Args:
            key: stands for it; hashable.
            work: what it asks.
            now: monotonic seconds.
        """
        pending, uncached = self._pending, work.uncached_tokens
        was_idle = not self.num_pending  # what time has passed over ended earlier, if anything
        if self._num_streamed < len(pending):
            self._pass_time(now)
        if was_idle:
            self.progress_at = now
        pending[key] = work
        if work.is_stream:
            self._num_streamed += 1
        self.in_flight += 1
        self.num_pending += 1
        self.pending_tokens += uncached
        self.active_tokens += uncached
        self._attention += work.attention
        self.assigned_tokens += uncached
        self.assigned_input_tokens += work.input_tokens
        self.is_stale = True

    def first_token(self, key: object, now: float) -> None:
        """Hear that a request was prefilled, and with it those before it that show nothing.

        Mutates: nothing if it was taken to be prefilled before.
        """
        pending = self._pending
        if key not in pending:
            return
        if self._num_streamed < len(pending):
            for earlier in list(pending):
                if earlier is key:
                    break
                if not pending[earlier].is_stream:
                    self._prefilled(earlier, now)
        self._prefilled(key, now)

    def end(self, key: object, work: Work, now: float) -> None:
        """Count a request out; `key` and `work` as given to `begin`."""
        if key in self._pending:
            self._prefilled(key, now)
        self.num_decoding -= 1
        self.in_flight -= 1
        self.active_tokens -= work.uncached_tokens
        self.is_stale = True

    def take_back(self, work: Work) -> None:
        """Hear that a request's prompt was not computed: nothing was assigned after all."""
        self.assigned_tokens = max(self.assigned_tokens - work.uncached_tokens, 0.0)
        self.assigned_input_tokens = max(self.assigned_input_tokens - work.input_tokens, 0.0)

    def wait_s(self, now: float) -> float:
        """Return how long a request that is sent now waits for the others' prefill."""
        if self.is_stale:
            self.settle()
        return self.backlog_s - min(max(now - self.progress_at, 0.0), self.credit_s)

    def ahead(self, now: float) -> tuple[float, float]:
        """Return the tokens, and tokens times context, that are yet to be prefilled."""
        wait_s = self.wait_s(now)
        if self.backlog_s <= 0.0:
            return 0.0, 0.0
        left = wait_s / self.backlog_s
        return left * self.pending_tokens, left * self._attention

    def fade(self, seconds: float) -> None:
        """Forget part of what was assigned, as `seconds` have passed."""
        factor = exp(-seconds / ASSIGNED_S)
        self.assigned_tokens *= factor
        self.assigned_input_tokens *= factor

    def settle(self) -> None:
        """Work out what follows from the counts."""
        self.is_stale = False
        rates = self.rates
        self.slowdown = slowdown = 1.0 + self.num_decoding * rates.interference
        self.linear_s = linear_s = rates.linear_s * slowdown
        self.attention_s = attention_s = rates.attention_s * slowdown
        backlog_s = self.pending_tokens * linear_s + self._attention * attention_s
        self.backlog_s = backlog_s
        self.credit_s = backlog_s if not self._num_streamed else self._credit()
        capacity = self._capacity_tokens
        self.kv_share = self.active_tokens / capacity if capacity else 0.0

    # What is told.

    def set_rates(self, rates: Rates) -> None:
        """Note how quick it is."""
        if rates is not self.rates:
            self.rates = rates
            self.base_s = rates.base_s
            self.is_stale = True

    def set_capacity(self, capacity_tokens: int | None) -> None:
        """Note how many tokens its KV holds; None if that is not known."""
        self._capacity_tokens = capacity_tokens or 0
        self.is_stale = True

    def own(self) -> RemoteLoad:
        """Return what other gateways are told."""
        remote = self._remote
        return RemoteLoad(
            self.in_flight - remote.in_flight,
            self.num_pending - remote.num_pending,
            self.pending_tokens - remote.pending_tokens,
            self.active_tokens - remote.active_tokens,
        )

    def set_remote(self, source: str, load: RemoteLoad, now: float) -> None:
        """Take over what others sent, as `source` knows it, which also knows when to forget it."""
        if not self.num_pending:
            self.progress_at = now
        own = self.own()
        self._remotes[source] = load
        loads = self._remotes.values()
        self._remote = remote = RemoteLoad(
            sum(each.in_flight for each in loads),
            sum(each.num_pending for each in loads),
            sum(each.pending_tokens for each in loads),
            sum(each.active_tokens for each in loads),
        )
        self.in_flight = own.in_flight + remote.in_flight
        self.num_pending = own.num_pending + remote.num_pending
        self.num_decoding = self.in_flight - self.num_pending
        self.pending_tokens = own.pending_tokens + remote.pending_tokens
        self.active_tokens = own.active_tokens + remote.active_tokens
        self.is_stale = True

    def check_integrity(self) -> None:
        """Assert that the sums are those of the requests."""
        self.settle()
        works, own = self._pending.values(), self.own()
        assert own.num_pending == len(works)
        assert own.pending_tokens == sum(work.uncached_tokens for work in works)
        assert self._num_streamed == sum(work.is_stream for work in works)
        assert own.in_flight >= own.num_pending
        assert own.active_tokens >= own.pending_tokens
        assert 0.0 <= self.credit_s <= self.backlog_s * (1 + 1e-9) + 1e-9
        assert self.in_flight == self.num_pending + self.num_decoding
        assert self.assigned_tokens >= 0.0

    def _pass_time(self, now: float) -> None:
        """Take those at the head as prefilled that show nothing and have had the time."""
        pending = self._pending
        if self.is_stale:
            self.settle()
        while self._num_streamed < len(pending):
            first, work = next(iter(pending.items()))
            seconds = work.uncached_tokens * self.linear_s + work.attention * self.attention_s
            done_at = self.progress_at + seconds
            if work.is_stream or done_at > now:
                break
            self._prefilled(first, done_at)

    def _prefilled(self, key: object, at: float) -> None:
        pending = self._pending
        if next(iter(pending)) is key:
            self.progress_at = at
        work = pending.pop(key)
        if work.is_stream:
            self._num_streamed -= 1
        self.num_pending -= 1
        self.num_decoding += 1
        self.pending_tokens -= work.uncached_tokens
        # Sums of floats drift; that of none is zero.
        self._attention = self._attention - work.attention if pending else 0.0
        self.is_stale = True

    def _credit(self) -> float:
        seconds = 0.0
        for work in self._pending.values():
            seconds += work.uncached_tokens * self.linear_s + work.attention * self.attention_s
            if work.is_stream:
                break
        return min(seconds, self.backlog_s)
