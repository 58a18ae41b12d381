"""Run an embedded engine as a child process, so that it has its own interpreter and cores.

The child inherits a pipe on which it writes one JSON line when it listens, and a standard input
that closes when the parent ends, however it ends; the child then stops by itself. What the child
prints is kept, its last lines only, for the error message if it fails.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from dataclasses import dataclass

import msgspec

from headstart.engines.embedded.settings import EngineSettings, thread_environment
from headstart.errors import UpstreamUnavailable
from headstart.types import JsonObject

_KEPT_LINES = 30
_MAX_LINE_BYTES = 64 * 1024
_GRACE_S = 5.0
"""On top of the child's own `drain_s`, before it is killed."""


@dataclass(slots=True)
class EngineProcess:
    """A running child; owns the operating-system process and ends it in `stop`.

    Attributes:
        url: base URL of its HTTP surface.
        settings: what it was started with.
        kv_event_sources: where it publishes KV events.
    """

    url: str
    settings: EngineSettings
    kv_event_sources: list[JsonObject]
    _child: "_Child"

    @property
    def pid(self) -> int:
        """Return the child's process id."""
        return self._child.process.pid

    @property
    def returncode(self) -> int | None:
        """Return how the child ended, or None while it runs."""
        return self._child.process.returncode

    def last_lines(self) -> list[str]:
        """Return the last lines that the child printed."""
        return list(self._child.lines)

    async def wait(self) -> int:
        """Return the child's status once it has ended."""
        return await self._child.process.wait()

    async def stop(self) -> int:
        """Ask the child to drain and end; kill it if it does not. Returns its status."""
        return await self._child.stop(self.settings.drain_s + _GRACE_S)


async def spawn_engine(settings: EngineSettings, *, timeout_s: float) -> EngineProcess:
    """Start a child and return when it serves; several may be started at once.

    Args:
        settings: its model must be on disk.
        timeout_s: how long loading may take.

    Raises:
        UpstreamUnavailable: it ended or was silent; the message has its last lines.
    """
    read_end, write_end = os.pipe()
    try:
        child = await _start(settings, write_end)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    try:
        line = await asyncio.wait_for(_read_line(read_end), timeout_s)
        if not line:
            raise UpstreamUnavailable(await child.explain())
        ready = msgspec.json.decode(line)
    except TimeoutError as exc:
        await child.stop(0)
        raise UpstreamUnavailable(
            f"The embedded engine did not listen within {timeout_s:g} s. {child.said()}"
        ) from exc
    except BaseException:
        await child.stop(0)
        raise
    return EngineProcess(ready["url"], settings, ready["kv_event_sources"], child)


class _Child:
    """The process, and the task that reads what it prints."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reader = asyncio.create_task(self._read())

    def said(self) -> str:
        """Return the last thing that it printed, for an error message."""
        return f"It said: {self.lines[-1]}" if self.lines else "It said nothing."

    async def explain(self) -> str:
        """Wait for its end and say how it ended."""
        returncode = await self.process.wait()
        await self._reader
        lines = " / ".join(self.lines) or "nothing"
        return f"The embedded engine ended with status {returncode} before it served: {lines}"

    async def stop(self, grace_s: float) -> int:
        """End the process: SIGTERM, and after `grace_s` SIGKILL."""
        if self.process.returncode is None:
            self._signal(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
            try:
                await asyncio.wait_for(self.process.wait(), grace_s or None)
            except TimeoutError:
                self._signal(signal.SIGKILL)
        returncode = await self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        await self._reader
        return returncode

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while True:
            try:
                line = await self.process.stdout.readline()
            except ValueError:
                continue  # longer than a line may be; the reader has dropped it
            if not line:
                return
            self.lines.append(line.decode(errors="replace").rstrip())


async def _start(settings: EngineSettings, ready_fd: int) -> _Child:
    threads = {} if settings.threads is None else thread_environment(settings.threads)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # a folder called headstart in the working directory must not hide the package
        "-m",
        "headstart",
        "engine",
        *settings.arguments(),
        "--exit-with-parent",
        f"--ready-fd={ready_fd}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_MAX_LINE_BYTES,
        env={**os.environ, **threads},
        pass_fds=(ready_fd,),
    )
    return _Child(process)


async def _read_line(read_end: int) -> bytes:
    """Return the first line from a pipe, or nothing if its writers end first; closes it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
    )
    try:
        return await reader.readline()
    finally:
        transport.close()
