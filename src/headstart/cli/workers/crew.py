"""Keeps N workers running: a task per place waits for its worker's end and replaces it."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import msgspec

from headstart.cli.lifecycle import first
from headstart.cli.workers.backoff import Backoff
from headstart.cli.workers.handle import WorkerHandle, spawn_worker
from headstart.cli.workers.memory import SharedMemory
from headstart.cli.workers.messages import (
    Drain,
    Hurry,
    Report,
    SetReplicaDraining,
    SetReplicas,
    WorkerStart,
)
from headstart.cli.workers.worker import FORCED, still_drained, worker_name
from headstart.engines.base import ReplicaConfig
from headstart.errors import HeadstartError

_log = logging.getLogger(__name__)

_GRACE_S: Final = 5.0
"""On top of what a worker is given to drain and to keep its records, before it is killed."""

_SILENCE_S: Final = 5.0
"""A worker reports once a second; one that has not for so long is worth a line in the log."""


class CrewListener(Protocol):
    """Who hears what workers report (`figures.Figures`)."""

    def reported(self, name: str, report: Report) -> None:
        """Take a worker's report."""
        ...

    def ended(self, name: str, last: Report | None) -> None:
        """Hear that a worker has ended; `last` is its last report."""
        ...


@dataclass(slots=True)
class Slot:
    """The place of one worker, whoever fills it.

    Attributes:
        index: which.
        worker: who fills it; None while it is empty.
        restarts: how often it was filled again.
    """

    index: int
    worker: WorkerHandle | None = None
    restarts: int = 0

    @property
    def name(self) -> str:
        """The worker's name in messages and metrics."""
        return worker_name(self.index)


class Crew:
    """The workers.

    Args:
        start: what each of them is sent; its `index` and `drained` are filled in here, and its
            `replicas` are those at first.
        memory: that they share.
        listener: hears what they report.
    """

    def __init__(self, start: WorkerStart, memory: SharedMemory, listener: CrewListener) -> None:
        self._start = start
        self._memory = memory
        self._listener = listener
        self._drained: frozenset[str] = frozenset()
        self._draining = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._num_lost = 0
        self.slots = tuple(Slot(index) for index in range(start.num_workers))

    @property
    def is_draining(self) -> bool:
        """Workers that end are not replaced any more."""
        return self._draining.is_set()

    @property
    def workers(self) -> list[WorkerHandle]:
        """Those that run."""
        return [slot.worker for slot in self.slots if slot.worker is not None]

    async def start(self) -> None:
        """Start all workers; returns once they take requests.

        Raises:
            HeadstartError: one of them could not start.
        """
        for slot in self.slots:
            self._memory.clear(slot.index)
            try:
                await self._spawn(slot)
            except OSError as error:
                raise HeadstartError(
                    f"cannot start {slot.name}: {error.strerror or error}; take fewer --workers"
                ) from error
        for worker in self.workers:
            ending = asyncio.ensure_future(worker.ended())
            if await first(ending, worker.is_ready):
                raise HeadstartError(
                    worker.failure
                    or f"a worker {_how_it_ended(ending.result())} before it took requests"
                )
            ending.cancel()
        self._keepers = [
            asyncio.create_task(self._keep(slot), name=f"keep {slot.name}") for slot in self.slots
        ]

    async def drain(self) -> bool:
        """Have all workers finish open requests and end; tells whether all of them did."""
        self._draining.set()
        self._tell(Drain())
        await self._end(self._start.config.drain_s)
        return self._num_lost == 0

    async def close(self) -> None:
        """Cut off what is open, and end the workers that still run."""
        self._draining.set()
        self._tell(Hurry())
        await self._end(0.0)

    async def _end(self, drain_s: float) -> None:
        """Wait for all workers to end; kill those that take longer than they are given."""
        ends = [asyncio.ensure_future(worker.ended()) for worker in self.workers]
        if ends:
            allowed_s = drain_s + self._start.config.recorder.close_s + _GRACE_S
            _done, late = await asyncio.wait(ends, timeout=allowed_s)
            if late:
                _log.error("%d workers do not end and are killed", len(late))
                await asyncio.gather(*(worker.kill() for worker in self.workers))
        for keeper in self._keepers:
            await asyncio.shield(keeper)

    def set_replica_draining(self, name: str, *, is_draining: bool) -> None:
        """Have every worker, also those to come, drain or resume a replica."""
        self._drained = self._drained | {name} if is_draining else self._drained - {name}
        self._tell(SetReplicaDraining(name, is_draining))

    def set_replicas(
        self, replicas: Sequence[ReplicaConfig], /, *, cut: Collection[str] = frozenset()
    ) -> None:
        """Have every worker, also those to come, front these replicas; a `roster.Apply`."""
        self._drained = frozenset(still_drained(self._drained, self._start.replicas, replicas))
        self._start = replace(self._start, replicas=tuple(replicas))
        self._tell(SetReplicas(tuple(replicas), tuple(cut)))

    def _tell(self, order: msgspec.Struct) -> None:
        for worker in self.workers:
            worker.tell(order)

    async def _keep(self, slot: Slot) -> None:
        backoff = Backoff()
        while True:
            lived_s = 0.0 if slot.worker is None else await self._see_off(slot.worker, slot)
            if await self._drains_within(backoff.after(lived_s)):
                return
            try:
                await self._spawn(slot)
            except OSError as error:
                _log.error("%s cannot be replaced now: %s", slot.name, error.strerror or error)
            else:
                slot.restarts += 1

    async def _see_off(self, worker: WorkerHandle, slot: Slot) -> float:
        """Wait for a worker's end and settle what it leaves; returns how long it lived."""
        status = await _watched(worker, slot.name)
        slot.worker = None
        self._memory.clear(slot.index)
        self._listener.ended(slot.name, worker.report)
        how = worker.failure or _how_it_ended(status)
        if status == 0:
            _log.info("%s (process %d) has drained", slot.name, worker.pid)
        elif self.is_draining:
            self._num_lost += 1
            if status != FORCED:
                _log.error("%s (process %d): %s", slot.name, worker.pid, how)
        else:
            _log.error("%s (process %d): %s; it is replaced", slot.name, worker.pid, how)
        return worker.lived_s

    async def _drains_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            return False
        return True

    async def _spawn(self, slot: Slot) -> None:
        start = replace(self._start, index=slot.index, drained=self._drained)
        inherited = (*start.listeners, start.memory, start.log_lock)
        listener = self._listener
        worker = await spawn_worker(start, inherited, partial(listener.reported, slot.name))
        slot.worker = worker
        # These orders may have gone out while this one was being started.
        if self._start.replicas != start.replicas:
            worker.tell(SetReplicas(self._start.replicas))
        for name in self._drained ^ start.drained:
            worker.tell(SetReplicaDraining(name, name in self._drained))
        if self.is_draining:
            worker.tell(Drain())


async def _watched(worker: WorkerHandle, name: str) -> int:
    """Wait for a worker's end and return its status; say it if the worker hangs meanwhile."""
    is_silent = False
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SILENCE_S):
                return await worker.ended()
        was_silent, is_silent = is_silent, worker.silent_s > _SILENCE_S
        if is_silent and not was_silent:
            _log.warning("%s (process %d) hangs: it does not report", name, worker.pid)
        elif was_silent and not is_silent:
            _log.info("%s (process %d) reports again", name, worker.pid)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
