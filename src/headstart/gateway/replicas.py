"""The replicas of one gateway: what each is made of, how it joins, and how it leaves.

A replica is a `Replica` of the fleet, the pool of its connections and what the monitor knows of it.
`set_wanted` is given the whole list that there should be, and finds out what has changed:

    new                    joins; it is sent requests once its first check has succeeded
    gone                   leaves: it gets no new request, has `drain_s` for what it was sent, and
                           is then dropped; what is open at that moment is tried elsewhere or ends
                           in form, as if the engine had died. One with nothing open is kept for
                           ten seconds, because sources waver
    back before that       stays, with its slot and all that was learned about it
    other models or key    stays likewise
    other in another way   leaves, and another one of the same name joins

Nobody waits for a replica to leave: `sweep` looks, a few times a second.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from headstart.clock import Clock
from headstart.engines.base import ReplicaConfig, UpstreamConfig
from headstart.engines.origin import Origin
from headstart.engines.upstream import UpstreamPool
from headstart.errors import ConfigError, NotFound, UpstreamUnavailable
from headstart.gateway.monitor import Monitor
from headstart.gateway.replica_listener import ReplicaListener
from headstart.gateway.watched import Watched
from headstart.routing.fleet import Fleet
from headstart.routing.replica import Replica

_log = logging.getLogger(__name__)

_KEEP_S: Final = 10.0
"""How long one that leaves is kept without need, if `drain_s` is not shorter: a readiness probe
that fails once and an answer of DNS that leaves one out would cost all that was learned of it."""


@dataclass(slots=True, eq=False)
class _Member:
    """One replica, whole.

    Attributes:
        watched: replica, configuration, pool and health.
        idle_until: monotonic seconds when it is dropped if it is leaving and has nothing open.
        leaves_by: and when it is dropped in any case.
    """

    watched: Watched
    idle_until: float = inf
    leaves_by: float = inf

    @property
    def config(self) -> ReplicaConfig:
        return self.watched.config

    @property
    def replica(self) -> Replica:
        return self.watched.replica


class ReplicaSet:
    """Adds, changes and removes replicas while requests run.

    Args:
        fleet: empty; the router's view.
        monitor: watches each replica.
        upstream: deadlines and pool size of each.
        strips_credentials: clients' keys never go upstream.
        drain_s: how long a removed replica may finish what it was sent.
        clock: monotonic readings, on the scale of `sweep`'s.
        listeners: told of each replica, in this order; in the opposite one when it is gone.

    Attributes:
        pools: connections by replica name; this one object, for as long as the gateway runs.
    """

    def __init__(
        self,
        fleet: Fleet,
        monitor: Monitor,
        upstream: UpstreamConfig,
        *,
        strips_credentials: bool,
        drain_s: float,
        clock: Clock,
        listeners: Sequence[ReplicaListener] = (),
    ) -> None:
        self._fleet = fleet
        self._monitor = monitor
        self._upstream = upstream
        self._strips_credentials = strips_credentials
        self._drain_s = drain_s
        self._clock = clock
        self._listeners = tuple(listeners)
        self._members: dict[str, _Member] = {}
        self._leaving: list[_Member] = []
        self._ends: set[asyncio.Task[None]] = set()
        self._unusable: dict[str, ReplicaConfig] = {}
        self.pools: dict[str, UpstreamPool] = {}
        monitor.on_return = self._returned

    @property
    def configs(self) -> list[ReplicaConfig]:
        """What it fronts, without those that leave."""
        return [member.config for member in self._members.values()]

    @property
    def watched(self) -> list[Watched]:
        """What is known of each replica, in the order of joining; those that leave come last.

        One that leaves and whose name another has got is not among them: names are unique.
        """
        leaving = {member.config.name: member.watched for member in self._leaving}
        staying = {name: member.watched for name, member in self._members.items()}
        return [*staying.values(), *(leaving[name] for name in leaving.keys() - staying.keys())]

    def start_with(self, configs: Sequence[ReplicaConfig]) -> None:
        """Take in the replicas that there are when the gateway starts.

        Raises:
            ConfigError: a URL, key or CA file cannot be used.
        """
        for config in configs:
            self._add(config, is_cold=False)

    def set_wanted(
        self, configs: Sequence[ReplicaConfig], *, cut: Collection[str] = frozenset()
    ) -> None:
        """Make the replicas what they should be.

        One that cannot be used is left out and said in the log, once: it must not keep the others
        from changing.

        Args:
            configs: all that there should be; names are unique.
            cut: names of those that are dropped at once if they leave, or are leaving.
        """
        wanted = {config.name: config for config in configs}
        for name, member in list(self._members.items()):
            if name not in wanted or not _is_same(member.config, wanted[name]):
                self._leave(member)
        # Those that come together share the load from the start, if there is nobody else.
        is_cold = bool(self._members)
        for config in wanted.values():
            member_now = self._members.get(config.name)
            if member_now is not None:
                self._change(member_now, config)
            elif not self._come_back(config):
                self._try_add(config, is_cold=is_cold)
        self._unusable = {n: c for n, c in self._unusable.items() if wanted.get(n) == c}
        for member in self._leaving:
            if member.config.name in cut:
                member.leaves_by = -inf
        self._drop_due(self._clock.monotonic())

    def set_draining(self, name: str, *, is_draining: bool) -> None:
        """Send the replica `name` no new requests, or use it again.

        The order holds until the replica has left.

        Raises:
            NotFound: there is no such replica.
        """
        member = self._members.get(name)
        if member is None:
            known = ", ".join(self._members)
            raise NotFound(f"There is no replica {name[:200]!r}; there are: {known}.")
        self._monitor.set_draining(member.watched, is_draining=is_draining)

    def sweep(self, now: float) -> None:
        """Keep the deadlines of all connections, and drop who has left.

        Args:
            now: monotonic seconds.
        """
        for member in (*self._members.values(), *self._leaving):
            member.watched.pool.sweep(now)
        self._monitor.sweep(now)
        self._drop_due(now)

    async def close(self) -> None:
        """Abort what is open and end every task."""
        await asyncio.gather(*self._ends)
        for member in (*self._members.values(), *self._leaving):
            await self._end(member)

    # Joining and changing.

    def _try_add(self, config: ReplicaConfig, *, is_cold: bool) -> None:
        if self._unusable.get(config.name) == config:
            return
        try:
            self._add(config, is_cold=is_cold)
        except ConfigError as error:
            self._unusable[config.name] = config
            _log.error("replica %s cannot be used: %s", config.name, error.message)
            return
        _log.info("replica %s was added: %s", config.name, config.url)

    def _add(self, config: ReplicaConfig, *, is_cold: bool) -> None:
        pool = UpstreamPool(self._origin(config), self._upstream)
        replica = Replica(config.name, frozenset(config.models))
        self._fleet.add(replica)
        self.pools[config.name] = pool
        watched = self._monitor.add(replica, config, pool, is_cold=is_cold)
        self._members[config.name] = _Member(watched)
        for listener in self._listeners:
            listener.replica_added(replica, config, pool.origin)

    def _origin(self, config: ReplicaConfig) -> Origin:
        return Origin(config, strips_credentials=self._strips_credentials)

    def _change(self, member: _Member, config: ReplicaConfig) -> None:
        if member.config == config:
            return
        try:
            origin = self._origin(config)
        except ConfigError as error:
            _log.error("replica %s stays as it was: %s", config.name, error.message)
            return
        member.watched.pool.use(origin)
        self._monitor.change(member.watched, config, origin)
        for listener in self._listeners:
            listener.replica_changed(member.replica, config, origin)
        _log.info("replica %s has changed", config.name)

    def _returned(self, replica: Replica) -> None:
        for listener in self._listeners:
            listener.replica_returned(replica)

    def _come_back(self, config: ReplicaConfig) -> bool:
        """Let the replica stay that is leaving and is this one; False if there is none."""
        for member in self._leaving:
            if _is_same(member.config, config):
                self._leaving.remove(member)
                self._fleet.restore(member.replica)
                self.pools[config.name] = member.watched.pool
                self._members[config.name] = member
                self._monitor.set_leaving(member.watched, is_leaving=False)
                _log.info("replica %s stays", config.name)
                self._change(member, config)
                return True
        return False

    # Leaving.

    def _leave(self, member: _Member) -> None:
        del self._members[member.config.name]
        self._leaving.append(member)
        now = self._clock.monotonic()
        member.idle_until = now + min(_KEEP_S, self._drain_s)
        member.leaves_by = now + self._drain_s
        self._fleet.retire(member.replica)
        self._monitor.set_leaving(member.watched, is_leaving=True)
        _log.info(
            "replica %s was removed; it has %d requests open",
            *(member.config.name, member.replica.in_flight),
        )

    def _drop_due(self, now: float) -> None:
        for member in list(self._leaving):
            is_idle = not member.replica.in_flight and now >= member.idle_until
            if is_idle or now >= member.leaves_by:
                self._drop(member)

    def _drop(self, member: _Member) -> None:
        name, pool = member.config.name, member.watched.pool
        # First, so that its requests still find all that they count themselves out of.
        pool.fail_calls(UpstreamUnavailable(f"The replica {name} was removed."))
        self._leaving.remove(member)
        self._monitor.forget(member.watched)
        self._fleet.remove(member.replica)
        if self.pools.get(name) is pool:
            del self.pools[name]
        for listener in reversed(self._listeners):
            listener.replica_removed(member.replica)
        task = asyncio.get_running_loop().create_task(self._end(member), name=f"end {name}")
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
        _log.info("replica %s is gone", name)

    async def _end(self, member: _Member) -> None:
        await self._monitor.end(member.watched)
        await member.watched.pool.close()


def _is_same(one: ReplicaConfig, other: ReplicaConfig) -> bool:
    """Tell whether two configurations are of one engine, which holds what it held."""
    changeable = replace(one, models=other.models, api_key=other.api_key, ca_file=other.ca_file)
    return changeable == other
