"""Keeps all sources watched, and the roster in time."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from headstart.engines.discovery.roster import Listing, Roster
from headstart.engines.discovery.source import Source

_log = logging.getLogger(__name__)

_SWEEP_S: Final = 1.0
_RESTART_S: Final = 10.0
"""After a fault of our own in a source; the list that it gave last stands meanwhile."""


class Discovery:
    """Watches sources.

    Args:
        sources: in the order in which they win where two list one replica.
        roster: told what they list.
    """

    def __init__(self, sources: Sequence[Source], roster: Roster) -> None:
        self._roster = roster
        self._watched = [(source, roster.listing(source)) for source in sources]

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source, listing in self._watched:
                group.create_task(_keep(source, listing), name=f"source {source.label}")
            while True:
                await asyncio.sleep(_SWEEP_S)
                self._roster.sweep()

    async def reported(self, within_s: float) -> None:
        """Wait until every source has said something, at most `within_s`; `run` runs meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for _source, listing in self._watched:
                    await listing.reported.wait()


async def _keep(source: Source, listing: Listing) -> None:
    while True:
        try:
            await source.watch(listing)
        except Exception as error:  # noqa: BLE001 -- the top of a task: it ends no other source
            _log.error("source %s failed", source.label, exc_info=True)
            listing.failed(f"a fault of headstart's own: {type(error).__name__}")
        await asyncio.sleep(_RESTART_S)
