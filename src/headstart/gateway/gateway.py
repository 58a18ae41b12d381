"""The gateway as one object: start it, drain it, close it."""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Final

from headstart.accounting.tenant import Tenant
from headstart.clock import Clock, SystemClock
from headstart.engines.base import HealthConfig, ReplicaConfig, UpstreamConfig
from headstart.engines.origin import Origin
from headstart.engines.upstream import UpstreamPool
from headstart.gateway.auth import Authenticator
from headstart.gateway.exchange import DataPath, RecordSink
from headstart.gateway.handler import Handler
from headstart.gateway.monitor import Monitor, Watched
from headstart.gateway.prepare import Preparer, TemplateApplier, TemplatedBody
from headstart.gateway.server import DataServer
from headstart.gateway.state import ReplicaStatus
from headstart.gateway.sweeper import Sweeper
from headstart.routing.build import build_policy
from headstart.routing.config import RoutingConfig
from headstart.routing.fleet import Fleet
from headstart.routing.replica import Replica
from headstart.wire.http1 import HttpLimits

__all__ = ["Gateway", "RecordSink", "TemplateApplier", "TemplatedBody"]

_DEFAULT_ROUTING: Final = RoutingConfig()
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
        replicas: engines in front of which it stands, at least one.
        recorder: takes one record per request; neither started nor closed here.
        routing: policy and parameters.
        tenants: who may use it; empty means no authentication.
        apply_template: resolves `prompt: {id, version, variables}`; None answers such requests 400.
        upstream: deadlines and pool size.
        health: how replicas are checked.
        limits: sizes and deadlines of client connections.
        drain_s: how long `drain` lets open requests finish.
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
        tenants: Sequence[Tenant] = (),
        apply_template: TemplateApplier | None = None,
        upstream: UpstreamConfig = _DEFAULT_UPSTREAM,
        health: HealthConfig = _DEFAULT_HEALTH,
        limits: HttpLimits = _DEFAULT_LIMITS,
        drain_s: float = 30.0,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        authenticator = Authenticator(tenants)
        self._fleet = Fleet([Replica(each.name, frozenset(each.models)) for each in replicas])
        self._pools = {
            each.name: UpstreamPool(
                Origin(each, strips_credentials=authenticator.requires_key), upstream
            )
            for each in replicas
        }
        self._monitor = Monitor(self._fleet, replicas, self._pools, health)
        path = DataPath(
            authenticator=authenticator,
            preparer=Preparer(apply_template, routing.prefix_hash),
            fleet=self._fleet,
            policy=build_policy(routing),
            pools=self._pools,
            watch=self._monitor,
            recorder=recorder,
            clock=clock,
        )
        self._handler = Handler(path, self, self._monitor.told_models)
        self._server = DataServer(self._handler, limits, clock)
        self._sweeper = Sweeper(
            [self._server.sweep, *(pool.sweep for pool in self._pools.values())],
            _sweep_interval(upstream, limits),
            clock,
        )
        self._drain_s = drain_s
        self._watching: asyncio.Task[None] | None = None

    async def start(
        self, host: str, port: int, *, reuse_port: bool = False, tls: ssl.SSLContext | None = None
    ) -> int:
        """Check every replica, then listen; return the bound port.

        The first checks are given two seconds: who is told of the port then finds the replicas
        that answer, and the others follow when they do.

        Args:
            host: address to listen on.
            port: 0 lets the system choose.
            reuse_port: let several processes share the port.
            tls: serve https with this context.
        """
        bound = await self._server.bind(host, port, reuse_port=reuse_port, tls=tls)
        self._sweeper.start()
        self._watching = asyncio.get_running_loop().create_task(self._monitor.run(), name="monitor")
        await self._monitor.checked(_FIRST_CHECKS_S)
        await self._server.listen()
        return bound

    async def drain(self) -> None:
        """Refuse new requests and wait until open ones have finished, at most `drain_s`."""
        self._handler.is_draining = True
        await self._server.drain(self._drain_s)

    async def close(self) -> None:
        """Stop listening, abort what is open and end every task."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self._server.close()
        self._sweeper.stop()
        for pool in self._pools.values():
            await pool.close()

    @property
    def is_draining(self) -> bool:
        """New requests are refused."""
        return self._server.is_draining

    @property
    def is_ready(self) -> bool:
        """At least one replica is available and the gateway is not draining."""
        return not self.is_draining and any(each.is_available for each in self._fleet.replicas)

    @property
    def num_open_requests(self) -> int:
        """Requests accepted and not yet answered completely."""
        return self._server.num_open_requests

    @property
    def num_client_connections(self) -> int:
        """Open connections of clients."""
        return self._server.num_connections

    def replicas(self) -> Sequence[ReplicaStatus]:
        """Return every configured replica's status, in the order of the configuration."""
        return [_status(watched) for watched in self._monitor.watched]


def _status(watched: Watched) -> ReplicaStatus:
    replica = watched.replica
    return ReplicaStatus(
        name=replica.name,
        url=watched.config.url,
        kind=watched.config.kind,
        models=tuple(sorted(replica.models)),
        is_available=replica.is_available,
        reason=watched.reason,
        in_flight=replica.in_flight,
        in_flight_bytes=replica.in_flight_bytes,
        idle_connections=watched.pool.num_idle,
    )


def _sweep_interval(upstream: UpstreamConfig, limits: HttpLimits) -> float:
    shortest = min(
        upstream.connect_s,
        upstream.first_byte_s,
        upstream.between_chunks_s,
        upstream.idle_s,
        limits.head_s,
        limits.body_s,
        limits.keep_alive_s,
        limits.stall_s,
    )
    return min(_MAX_SWEEP_S, shortest / 4)
