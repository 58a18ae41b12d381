"""Listens to a source."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headstart.engines.base import ReplicaConfig

TEMPLATE = ReplicaConfig("", "", kind="vllm", models=("m",), api_key="sk-secret")


class Heard:
    """What a source has said, in order: a list of replicas, or a reason."""

    def __init__(self) -> None:
        self.said: list[list[ReplicaConfig] | str] = []
        self._news = asyncio.Event()
        self._num_read = 0

    def found(self, replicas) -> None:
        self._say(list(replicas))

    def failed(self, reason: str) -> None:
        self._say(reason)

    def _say(self, what) -> None:
        self.said.append(what)
        self._news.set()

    async def next(self):
        """Return what is said next."""
        while len(self.said) <= self._num_read:
            self._news.clear()
            await self._news.wait()
        self._num_read += 1
        return self.said[self._num_read - 1]

    async def names(self) -> list[str]:
        """Return the names of the next list."""
        found = await self.next()
        assert not isinstance(found, str), found
        return [config.name for config in found]

    async def failure(self) -> str:
        """Return the next reason."""
        found = await self.next()
        assert isinstance(found, str), found
        return found


@contextlib.asynccontextmanager
async def hearing(source) -> AsyncIterator[Heard]:
    """Watch `source` while the block runs."""
    heard = Heard()
    task = asyncio.ensure_future(source.watch(heard))
    try:
        yield heard
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
