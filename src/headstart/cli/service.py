"""One gateway put together: engines, records, data port and admin port, up and down again.

Up: store and log, embedded replica if no engine is named, data port, admin port. Down in the
opposite order, so that every finished request is still counted and kept.
"""

from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headstart.accounting.log import RequestLog
from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.recorder import Recorder
from headstart.accounting.sink import RecordSink
from headstart.accounting.store import STORE_FILE, RequestStore
from headstart.config.address import Address
from headstart.config.schema import HeadstartConfig
from headstart.engines.base import ReplicaConfig
from headstart.errors import ConfigError
from headstart.gateway.admin import AdminServer
from headstart.gateway.gateway import Gateway, TemplateApplier
from headstart.templates.apply import apply_template
from headstart.templates.registry import TemplateSet

if TYPE_CHECKING:
    from headstart.engines.embedded.process import EngineProcess
    from headstart.engines.embedded.settings import EngineSettings

_LOAD_S = 120.0
"""How long the embedded replica may take to load its model."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running gateway.

    Attributes:
        gateway: to drain it.
        recorder: to flush it.
        listen: bound data port.
        admin: bound admin port.
        replicas: what it fronts.
        num_templates: loaded ones.
        embedded: the child process, if it started one.
    """

    gateway: Gateway
    recorder: Recorder
    listen: Address
    admin: Address
    replicas: tuple[ReplicaConfig, ...]
    num_templates: int
    embedded: "EngineProcess | None"


@asynccontextmanager
async def running_service(
    config: HeadstartConfig, embedded: "EngineSettings | None" = None
) -> AsyncIterator[Service]:
    """Start everything, and end it on leaving: what is open then is aborted, so drain first.

    Args:
        config: as loaded.
        embedded: what to start as a replica; needed if `config.engines` is empty.

    Raises:
        ConfigError: a port cannot be bound, a template is wrong.
        StoreUnavailable: the store or the log cannot be opened.
        UpstreamUnavailable: the embedded replica does not start.
    """
    templates = TemplateSet() if config.templates is None else TemplateSet.load(config.templates)
    async with AsyncExitStack() as stack:
        metrics = RequestMetrics(config.metrics)
        recorder = Recorder(_sinks(config), observe=metrics.observe, config=config.recorder)
        stack.push_async_callback(recorder.close)
        await recorder.start()
        replicas, child = config.engines, None
        if not replicas:
            assert embedded is not None
            replica, child = await _start_embedded(embedded, stack)
            replicas = (replica,)
        gateway = _gateway(config, replicas, recorder, templates)
        stack.push_async_callback(gateway.close)
        listen = await _bind(gateway.start(config.listen.host, config.listen.port), config.listen)
        admin = AdminServer(gateway, metrics, recorder, key=config.admin_key)
        stack.push_async_callback(admin.close)
        yield Service(
            gateway=gateway,
            recorder=recorder,
            listen=listen,
            admin=await _bind(admin.start(config.admin.host, config.admin.port), config.admin),
            replicas=replicas,
            num_templates=len(templates),
            embedded=child,
        )


def _sinks(config: HeadstartConfig) -> list[RecordSink]:
    sinks: list[RecordSink] = [RequestStore(config.data_dir / STORE_FILE)]
    if config.request_log == "-":
        sinks.append(RequestLog.to_stdout())
    elif config.request_log != "off":
        sinks.append(RequestLog.to_file(config.request_log))
    return sinks


async def _start_embedded(
    settings: "EngineSettings", stack: AsyncExitStack
) -> "tuple[ReplicaConfig, EngineProcess]":
    from headstart.engines.embedded.process import spawn_engine

    child = await spawn_engine(settings, timeout_s=_LOAD_S)
    stack.push_async_callback(child.stop)
    return (
        ReplicaConfig("embedded", child.url, kind="embedded", models=(settings.model_name,)),
        child,
    )


def _gateway(
    config: HeadstartConfig,
    replicas: tuple[ReplicaConfig, ...],
    recorder: Recorder,
    templates: TemplateSet,
) -> Gateway:
    applier: TemplateApplier | None = None
    if len(templates):
        applier = partial(apply_template, templates=templates)
    return Gateway(
        replicas=replicas,
        recorder=recorder,
        routing=config.routing,
        tenants=config.tenants,
        apply_template=applier,
        upstream=config.upstream,
        health=config.health,
        limits=config.limits,
        drain_s=config.drain_s,
    )


async def _bind(start: Coroutine[Any, Any, int], address: Address) -> Address:
    try:
        return Address(address.host, await start)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {error.strerror or error}; "
            "end what uses it, or choose another with --port or --admin",
            param="listen",
        ) from error
