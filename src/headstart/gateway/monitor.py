"""Keeps what routing knows of each replica's health true: it asks, listens and steps the time.

Per replica there are two tasks, and nothing on a request's path:

    check   asks GET /v1/models, often while the replica is down, seldom while it is up, and at
            once when a request had trouble with it
    prove   asks what a frozen engine cannot fake, when there is reason to doubt: whether its
            counters move and whether it generates a token

A sweep a few times a second sees whether requests that wait are getting bytes, lets time pass in
each replica's health and tells the fleet. What the facts mean is `routing.health`'s to say. Which
replicas there are is `replicas.ReplicaSet`'s: one that leaves is watched until its last request
has ended, because a replica that is being removed can freeze like any other.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from headstart.clock import Clock
from headstart.engines.base import OWN_KINDS, OWN_MAKERS, HealthConfig, ReplicaConfig
from headstart.engines.origin import Origin
from headstart.engines.upstream import Call, UpstreamPool
from headstart.errors import UpstreamError, UpstreamTimeout
from headstart.gateway.probe import Probe
from headstart.gateway.watched import Watched
from headstart.routing.fleet import Fleet
from headstart.routing.health import HealthState, ReplicaHealth
from headstart.routing.replica import Replica
from headstart.types import JsonObject

_log = logging.getLogger(__name__)

_TRIED: Final = frozenset({HealthState.STALLED, HealthState.HALF_OPEN})
"""States that a trial of our own may end."""

_WELL: Final = frozenset({HealthState.AVAILABLE, HealthState.WARMING})

_SILENT: Final = frozenset({HealthState.STALLED, HealthState.DOWN})
"""States in which silence means that an answer will not come."""

_TRIAL_S: Final = 10.0
"""After so long a trial is sent anew: the engine may be another one, which never got the first."""

_LOOK_SHARE: Final = 0.25
"""A replica is looked at when it has been silent for this share of `stall_s`: early, because a look
costs little, and a verdict needs the whole of it besides."""

_MIN_STREAMS: Final = 2
_STREAMS_STALLS: Final = 3
"""Where nothing but streams can be watched, so many must fall silent, for so many times `stall_s`:
one model may think for long, several do not pause together."""


class _ModelList(msgspec.Struct):
    data: list[dict[str, object]]


_MODEL_LIST: Final = msgspec.json.Decoder(_ModelList)


class Monitor:
    """Keeps the fleet's standings, weights and models true.

    Args:
        fleet: told what was found.
        health: how often to check, and what to make of it.
        clock: monotonic readings, on the scale of `sweep`'s.

    Attributes:
        on_return: called with each replica that was down and answers its checks again.
        on_models: called with each replica's own list of models, by name, whenever it was read.
    """

    def __init__(self, fleet: Fleet, health: HealthConfig, clock: Clock) -> None:
        self._fleet = fleet
        self._config = health
        self._clock = clock
        self._watched: dict[Replica, Watched] = {}
        self._group: asyncio.TaskGroup | None = None
        self.on_return: Callable[[Replica], None] | None = None
        self.on_models: Callable[[Replica, dict[str, JsonObject]], None] | None = None

    def told_models(self) -> list[dict[str, JsonObject]]:
        """Return each engine's own list of models, by name."""
        return [watched.models for watched in self._watched.values()]

    # Which replicas there are.

    def add(
        self, replica: Replica, config: ReplicaConfig, pool: UpstreamPool, *, is_cold: bool
    ) -> Watched:
        """Watch a replica; it is out until its first check has succeeded.

        Args:
            replica: of the fleet.
            config: its address and identity.
            pool: the connections of requests.
            is_cold: it joins others at work, so its share begins small.
        """
        how = self._config
        health = ReplicaHealth(how.breaker, how.slow_start_s, is_cold=is_cold)
        watched = Watched(replica, config, pool, Probe(pool), health)
        self._watched[replica] = watched
        self._settle(watched)
        if self._group is not None:
            self._begin(watched, self._group)
        return watched

    def change(self, watched: Watched, config: ReplicaConfig, origin: Origin) -> None:
        """Go on watching a replica whose models or key have changed; it is checked at once."""
        watched.config = config
        watched.probe.use(origin)
        self._fleet.set_models(watched.replica, frozenset(config.models or watched.models))
        watched.wake.set()

    def set_draining(self, watched: Watched, *, is_draining: bool) -> None:
        """Take a replica out without dropping its open requests, or put it back."""
        watched.health.is_draining = is_draining
        self._settle(watched)

    def set_leaving(self, watched: Watched, *, is_leaving: bool) -> None:
        """Hear that a replica was removed and ends what it has, or that it is to stay."""
        watched.health.is_leaving = is_leaving
        self._settle(watched)

    def forget(self, watched: Watched) -> None:
        """Hear nothing more of a replica, whose last request has ended; `end` ends the rest."""
        del self._watched[watched.replica]

    async def end(self, watched: Watched) -> None:
        """End what is at work for a forgotten replica."""
        for task in watched.tasks:
            task.cancel()
        await asyncio.gather(*watched.tasks, return_exceptions=True)
        await watched.probe.close()

    # From requests.

    def trial_begun(self, replica: Replica) -> None:
        """Hear that a request goes to a replica that is on trial."""
        watched = self._watched[replica]
        watched.health.trial_begun()
        self._settle(watched)

    def trial_ended(self, replica: Replica) -> None:
        """Hear that this request has ended, whether or not an answer came."""
        watched = self._watched[replica]
        watched.health.trial_ended()
        self._settle(watched)

    def answered(self, replica: Replica, status: int) -> None:
        """Hear of an answer; one below 500 need only be told while `replica.is_suspect`."""
        watched, now = self._watched[replica], self._clock.monotonic()
        if status >= 500:
            watched.health.failed(now, f"it answered {status}")
        else:
            watched.health.succeeded(now)
        self._settle(watched)

    def failed(self, replica: Replica, call: Call, error: UpstreamError) -> None:
        """Hear that a call to it failed; it is checked at once."""
        watched = self._watched[replica]
        is_late = isinstance(error, UpstreamTimeout)
        if not call.is_sent and not is_late:
            watched.health.failed_check(error.message)
        elif is_late or call.has_begun or not call.is_reused:
            # A kept connection that was closed under a request says nothing of the engine.
            watched.health.failed(self._clock.monotonic(), error.message)
        watched.wake.set()
        self._settle(watched)

    # Time.

    async def run(self) -> None:
        """Check every replica, and prove those in doubt, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for watched in self._watched.values():
                    self._begin(watched, group)
                self._group = group
                await asyncio.get_running_loop().create_future()  # replicas may yet come
        finally:
            self._group = None
            for watched in list(self._watched.values()):
                await watched.probe.close()

    def _begin(self, watched: Watched, group: asyncio.TaskGroup) -> None:
        name = watched.config.name
        watched.tasks = (
            group.create_task(self._check_often(watched), name=f"check {name}"),
            group.create_task(self._prove_in_doubt(watched), name=f"prove {name}"),
        )

    async def checked(self, within_s: float) -> None:
        """Wait until every replica has been checked once, at most `within_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for watched in list(self._watched.values()):
                    await watched.is_checked.wait()

    def sweep(self, now: float) -> None:
        """See which replicas owe bytes and send none, and let time pass.

        Args:
            now: monotonic seconds.
        """
        for watched in self._watched.values():
            watched.probe.sweep(now)
            if self._config.stall_s:
                self._watch_silence(watched, now)
            self._settle(watched)
            if watched.health.condition in _TRIED and watched.health.is_own_trial:
                watched.doubt.set()

    def _watch_silence(self, watched: Watched, now: float) -> None:
        pool, replica, health = watched.pool, watched.replica, watched.health
        # Errors, heads and pings come from the server before an engine, which its freezing does
        # not stop. Of others we know no better than their bytes.
        has_progressed = replica.has_progressed if health.is_own_trial else pool.has_received
        watched.has_shown_life |= pool.has_received
        pool.has_received = replica.has_progressed = False
        if has_progressed:
            watched.silent_since = None
            health.moved()
            return
        num_waiting, num_begun = pool.num_waiting()
        if not num_waiting:
            watched.silent_since = None
        elif watched.silent_since is None:
            watched.silent_since = now
        elif now - watched.silent_since >= _LOOK_SHARE * self._config.stall_s:
            self._doubt(watched, num_begun, now)

    def _doubt(self, watched: Watched, num_begun: int, now: float) -> None:
        """Act on a silence that has lasted for a while."""
        assert watched.silent_since is not None
        silence_s, stall_s = now - watched.silent_since, self._config.stall_s
        condition, is_own = watched.health.condition, watched.health.is_own_trial
        if condition in _SILENT:
            # A provider whose list of models fails may be at work on what it has all the same.
            if is_own or watched.is_late:
                watched.pool.engine_stalled()
        elif condition in _WELL:
            if is_own and now - watched.looked_at >= _LOOK_SHARE * stall_s:
                watched.doubt.set()
            if num_begun >= _MIN_STREAMS and silence_s >= _STREAMS_STALLS * stall_s:
                reason = f"all its {num_begun} streams were silent for {silence_s:.0f} s"
                watched.health.silenced(now, reason)

    # Checks.

    async def _check_often(self, watched: Watched) -> None:
        while True:
            watched.wake.clear()
            is_up = await self._check(watched)
            config = self._config
            is_well = is_up and not watched.is_late
            pause_s = config.up_interval_s if is_well else config.down_interval_s
            if not is_up:
                # A request found it unreachable and woke us; it is no use asking again at once.
                await asyncio.sleep(pause_s)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await watched.wake.wait()

    async def _check(self, watched: Watched) -> bool:
        """Ask one replica for its models; returns whether it can be used."""
        trouble = ""
        was_down = watched.is_checked.is_set() and watched.health.condition is HealthState.DOWN
        try:
            status, body = await watched.probe.models(self._config.timeout_s)
        except UpstreamTimeout as error:
            # An engine that computes on the processor that answers checks can be late once; one
            # that is late again, or from which nothing came at all, is of no use.
            if watched.is_late or not (watched.has_shown_life or watched.pool.has_received):
                trouble = error.message
            watched.is_late = True
        except UpstreamError as error:
            trouble = error.message
        else:
            watched.is_late = False
            trouble = _trouble_of(status)
            if not trouble:
                self._read_models(watched, body if status == 200 else b"")
                watched.health.answered_check()
        if trouble:
            watched.health.failed_check(trouble)
        watched.has_shown_life = False
        watched.is_checked.set()
        self._settle(watched)
        if was_down and not trouble and self.on_return is not None:
            self.on_return(watched.replica)
        return not trouble

    def _read_models(self, watched: Watched, body: bytes) -> None:
        models = _parse_models(body)
        if models is not None:
            watched.models = models
            if self.on_models is not None:
                self.on_models(watched.replica, models)
            if not watched.config.models:
                self._fleet.set_models(watched.replica, frozenset(models))
        is_own = watched.config.kind in OWN_KINDS or any(
            entry.get("owned_by") in OWN_MAKERS for entry in watched.models.values()
        )
        watched.health.is_own_trial = is_own and bool(watched.trial_model)

    # Proofs.

    async def _prove_in_doubt(self, watched: Watched) -> None:
        while True:
            await watched.doubt.wait()
            if watched.health.condition in _TRIED:
                await self._try_out(watched)
            elif watched.health.condition in _WELL:
                await self._look(watched)
            watched.doubt.clear()  # the next sweep sets it again, if it is still in doubt

    async def _try_out(self, watched: Watched) -> None:
        """Ask for one token, and wait for it: it comes when the engine goes on."""
        if await watched.probe.generates(watched.trial_model, _TRIAL_S) is False:
            await asyncio.sleep(self._config.down_interval_s)
            return
        watched.health.trial_passed(self._clock.monotonic())
        self._settle(watched)

    async def _look(self, watched: Watched) -> None:
        """Look for `stall_s` whether anything of a silent replica moves."""
        limit_s = self._config.stall_s
        is_moving = await watched.probe.is_moving(watched.trial_model, limit_s)
        now, since = self._clock.monotonic(), watched.silent_since
        watched.looked_at = now
        if since is None or watched.replica.has_progressed:
            return  # it has sent something meanwhile, or owes nothing more
        if is_moving:
            watched.silent_since = now
        elif is_moving is not None and now - since >= limit_s:
            watched.health.stalled(f"nothing of it moved for {now - since:.0f} s")
            self._settle(watched)

    # To the fleet.

    def _settle(self, watched: Watched) -> None:
        """Let the facts take effect, and tell of a new state once."""
        health, replica = watched.health, watched.replica
        health.step(self._clock.monotonic())
        self._fleet.set_standing(replica, health.standing)
        replica.weight = health.weight
        replica.is_suspect = health.wants_successes
        state = health.state
        if state is not watched.state:
            watched.state = state
            watched.transitions[state] += 1
            level = logging.INFO if state in _WELL else logging.WARNING
            why = f": {health.reason}" if health.reason else ""
            _log.log(level, "replica %s is %s%s", watched.config.name, state.value, why)


def _trouble_of(status: int) -> str:
    if status in (401, 403):
        return f"it refuses our key ({status}); check api_key_env"
    return f"GET /v1/models answers {status}" if status >= 500 else ""


def _parse_models(body: bytes) -> dict[str, JsonObject] | None:
    try:
        entries = _MODEL_LIST.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    named = ((entry.get("id"), entry) for entry in entries)
    return {name: entry for name, entry in named if isinstance(name, str)}
