"""Sources of replicas, while a service runs."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from headstart.config.sources import read_engines_file
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.build import SourceEntry, build_source
from headstart.engines.discovery.discovery import Discovery
from headstart.engines.discovery.roster import Roster

_FIRST_LISTS_S: Final = 3.0
"""How long a start waits for sources; what they list later joins later."""


async def start_discovery(
    entries: Sequence[SourceEntry],
    environment: Mapping[str, str],
    roster: Roster,
    stack: AsyncExitStack,
) -> None:
    """Watch the sources of the configuration; returns when each has said something, or soon.

    Args:
        entries: as configured; nothing happens without any.
        environment: the process's variables, for the keys that files of engines name.
        roster: told what is found.
        stack: takes the end.
    """
    if not entries:
        return
    read = partial(_read, environment)
    discovery = Discovery([build_source(entry, read) for entry in entries], roster)
    watching = asyncio.get_running_loop().create_task(discovery.run(), name="discovery")
    stack.push_async_callback(_end, watching)
    await discovery.reported(_FIRST_LISTS_S)


def _read(
    environment: Mapping[str, str], path: Path, template: ReplicaConfig
) -> Sequence[ReplicaConfig]:
    return read_engines_file(path, template, environment)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
