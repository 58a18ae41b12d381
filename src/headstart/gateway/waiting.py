"""Where requests wait while every replica that could take them has enough to do.

Theory of operation: nobody polls, and no request has a timer. A request that cannot go takes a
place; the end of another request calls `serve`, which sends on whoever is first among those that
can go. All else that may let requests go, or tell that they never will (a replica returned, a
replica was lost, somebody has waited for too long), is found by `sweep`, a few times a second.

What is expected of an objective is learned from those who are let in, so it must not keep everybody
out: who would be the first to wait for a model is not taken to wait long, and of those that would
be late without any wait one goes all the same, for each model every `max_wait_s`. Else a turn that
took long once, or an engine's slow first answers, would be refused for ever.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final, Protocol

from headstart.clock import Clock
from headstart.engines.base import ReplicaConfig
from headstart.engines.origin import Origin
from headstart.errors import (
    HeadstartError,
    NotFound,
    ObjectiveMissed,
    QueueFull,
    QueueTimeout,
    UpstreamUnavailable,
)
from headstart.routing.fleet import Fleet
from headstart.routing.queue import Line, Place, QueueConfig, WaitQueue
from headstart.routing.queue_orders import Match
from headstart.routing.replica import Replica
from headstart.wire.priority import MOST

_GAP_GAIN: Final = 0.1
"""Of each further time between two who go, in their moving average."""

_MAX_PACES: Final = 1024
"""Models whose pace is remembered."""


class _Pace:
    """How quickly those go who wait for a model.

    Attributes:
        gap_s: moving average of the time between two who go; None before the first has gone.
        since: when the last one went, or the first of those that wait came; of no meaning while
            nobody waits.
        tried_at: when one was last let in that was expected to be late, or the model came up.
    """

    __slots__ = ("gap_s", "since", "tried_at")

    def __init__(self, now: float) -> None:
        self.gap_s: float | None = None
        self.since = now
        self.tried_at = now

    def went(self, now: float) -> None:
        """Hear that one goes who waited."""
        gap_s = now - self.since
        self.gap_s = gap_s if self.gap_s is None else self.gap_s + _GAP_GAIN * (gap_s - self.gap_s)
        self.since = now

    def wait_s(self, num_ahead: int, now: float) -> float:
        """Return how long one waits behind `num_ahead` others; at least as long as nobody went."""
        gap_s = self.gap_s or 0.0
        return num_ahead * gap_s + max(gap_s, now - self.since)


class Waiter(Protocol):
    """A request that waits (`exchange.Exchange`)."""

    def match_on(self, targets: Sequence[Replica]) -> tuple[Match, float]:
        """Return what `targets` hold of its prompt, and in how many seconds it could begin.

        Must not raise: it is asked while others are served.
        """
        ...

    def turn_came(self, targets: Sequence[Replica]) -> None:
        """Go to one of `targets`, at least one of which has room."""
        ...

    def turn_failed(self, error: HeadstartError) -> None:
        """Hear why the request cannot be sent."""
        ...


class WaitingRoom:
    """Lets requests through to replicas, at most so many to each.

    Args:
        fleet: the replicas.
        config: what each of them takes, and bounds of the queue.
        clock: monotonic readings.
    """

    __slots__ = ("_clock", "_config", "_fleet", "_paces", "_queue")

    def __init__(self, fleet: Fleet, config: QueueConfig, clock: Clock) -> None:
        self._fleet = fleet
        self._config = config
        self._clock = clock
        self._queue: WaitQueue[Waiter] = WaitQueue(config)
        # By the hash of a model's name, which clients may make up. Kept for the objective only.
        self._paces: dict[int, _Pace] = {}
        for replica in fleet.replicas:
            self._limit(replica)

    def replica_added(self, replica: Replica, _config: ReplicaConfig, _origin: Origin) -> None:
        """Hear of a new replica; a sweep sends it what waits, once it is available."""
        self._limit(replica)

    def replica_changed(self, _replica: Replica, _config: ReplicaConfig, _origin: Origin) -> None:
        """Hear of another key or other models, which make no difference here."""

    def replica_returned(self, _replica: Replica) -> None:
        """Hear that a replica answers again; the next sweep sends it what waits."""

    def replica_removed(self, _replica: Replica) -> None:
        """Hear that a replica is gone: nothing is kept for it here."""

    def _limit(self, replica: Replica) -> None:
        if self._config.max_in_flight is not None:
            replica.max_in_flight = self._config.max_in_flight

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self._queue.num_waiting

    @property
    def num_waiting_bytes(self) -> int:
        """Their bodies together."""
        return self._queue.num_waiting_bytes

    def enter(
        self,
        who: Waiter,
        line: Line,
        targets: Sequence[Replica],
        num_bytes: int,
        group: str = "",
        tenant: str = "",
    ) -> Place[Waiter] | None:
        """Return the place in which `who` has to wait; None if it can go to `targets` at once.

        Args:
            who: wants to be sent.
            line: where.
            targets: the replicas that can take it.
            num_bytes: of its body.
            group: whose cached prefixes it may use.
            tenant: for whom it counts.

        Raises:
            QueueFull: it would have to wait, and cannot.
            ObjectiveMissed: its first token is not to be expected in time.
        """
        self.serve()  # whoever can go goes before; the others want nothing of what is free then
        has_room, now = _has_room(targets), self._clock.monotonic()
        objective_s = self._config.ttft_objective_s
        if objective_s is not None and line.failed is None:
            wait_s = 0.0 if has_room else self._wait_s(line, now)
            self._check_objective(wait_s, who.match_on(targets)[1], line.model, objective_s)
        if has_room:
            return None
        place = self._queue.join(who, line, num_bytes, now, group, tenant)
        if place is None:
            waiting, wait_s = self._queue.num_waiting, self._queue.longest_wait_s(now)
            raise QueueFull(
                f"All replicas are busy and {waiting} requests wait for one; try again later.",
                retry_after_s=ceil(wait_s),
            )
        if objective_s is not None and self._queue.num_ahead(line.model, MOST) == 1:
            self._pace(line.model, now).since = now
        return place

    def leave(self, place: Place[Waiter]) -> None:
        """Give up a place."""
        self._queue.leave(place)

    def serve(self) -> None:
        """Send on everybody who can go, in order.

        Cost: O(replicas) where all are full, else `WaitQueue.pop_next` for each who goes.
        """
        while self._queue.num_waiting and _has_room(self._fleet.replicas):
            now = self._clock.monotonic()
            place = self._queue.pop_next(self._can_go, self._match_of, now)
            if place is None:
                return
            if self._config.ttft_objective_s is not None:
                self._pace(place.line.model, now).went(now)
            place.who.turn_came(self._targets(place.line))

    def sweep(self, now: float) -> None:
        """Refuse those who have waited for too long or for nothing, and send on who can go.

        Args:
            now: monotonic seconds.
        """
        if not self._queue.num_waiting:
            return
        limit_s = self._config.max_wait_s
        while (place := self._queue.pop_late(now)) is not None:
            message = f"All replicas were busy for {limit_s:g} s; try again later."
            place.who.turn_failed(QueueTimeout(message, retry_after_s=ceil(limit_s)))
        for line in self._queue.lines():
            error = self._hopeless(line)
            if error is not None:
                self._refuse(line, error)
        self.serve()

    def close(self) -> None:
        """Refuse everybody, because the gateway ends."""
        for line in self._queue.lines():
            self._refuse(
                line, UpstreamUnavailable("The gateway is shutting down; try again elsewhere.")
            )

    def charge(self, tenant: str, tokens: int) -> None:
        """Hear what is computed for a tenant: `dlpm` counts it against its share."""
        self._queue.charge(tenant, tokens)

    def _match_of(self, place: Place[Waiter]) -> Match:
        return place.who.match_on(self._targets(place.line))[0]

    def _pace(self, model: str, now: float) -> _Pace:
        key = hash(model)
        pace = self._paces.get(key)
        if pace is None:
            while len(self._paces) >= _MAX_PACES:
                del self._paces[next(iter(self._paces))]
            pace = self._paces[key] = _Pace(now)
        return pace

    def _wait_s(self, line: Line, now: float) -> float:
        """Return how long one who comes now waits for its turn, as it has gone lately."""
        num_ahead = self._queue.num_ahead(line.model, line.priority)
        if not num_ahead and not self._queue.num_ahead(line.model, MOST):
            return 0.0
        return self._pace(line.model, now).wait_s(num_ahead, now)

    def _check_objective(
        self, wait_s: float, prefill_s: float, model: str, objective_s: float
    ) -> None:
        """Refuse a request whose first token is not to be expected in time."""
        late_s = wait_s + prefill_s - objective_s
        if late_s <= 0.0:
            return
        now, limit_s = self._clock.monotonic(), self._config.max_wait_s
        pace = self._pace(model, now)
        if not wait_s and now - pace.tried_at >= limit_s:
            pace.tried_at = now
            return
        raise ObjectiveMissed(
            f"The first token could be expected in {wait_s + prefill_s:.1f} s, and "
            f"queue.ttft_objective_s is {objective_s:g}; try again later.",
            # By then all that wait now have gone or were refused.
            retry_after_s=ceil(min(late_s, limit_s)),
        )

    def _refuse(self, line: Line, error: HeadstartError) -> None:
        for place in self._queue.pop_line(line):
            place.who.turn_failed(error)

    def _hopeless(self, line: Line) -> HeadstartError | None:
        try:
            return None if self._targets(line) else no_replica(line.model)
        except NotFound as error:
            return error

    def _can_go(self, line: Line) -> bool:
        try:
            return _has_room(self._targets(line))
        except NotFound:
            return False  # the next sweep tells them

    def _targets(self, line: Line) -> Sequence[Replica]:
        candidates = self._fleet.candidates(line.model)
        if line.failed is None:
            return candidates
        return tuple(each for each in candidates if each is not line.failed) or candidates


def no_replica(model: str) -> UpstreamUnavailable:
    """Return the error that says that no replica can be used for `model`, which may be empty."""
    what = f"the model {model[:200]!r}" if model else "this request"
    return UpstreamUnavailable(f"No replica is available for {what}; try again shortly.")


def _has_room(targets: Sequence[Replica]) -> bool:
    for replica in targets:  # noqa: SIM110  `any` and its generator take twice the time
        if replica.has_room:
            return True
    return False
