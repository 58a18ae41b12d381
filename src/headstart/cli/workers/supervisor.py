"""Several gateway processes put together: what `cli.service` is for one.

Up: data port's sockets, store, embedded replica if no engine is named, workers, admin port. Down
in the opposite order.
"""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.accounting.store import STORE_FILE, RequestStore
from headstart.cli import service
from headstart.cli.discovery import start_discovery
from headstart.cli.workers.crew import Crew
from headstart.cli.workers.figures import Totals, WorkersSource
from headstart.cli.workers.listeners import bind_listeners, bound_port, close_listeners
from headstart.cli.workers.memory import SharedMemory, create_file
from headstart.cli.workers.messages import WorkerStart
from headstart.config.address import Address
from headstart.config.schema import HeadstartConfig
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.roster import Roster
from headstart.gateway.gossip.links import socket_folder
from headstart.gateway.gossip.relay import Relay
from headstart.gateway.state import GatewayStatus

if TYPE_CHECKING:
    from headstart.engines.embedded.process import EngineProcess
    from headstart.engines.embedded.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class WorkersService:
    """A running gateway of several processes; `cli.service.Service` for one.

    Attributes:
        crew: to drain it.
        source: to look at it.
        listen: bound data port.
        admin: bound admin port.
        replicas: what it fronts.
        num_templates: loaded ones.
        embedded: the child process, if it started one.
    """

    crew: Crew
    source: WorkersSource
    listen: Address
    admin: Address
    replicas: tuple[ReplicaConfig, ...]
    num_templates: int
    embedded: "EngineProcess | None"

    async def status(self) -> GatewayStatus:
        """Return the gateway's present state."""
        return await self.source.status()

    async def drain(self) -> bool:
        """Let open requests finish for at most `drain_s`; tells whether no worker was lost."""
        return await self.crew.drain()


@asynccontextmanager
async def running_workers(
    config: HeadstartConfig, embedded: "EngineSettings | None" = None
) -> AsyncIterator[WorkersService]:
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
    templates = service.load_templates(config)
    _check(config)
    async with AsyncExitStack() as stack:
        with service.listening(config.listen):
            listeners = bind_listeners(config.listen.host, config.listen.port)
        stack.callback(close_listeners, listeners)
        replicas, child = await service.start_replicas(config, embedded, stack)
        num_tenants = len(config.tenants)
        memory_file = stack.enter_context(create_file(config.workers, num_tenants))
        log_lock = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
        gossip_folder = stack.enter_context(socket_folder())
        start = WorkerStart(
            index=0,
            num_workers=config.workers,
            config=config,
            replicas=replicas,
            drained=frozenset(),
            listeners=tuple(listener.fileno() for listener in listeners),
            memory=memory_file.fileno(),
            log_lock=log_lock.fileno(),
            gossip_folder=gossip_folder,
        )
        totals = Totals(config.metrics.max_series)
        memory = SharedMemory(memory_file.fileno(), config.workers, num_tenants)
        crew = Crew(start, memory, totals)
        stack.push_async_callback(crew.close)
        await _start_relay(config, gossip_folder, stack)
        await crew.start()
        roster = Roster(replicas, crew.set_replicas)
        await start_discovery(config.sources, os.environ, roster, stack)
        source = WorkersSource(crew, totals, roster)
        yield WorkersService(
            crew=crew,
            source=source,
            listen=Address(config.listen.host, bound_port(listeners)),
            admin=await service.start_admin(config, source, stack),
            replicas=replicas,
            num_templates=len(templates),
            embedded=child,
        )


async def _start_relay(config: HeadstartConfig, folder: Path, stack: AsyncExitStack) -> None:
    """Carry what workers tell each other to other hosts, if there are any, and back.

    Raises:
        ConfigError: its address cannot be bound.
    """
    if config.gossip.has_peers:
        relay = Relay(folder, config.workers, config.gossip)
        stack.push_async_callback(relay.close)
        relay.start()


def _check(config: HeadstartConfig) -> None:
    """Try what every worker will use, so that the start ends before any of them is started."""
    service.load_certificate(config.tls)
    # And so that none of them meets another while the file is made.
    RequestStore(config.data_dir / STORE_FILE).close()
