"""One gateway put together: engines, records, data port and admin port, up and down again.

Up: store and log, embedded replica if no engine is named, data port, admin port. Down in the
opposite order, so that every finished request is still counted and kept. The parts are functions
that leave their end on a stack, because `cli.workers` puts the same parts together otherwise.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headstart.accounting.line_lock import LineLock
from headstart.accounting.log import RequestLog
from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.recorder import Recorder
from headstart.accounting.sink import RecordSink
from headstart.accounting.store import STORE_FILE, RequestStore, read_request
from headstart.accounting.tenant_counts import TenantCounts
from headstart.cli.discovery import start_discovery
from headstart.config.address import Address
from headstart.config.schema import HeadstartConfig, TlsConfig
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.roster import Roster
from headstart.errors import ConfigError
from headstart.gateway.gateway import Gateway, TemplateApplier
from headstart.gateway.gossip.plan import GossipPlan, plan_alone
from headstart.gateway.knowledge import KnowledgeConfig
from headstart.gateway.overview import AdminSource, LocalSource
from headstart.gateway.state import GatewayStatus
from headstart.gateway.tls import Certificate
from headstart.templates.apply import apply_template
from headstart.templates.registry import TemplateSet

if TYPE_CHECKING:
    from headstart.engines.embedded.process import EngineProcess
    from headstart.engines.embedded.settings import EngineSettings

_LOAD_S = 120.0
"""How long the embedded replica may take to load its model."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running gateway in this process.

    Attributes:
        gateway: to drain it.
        listen: bound data port.
        admin: bound admin port.
        replicas: what it fronts.
        num_templates: loaded ones.
        embedded: the child process, if it started one.
    """

    gateway: Gateway
    listen: Address
    admin: Address
    replicas: tuple[ReplicaConfig, ...]
    num_templates: int
    embedded: "EngineProcess | None"

    async def status(self) -> GatewayStatus:
        """Return the gateway's present state."""
        return self.gateway.status()

    async def drain(self) -> bool:
        """Let open requests finish for at most `drain_s`; returns True: nothing was lost."""
        await self.gateway.drain()
        return True


@asynccontextmanager
async def running_service(
    config: HeadstartConfig, embedded: "EngineSettings | None" = None
) -> AsyncIterator[Service]:
    """Start everything, and end it on leaving: what is open then is aborted, so drain first.

    Args:
        config: as loaded.
        embedded: what to start as a replica; needed if the configuration has neither engines nor
            sources of them.

    Raises:
        ConfigError: a port cannot be bound, a template or a certificate cannot be used.
        StoreUnavailable: the store or the log cannot be opened.
        UpstreamUnavailable: the embedded replica does not start.
    """
    templates = load_templates(config)
    async with AsyncExitStack() as stack:
        certificate = start_certificate(config.tls, stack)
        recorder, metrics = await start_recorder(config, stack)
        replicas, child = await start_replicas(config, embedded, stack)
        gossip = plan_alone(config.gossip)
        gateway = build_gateway(config, replicas, recorder, templates, gossip=gossip)
        stack.push_async_callback(gateway.close)
        tls = None if certificate is None else certificate.context
        with listening(config.listen):
            port = await gateway.start(config.listen.host, config.listen.port, tls=tls)
        roster = Roster(replicas, gateway.set_replicas)
        await start_discovery(config.sources, os.environ, roster, stack)
        source = LocalSource(gateway, metrics, recorder, roster)
        admin = await start_admin(config, source, stack)
        yield Service(
            gateway=gateway,
            listen=Address(config.listen.host, port),
            admin=admin,
            replicas=replicas,
            num_templates=len(templates),
            embedded=child,
        )


def load_templates(config: HeadstartConfig) -> TemplateSet:
    """Load the folder of templates, if there is one.

    Raises:
        ConfigError: a template is wrong.
    """
    return TemplateSet() if config.templates is None else TemplateSet.load(config.templates)


def load_certificate(tls: TlsConfig) -> Certificate | None:
    """Load the data port's certificate; None for plain http.

    Raises:
        ConfigError: it cannot be used.
    """
    if tls.cert_file is None or tls.key_file is None:
        return None
    return Certificate(tls.cert_file, tls.key_file)


def start_certificate(tls: TlsConfig, stack: AsyncExitStack) -> Certificate | None:
    """Load the data port's certificate and keep it up to date; None for plain http.

    Raises:
        ConfigError: it cannot be used.
    """
    certificate = load_certificate(tls)
    if certificate is None:
        return None
    watching = asyncio.get_running_loop().create_task(certificate.watch(), name="certificate")
    stack.push_async_callback(_end, watching)
    return certificate


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def start_recorder(
    config: HeadstartConfig, stack: AsyncExitStack, *, line_lock: LineLock | None = None
) -> tuple[Recorder, RequestMetrics]:
    """Open the store and the log and begin to keep records.

    Args:
        config: as loaded.
        stack: takes the recorder's end.
        line_lock: for a log that other processes write, too.

    Raises:
        StoreUnavailable: one of them cannot be opened.
    """
    metrics = RequestMetrics(config.metrics)
    sinks = _sinks(config, line_lock)
    recorder = Recorder(sinks, observe=metrics.observe, config=config.recorder)
    stack.push_async_callback(recorder.close)
    await recorder.start()
    return recorder, metrics


def _sinks(config: HeadstartConfig, line_lock: LineLock | None) -> list[RecordSink]:
    sinks: list[RecordSink] = [RequestStore(config.data_dir / STORE_FILE)]
    if config.request_log == "-":
        sinks.append(RequestLog.to_stdout(line_lock))
    elif config.request_log != "off":
        sinks.append(RequestLog.to_file(config.request_log, line_lock))
    return sinks


async def start_replicas(
    config: HeadstartConfig, embedded: "EngineSettings | None", stack: AsyncExitStack
) -> "tuple[tuple[ReplicaConfig, ...], EngineProcess | None]":
    """Return the configured replicas; without any, and any source of them, start an embedded one.

    Raises:
        UpstreamUnavailable: it does not start.
    """
    if config.engines or config.sources:
        return config.engines, None
    from headstart.engines.embedded.process import spawn_engine

    assert embedded is not None
    child = await spawn_engine(embedded, timeout_s=_LOAD_S)
    stack.push_async_callback(child.stop)
    replica = ReplicaConfig("embedded", child.url, kind="embedded", models=(embedded.model_name,))
    return (replica,), child


def build_gateway(
    config: HeadstartConfig,
    replicas: tuple[ReplicaConfig, ...],
    recorder: Recorder,
    templates: TemplateSet,
    *,
    tenant_counts: TenantCounts | None = None,
    gossip: GossipPlan | None = None,
) -> Gateway:
    """Make the gateway, which does not listen yet.

    Args:
        config: as loaded.
        replicas: what it fronts.
        recorder: started.
        templates: loaded.
        tenant_counts: shared with other processes; None to count alone.
        gossip: with other processes; None if this one is alone.

    Raises:
        ConfigError: a replica's URL, key or CA file cannot be used.
    """
    applier: TemplateApplier | None = None
    if len(templates):
        applier = partial(apply_template, templates=templates)
    return Gateway(
        replicas=replicas,
        recorder=recorder,
        routing=config.routing,
        knowledge=KnowledgeConfig(prefix=config.prefix, gossip=gossip),
        queue=config.queue.share(config.workers),
        tenants=config.tenants,
        tenant_counts=tenant_counts,
        apply_template=applier,
        upstream=config.upstream,
        health=config.health,
        limits=config.limits,
        drain_s=config.drain_s,
    )


async def start_admin(
    config: HeadstartConfig, source: AdminSource, stack: AsyncExitStack
) -> Address:
    """Open the admin port and return its address.

    Raises:
        ConfigError: it cannot be bound.
    """
    # Loaded here: a worker has no admin port, and needs neither aiohttp nor its memory.
    from headstart.gateway.admin import AdminServer

    server = AdminServer(
        source,
        key=config.admin_key,
        find_request=partial(read_request, config.data_dir / STORE_FILE),
    )
    stack.push_async_callback(server.close)
    with listening(config.admin):
        port = await server.start(config.admin.host, config.admin.port)
    return Address(config.admin.host, port)


@contextmanager
def listening(address: Address) -> Iterator[None]:
    """Say which address could not be taken.

    Raises:
        ConfigError: what is done inside raised OSError.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {error.strerror or error}; "
            "end what uses it, or choose another with --port or --admin",
            param="listen",
        ) from error
