"""The gateway as one object: start it, drain it, close it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Collection, Sequence
from math import inf
from typing import Final

from headstart.accounting.tenant import Tenant
from headstart.accounting.tenant_counts import TenantCounts
from headstart.clock import Clock, SystemClock
from headstart.engines.base import HealthConfig, ReplicaConfig, UpstreamConfig
from headstart.gateway.acceptor import ConnectionBoard
from headstart.gateway.auth import Authenticator
from headstart.gateway.cache_status import CacheStatus
from headstart.gateway.data_path import DataPath, RecordSink
from headstart.gateway.handler import Handler
from headstart.gateway.knowledge import Knowledge, KnowledgeConfig
from headstart.gateway.limits import TenantLimiter
from headstart.gateway.monitor import Monitor
from headstart.gateway.prepare import Preparer, TemplateApplier, TemplatedBody
from headstart.gateway.replicas import ReplicaSet
from headstart.gateway.server import DataServer
from headstart.gateway.state import GatewayStatus, ReplicaStatus
from headstart.gateway.sweeper import Sweeper
from headstart.gateway.waiting import WaitingRoom
from headstart.gateway.watched import Watched
from headstart.routing.config import RoutingConfig
from headstart.routing.fleet import Fleet
from headstart.routing.queue import QueueConfig
from headstart.routing.replica import Standing
from headstart.wire.http1 import HttpLimits

__all__ = ["Gateway", "RecordSink", "TemplateApplier", "TemplatedBody"]

_DEFAULT_ROUTING: Final = RoutingConfig()
_DEFAULT_KNOWLEDGE: Final = KnowledgeConfig()
_DEFAULT_QUEUE: Final = QueueConfig()
_DEFAULT_UPSTREAM: Final = UpstreamConfig()
_DEFAULT_HEALTH: Final = HealthConfig()
_DEFAULT_LIMITS: Final = HttpLimits()
_SYSTEM_CLOCK: Final = SystemClock()

# Deadlines are late by at most one sweep: a quarter of a second, or less where they are shorter.
_MAX_SWEEP_S: Final = 0.25
_FIRST_CHECKS_S: Final = 2.0


class Gateway:
    """Data port, upstream client, routing and health checks of one process.

    It is its own `GatewayState`. Build it inside a running event loop.

    Args:
        replicas: engines in front of which it stands; more can come and these can go.
        recorder: takes one record per request; neither started nor closed here.
        routing: policy and parameters.
        knowledge: how it is known what replicas hold.
        queue: when requests wait for a replica, and how many.
        tenants: who may use it; empty means no authentication.
        tenant_counts: of these tenants, shared with other processes; None to count alone.
        apply_template: resolves `prompt: {id, version, variables}`; None answers such requests 400.
        upstream: deadlines and pool size.
        health: how replicas are checked.
        limits: sizes and deadlines of client connections.
        drain_s: how long `drain`, and a replica that was removed, let open requests finish.
        clock: monotonic readings for deadlines and timings, wall clock for records.

    Raises:
        ConfigError: a replica's URL, key or CA file cannot be used.
    """

    def __init__(
        self,
        *,
        replicas: Sequence[ReplicaConfig],
        recorder: RecordSink,
        routing: RoutingConfig = _DEFAULT_ROUTING,
        knowledge: KnowledgeConfig = _DEFAULT_KNOWLEDGE,
        queue: QueueConfig = _DEFAULT_QUEUE,
        tenants: Sequence[Tenant] = (),
        tenant_counts: TenantCounts | None = None,
        apply_template: TemplateApplier | None = None,
        upstream: UpstreamConfig = _DEFAULT_UPSTREAM,
        health: HealthConfig = _DEFAULT_HEALTH,
        limits: HttpLimits = _DEFAULT_LIMITS,
        drain_s: float = 30.0,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        authenticator = Authenticator(tenants)
        self._fleet = Fleet()
        self._monitor = Monitor(self._fleet, health, clock)
        self._limiter = TenantLimiter(tenants, tenant_counts)
        self._waiting = WaitingRoom(self._fleet, queue, clock)
        self._knowledge = Knowledge(routing, knowledge, clock)
        self._replicas = ReplicaSet(
            self._fleet,
            self._monitor,
            upstream,
            strips_credentials=authenticator.requires_key,
            drain_s=drain_s,
            clock=clock,
            listeners=(self._knowledge, self._waiting),
        )
        self._monitor.on_models = self._knowledge.models_found
        self._replicas.start_with(replicas)
        path = DataPath(
            authenticator=authenticator,
            preparer=self._preparer(apply_template, routing, replicas),
            fleet=self._fleet,
            router=self._knowledge.router,
            pools=self._replicas.pools,
            watch=self._monitor,
            recorder=recorder,
            clock=clock,
            limiter=self._limiter if self._limiter.has_limits else None,
            waiting=self._waiting if queue.max_in_flight is not None else None,
            tokens=self._knowledge.token_side,
        )
        self._handler = Handler(path, self, self._monitor.told_models)
        self._server = DataServer(self._handler, limits, clock)
        self._sweeper = self._make_sweeper(_sweep_interval(upstream, limits, health), clock)
        self._drain_s = drain_s
        self._watching: asyncio.Task[None] | None = None

    def _make_sweeper(self, interval_s: float, clock: Clock) -> Sweeper:
        swept = (self._server, self._replicas, self._limiter, self._waiting, self._knowledge)
        return Sweeper([each.sweep for each in swept], interval_s, clock)

    def _preparer(
        self,
        apply_template: TemplateApplier | None,
        routing: RoutingConfig,
        replicas: Sequence[ReplicaConfig],
    ) -> Preparer:
        return Preparer(
            apply_template,
            routing.prefix_hash,
            tokens=self._knowledge.token_side,
            renders_response_format=any(each.kind == "embedded" for each in replicas),
        )

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Check every replica, then listen; return the bound port.

        The first checks are given two seconds: who is told of the port then finds the replicas
        that answer, and the others follow when they do.

        Args:
            host: address to listen on.
            port: 0 lets the system choose.
            tls: serve https with this context.
        """
        bound = await self._server.bind(host, port, tls=tls)
        await self._begin()
        return bound

    async def start_shared(
        self,
        sockets: Sequence[socket.socket],
        board: ConnectionBoard,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Start as `start` does, on a port that other processes serve, too.

        Args:
            sockets: bound, not blocking; closed in the end.
            board: how many connections each process holds.
            tls: serve https with this context.
        """
        self._server.share(sockets, board, tls=tls)
        await self._begin()

    async def _begin(self) -> None:
        self._sweeper.start()
        self._knowledge.start()
        self._watching = asyncio.get_running_loop().create_task(self._monitor.run(), name="monitor")
        await self._monitor.checked(_FIRST_CHECKS_S)
        await self._server.listen()

    async def retire(self) -> None:
        """Leave a shared port to the other processes; wait until open requests have finished.

        Nothing is refused, because that would be for no reason: what has connected here is served
        once more, and the next connection goes to another process.
        """
        self._server.leave()
        await self._server.drain(self._drain_s)

    async def drain(self) -> None:
        """Refuse new requests and wait until open ones have finished, at most `drain_s`."""
        self._handler.is_draining = True
        self._server.rejoin()  # a refusal in form says more than a connection that is not taken
        await self._server.drain(self._drain_s)

    async def close(self) -> None:
        """Stop listening, abort what is open and end every task."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        self._waiting.close()  # or the end of each request would send on another
        await self._server.close()
        self._sweeper.stop()
        await self._knowledge.close()
        await self._replicas.close()

    @property
    def is_draining(self) -> bool:
        """New requests are refused."""
        return self._server.is_draining

    @property
    def is_ready(self) -> bool:
        """A request would find a replica, and the gateway is not draining."""
        replicas = self._fleet.replicas
        return not self.is_draining and any(each.standing is not Standing.OUT for each in replicas)

    @property
    def num_open_requests(self) -> int:
        """Requests accepted and not yet answered completely."""
        return self._server.num_open_requests

    @property
    def num_client_connections(self) -> int:
        """Open connections of clients."""
        return self._server.num_connections

    def replicas(self) -> Sequence[ReplicaStatus]:
        """Return every replica's status, in the order of joining; those that leave come last."""
        return [
            _status(watched, self._knowledge.cache_status(watched.replica))
            for watched in self._replicas.watched
        ]

    def replica_configs(self) -> list[ReplicaConfig]:
        """Return the replicas as they were given, without those that leave."""
        return self._replicas.configs

    def set_replicas(
        self, replicas: Sequence[ReplicaConfig], /, *, cut: Collection[str] = frozenset()
    ) -> None:
        """Front these replicas from now on; see `ReplicaSet.set_wanted`.

        Args:
            replicas: all that there should be; names are unique.
            cut: names of those whose open requests do not keep them, if they are not among these.
        """
        self._replicas.set_wanted(replicas, cut=cut)

    def drain_replica(self, name: str) -> None:
        """Send the replica `name` no new requests; open ones finish.

        Raises:
            NotFound: there is no such replica.
        """
        self._replicas.set_draining(name, is_draining=True)

    def resume_replica(self, name: str) -> None:
        """Use a drained replica again.

        Raises:
            NotFound: there is no such replica.
        """
        self._replicas.set_draining(name, is_draining=False)

    def status(self) -> GatewayStatus:
        """Return everything that others see of it, at one moment."""
        gossip = self._knowledge.gossip_statistics()
        return GatewayStatus(
            is_draining=self.is_draining,
            is_ready=self.is_ready,
            num_open_requests=self.num_open_requests,
            num_client_connections=self.num_client_connections,
            replicas=tuple(self.replicas()),
            num_waiting=self._waiting.num_waiting,
            num_waiting_bytes=self._waiting.num_waiting_bytes,
            limits=tuple(self._limiter.used()),
            shadows=self._knowledge.shadows(),
            gossip={} if gossip is None else {"gateway": gossip},
        )


def _status(watched: Watched, cache: CacheStatus | None) -> ReplicaStatus:
    replica = watched.replica
    return ReplicaStatus(
        name=replica.name,
        url=watched.config.url,
        kind=watched.config.kind,
        models=tuple(sorted(replica.models)),
        is_available=replica.is_available,
        reason=watched.health.reason,
        in_flight=replica.in_flight,
        in_flight_bytes=replica.in_flight_bytes,
        idle_connections=watched.pool.num_idle,
        connections=watched.pool.num_connections,
        state=watched.state.value,
        weight=replica.weight,
        transitions={state.value: count for state, count in watched.transitions.items()},
        cache=cache,
    )


def _sweep_interval(upstream: UpstreamConfig, limits: HttpLimits, health: HealthConfig) -> float:
    shortest = min(
        upstream.connect_s,
        upstream.first_byte_s,
        upstream.between_chunks_s,
        upstream.idle_s,
        limits.head_s,
        limits.body_s,
        limits.keep_alive_s,
        limits.stall_s,
        health.stall_s or inf,
    )
    return min(_MAX_SWEEP_S, shortest / 4)
