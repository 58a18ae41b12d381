"""A worker: one gateway process of several, started and watched by the supervisor.

It ends in one of three ways. The supervisor tells it to drain, or has ended itself: then new
requests are refused, as a single process does. Or it gets SIGTERM alone: then it leaves the port
to the others, refuses nothing, and is replaced.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Collection, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from headstart.accounting.line_lock import LineLock
from headstart.accounting.metrics import LabelValues, RequestMetrics
from headstart.accounting.recorder import Recorder
from headstart.cli import service
from headstart.cli.lifecycle import configure_process, first, settle_memory
from headstart.cli.workers.channel import Channel, open_channel
from headstart.cli.workers.memory import SharedMemory
from headstart.cli.workers.messages import (
    Ask,
    Drain,
    Failed,
    Hurry,
    Ready,
    Report,
    SetReplicaDraining,
    SetReplicas,
    ToWorker,
    WorkerStart,
)
from headstart.engines.base import ReplicaConfig
from headstart.errors import HeadstartError, NotFound
from headstart.gateway.gateway import Gateway
from headstart.gateway.gossip.plan import plan_worker
from headstart.gateway.process import process_status

_log = logging.getLogger(__name__)

_REPORT_S: Final = 1.0
"""Between two reports that nobody asked for: what a worker that is killed has counted since its
last one is missing in the sums."""

_CLOSE_S: Final = 1.0

FORCED: Final = 1
"""Exit status of a worker that cut off requests."""


@dataclass(slots=True)
class _Orders:
    """What the worker was told so far; the events stay set."""

    retire: asyncio.Event = field(default_factory=asyncio.Event)
    drain: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)


def worker_name(index: int) -> str:
    """Name a worker in messages and metrics."""
    return f"worker-{index}"


async def run_worker(descriptor: int) -> int:
    """Serve until told to end; returns the exit status.

    Args:
        descriptor: this end of the socket pair with the supervisor.
    """
    channel: Channel[ToWorker] = await open_channel(socket.socket(fileno=descriptor), ToWorker)
    data = await channel.receive_bytes()
    if data is None:
        return FORCED
    try:
        start = WorkerStart.decode(data)
        configure_process(worker_name(start.index))
        return await _Worker(start, channel).run()
    except HeadstartError as error:
        channel.send(Failed(error.message))
        return FORCED
    finally:
        await channel.close(within_s=_CLOSE_S)


class _Worker:
    """The process's gateway and its half of the conversation."""

    def __init__(self, start: WorkerStart, channel: Channel[ToWorker]) -> None:
        self._start = start
        self._channel = channel
        self._name = worker_name(start.index)
        self._orders = _Orders()
        self._replicas = start.replicas
        self._drained = set(start.drained)
        self._gateway: Gateway | None = None
        self._reporter: Reporter | None = None

    async def run(self) -> int:
        """Serve until told to end; returns the exit status."""
        self._hear_signals()
        listening = asyncio.create_task(self._obey(), name="orders")
        try:
            status = await self._serve()
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
        # The records are kept by now: the last report says so.
        if self._reporter is not None:
            self._reporter.send(is_last=True)
        return status

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._orders.retire.set)
        # Ctrl-C on a terminal goes to all processes; the supervisor tells this one what to do.
        loop.add_signal_handler(signal.SIGINT, lambda: None)

    async def _obey(self) -> None:
        while (order := await self._channel.receive()) is not None:
            match order:
                case Drain():
                    self._orders.drain.set()
                case Hurry():
                    self._orders.hurry.set()
                case Ask() if self._reporter is not None:
                    self._reporter.send(is_answer=True)
                case SetReplicaDraining():
                    self._set_replica_draining(order)
                case SetReplicas():
                    self._set_replicas(order)
        _log.warning("the supervisor has ended; open requests finish")
        self._orders.drain.set()

    def _set_replica_draining(self, order: SetReplicaDraining) -> None:
        if order.is_draining:
            self._drained.add(order.name)
        else:
            self._drained.discard(order.name)
        if self._gateway is None:
            return  # it hears of them when it is made
        with contextlib.suppress(NotFound):  # here it could not be used, or has been removed
            if order.is_draining:
                self._gateway.drain_replica(order.name)
            else:
                self._gateway.resume_replica(order.name)

    def _set_replicas(self, order: SetReplicas) -> None:
        self._drained = still_drained(self._drained, self._replicas, order.replicas)
        self._replicas = order.replicas
        if self._gateway is not None:
            self._gateway.set_replicas(order.replicas, cut=order.cut)

    async def _serve(self) -> int:
        orders = self._orders
        async with AsyncExitStack() as stack:
            starting = asyncio.ensure_future(self._start_gateway(stack))
            if not await first(starting, orders.retire, orders.drain, orders.hurry):
                await _cancel(starting)
                return 0
            gateway = starting.result()
            settle_memory()
            self._channel.send(Ready())
            reporting = asyncio.create_task(self._report(), name="reports")
            stack.push_async_callback(_cancel, reporting)
            forever = asyncio.get_running_loop().create_future()
            await first(forever, orders.retire, orders.drain, orders.hurry)
            if not orders.drain.is_set() and await _finishes(
                gateway.retire(), orders.drain, orders.hurry
            ):
                return 0
            return 0 if await _finishes(gateway.drain(), orders.hurry) else FORCED

    async def _report(self) -> None:
        assert self._reporter is not None
        while True:
            self._reporter.send()
            await asyncio.sleep(_REPORT_S)

    async def _start_gateway(self, stack: AsyncExitStack) -> Gateway:
        start = self._start
        config = start.config
        memory = SharedMemory(start.memory, start.num_workers, len(config.tenants))
        templates = service.load_templates(config)
        certificate = service.start_certificate(config.tls, stack)
        recorder, metrics = await service.start_recorder(
            config, stack, line_lock=LineLock(start.log_lock)
        )
        gateway = service.build_gateway(
            config,
            self._replicas,
            recorder,
            templates,
            tenant_counts=memory.tenant_counts(config.tenants, start.index),
            gossip=plan_worker(config.gossip, start.gossip_folder, start.index, start.num_workers),
        )
        stack.push_async_callback(gateway.close)
        for name in self._drained:
            gateway.drain_replica(name)
        self._gateway = gateway
        self._reporter = Reporter(self._name, self._channel, gateway, metrics, recorder)
        listeners = [socket.socket(fileno=descriptor) for descriptor in start.listeners]
        await gateway.start_shared(
            listeners,
            memory.board(start.index),
            tls=None if certificate is None else certificate.context,
        )
        return gateway


class Reporter:
    """Tells the supervisor this process's figures."""

    def __init__(
        self,
        name: str,
        channel: Channel[ToWorker],
        gateway: Gateway,
        metrics: RequestMetrics,
        recorder: Recorder,
    ) -> None:
        self._name = name
        self._channel = channel
        self._gateway = gateway
        self._metrics = metrics
        self._recorder = recorder
        self._seen: dict[LabelValues, int] = {}
        self._owes_answer = False

    def send(self, *, is_answer: bool = False, is_last: bool = False) -> None:
        """Report, unless the supervisor has not even taken the report before.

        Then the next one is the answer.
        """
        self._owes_answer = self._owes_answer or is_answer
        if not self._channel.is_clear and not is_last:
            return
        is_answer, self._owes_answer = self._owes_answer, False
        self._channel.send(
            Report(
                is_answer=is_answer,
                gateway=self._gateway.status(),
                requests=self._metrics.changes(self._seen),
                recorder=self._recorder.statistics(),
                process=process_status(self._name),
            )
        )


def still_drained(
    drained: Collection[str], old: Sequence[ReplicaConfig], new: Sequence[ReplicaConfig]
) -> set[str]:
    """Return whose order to drain still holds: it ends with the replica that it was given for."""
    urls = {replica.name: replica.url for replica in old}
    return {each.name for each in new if each.name in drained and urls.get(each.name) == each.url}


async def _finishes(work: Coroutine[object, object, None], *events: asyncio.Event) -> bool:
    """Run `work`; False if one of the events came first, and it was given up."""
    task = asyncio.ensure_future(work)
    if await first(task, *events):
        task.result()
        return True
    await _cancel(task)
    return False


async def _cancel(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
