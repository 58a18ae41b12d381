"""Replicas that a file lists, which may change: for tools that write files, and for people.

The file is looked at once a second, because notifications do not come over network file systems
and differ with every system. It is read once it has looked the same twice, so that one that is
still being written is not taken for a shorter list; whoever writes it can also write another one
and rename it. A file that cannot be read leaves things as they are.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.source import SourceListener
from headstart.errors import ConfigError

ReadFile = Callable[[Path], Sequence[ReplicaConfig]]
"""Reads a list of engines as the configuration has it; raises ConfigError."""


@dataclass(frozen=True, slots=True)
class FileConfig:
    """Which file.

    Attributes:
        path: YAML or JSON with one key, `engines`, a list as in the configuration.
        poll_s: > 0; between two looks.
    """

    path: Path
    poll_s: float = 1.0


class FileSource:
    """Watches one file.

    Args:
        config: which.
        read: reads it; called on a thread.
    """

    def __init__(self, config: FileConfig, read: ReadFile) -> None:
        self._config = config
        self._read = read

    @property
    def label(self) -> str:
        """What people call it."""
        return f"file {self._config.path}"

    @property
    def grace_s(self) -> float:
        """None: who edits a file means it."""
        return 0.0

    async def watch(self, listener: SourceListener) -> None:
        """Tell the file's list and each change of it, until cancelled."""
        path = self._config.path
        read_as: object = None
        looked_like = await asyncio.to_thread(_stamp, path)
        while True:
            stamp = await asyncio.to_thread(_stamp, path)
            if stamp == looked_like and stamp != read_as:
                read_as = stamp
                try:
                    listener.found(await asyncio.to_thread(self._read, path))
                except ConfigError as error:
                    listener.failed(error.message)
            looked_like = stamp
            await asyncio.sleep(self._config.poll_s)


def _stamp(path: Path) -> tuple[int, ...] | str:
    """Return what changes when the file does; a link that leads elsewhere is another file."""
    try:
        found = path.stat()
    except OSError as error:
        return str(error.strerror)
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
