"""One worker process as its supervisor sees it: started, told, heard, ended."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from headstart.cli.workers.channel import Channel, open_channel
from headstart.cli.workers.messages import Ask, Failed, FromWorker, Ready, Report, WorkerStart


class WorkerHandle:
    """A worker's process and the supervisor's end of the conversation.

    Args:
        process: running.
        channel: to it.
        on_report: told each report as it comes.

    Attributes:
        is_ready: set once it takes requests.
        failure: why it could not start, in its own words; empty if it has not said so.
        report: its last one.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        channel: Channel[FromWorker],
        on_report: Callable[[Report], None],
    ) -> None:
        self._process = process
        self._channel = channel
        self._on_report = on_report
        self._question: asyncio.Future[None] | None = None
        self._started_at = self._reported_at = time.monotonic()
        self.is_ready = asyncio.Event()
        self.failure = ""
        self.report: Report | None = None
        self._end = asyncio.create_task(self._live(), name=f"worker process {process.pid}")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def lived_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_at

    @property
    def silent_s(self) -> float:
        """Seconds since it last reported; 0 before it takes requests."""
        return time.monotonic() - self._reported_at if self.is_ready.is_set() else 0.0

    @property
    def is_late(self) -> bool:
        """It has been asked, and does not answer."""
        question = self._question
        return question is not None and not question.done()

    def tell(self, order: msgspec.Struct) -> None:
        """Send an order; without effect once it has ended."""
        self._channel.send(order)

    def ask(self) -> "asyncio.Future[None]":
        """Ask for a report; returns what is done when it has come, or when the worker has ended.

        One question at a time, so that a worker that hangs is not sent more and more of them.
        """
        if self._question is None or self._question.done():
            self._question = asyncio.get_running_loop().create_future()
            self._channel.send(Ask())
        return self._question

    async def ended(self) -> int:
        """Return the process's status once it has ended and its last report is in."""
        return await asyncio.shield(self._end)

    async def kill(self) -> int:
        """End it at once; returns its status."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return await self.ended()

    async def _live(self) -> int:
        try:
            while (message := await self._channel.receive()) is not None:
                self._hear(message)
        except msgspec.DecodeError as error:
            self.failure = f"it sent what cannot be read ({error})"
            self._process.kill()
        self._answered()  # nobody will
        status = await self._process.wait()
        await self._channel.close(within_s=0)
        return status

    def _hear(self, message: FromWorker) -> None:
        match message:
            case Ready():
                self.is_ready.set()
            case Failed():
                self.failure = message.message
            case Report():
                self._take(message)

    def _take(self, report: Report) -> None:
        self.report = report
        self._reported_at = time.monotonic()
        self._on_report(report)
        if report.is_answer:
            self._answered()

    def _answered(self) -> None:
        if self._question is not None and not self._question.done():
            self._question.set_result(None)


async def spawn_worker(
    start: WorkerStart, inherited: Sequence[int], on_report: Callable[[Report], None]
) -> WorkerHandle:
    """Start a worker; it is not ready yet.

    Args:
        start: what it needs.
        inherited: the descriptors that `start` names.
        on_report: told each of its reports.

    Raises:
        OSError: the system starts no more processes.
    """
    ours, its = socket.socketpair()
    ours.setblocking(False)
    with its:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a folder called headstart in the working directory is not the package
                *("-m", "headstart", "serve-worker", str(its.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(), *inherited),
            )
        except BaseException:
            ours.close()
            raise
    channel: Channel[FromWorker] = await open_channel(ours, FromWorker)
    channel.send_bytes(start.encode())
    return WorkerHandle(process, channel, on_report)
