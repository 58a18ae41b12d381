"""One replica's part of the feed: what it publishes, a stream for each rank, and its capacity.

Where a replica publishes may change with each restart, so it is asked again whenever a stream's
connection is lost, when the replica came back, and now and then.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from headstart.clock import Clock
from headstart.engines.base import EngineKind
from headstart.engines.kv_feed.capacity import UNKNOWN_CAPACITY, KvCapacity, read_capacity
from headstart.engines.kv_feed.config import KvEventsConfig, KvFeedConfig
from headstart.engines.kv_feed.sink import KvSink
from headstart.engines.kv_feed.sources import (
    BadKvSource,
    KvSource,
    ReplicaHost,
    configured_sources,
    described_sources,
    listed_sources,
)
from headstart.engines.kv_feed.statistics import KvReplicaStatistics
from headstart.engines.kv_feed.stream_feed import StreamFeed
from headstart.engines.origin import Origin
from headstart.engines.questions import EngineAnswer, Questions
from headstart.errors import UpstreamError

_log = logging.getLogger(__name__)

_HAS_NO_SUCH_PATH: Final = frozenset({404, 405, 501})


@dataclass(frozen=True, slots=True)
class FedReplica:
    """A replica as the feed knows it.

    Attributes:
        name: unique within the gateway.
        slot: its number in the index.
        kind: which question it understands.
        origin: whom to ask.
        events: its publishers, if the operator named them.
        capacity: of its cache, as far as the operator named it.
    """

    name: str
    slot: int
    kind: EngineKind
    origin: Origin
    events: KvEventsConfig | None = None
    capacity: KvCapacity = UNKNOWN_CAPACITY


class ReplicaFeed:
    """Follows one replica until it is cancelled.

    Args:
        replica: which.
        sink: told of everything.
        context: whose sockets are used.
        config: how.
        clock: monotonic readings for the sink, wall clock for the lag.
    """

    def __init__(
        self,
        replica: FedReplica,
        sink: KvSink,
        context: "zmq.Context[zmq.Socket[bytes]]",
        config: KvFeedConfig,
        clock: Clock,
    ) -> None:
        self._replica = replica
        self._sink = sink
        self._context = context
        self._config = config
        self._clock = clock
        self._questions = Questions(replica.origin)
        self._streams: dict[KvSource, tuple[StreamFeed, asyncio.Task[None]]] = {}
        self._capacity: KvCapacity | None = None
        self._trouble = "it was not asked yet"
        self._is_forgotten = False
        self._doubt_sources = asyncio.Event()
        self._doubt_capacity = asyncio.Event()

    async def run(self) -> None:
        """Follow the replica; only returns by being cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                name = self._replica.name
                group.create_task(self._follow_capacity(), name=f"kv capacity of {name}")
                group.create_task(self._follow_sources(group), name=f"kv sources of {name}")
        finally:
            self._forget_streams()
            await self._questions.close()

    def forget(self) -> None:
        """Have the sink forget the replica's streams, and tell it nothing more."""
        self._is_forgotten = True
        self._forget_streams()

    def came_back(self) -> None:
        """Ask the replica again, now: it may be another process than before."""
        self._doubt()
        for stream, _ in self._streams.values():
            stream.verify()

    def _doubt(self) -> None:
        self._doubt_sources.set()
        self._doubt_capacity.set()

    def rebuild(self) -> None:
        """Forget what its streams told, and read them from their beginning."""
        self._doubt()
        for stream, _ in self._streams.values():
            stream.rebuild()

    def statistics(self) -> KvReplicaStatistics:
        """Return what it shows at this moment."""
        streams = sorted(self._streams.values(), key=lambda pair: pair[0].source.rank)
        return KvReplicaStatistics(
            name=self._replica.name,
            capacity=self._capacity,
            streams=tuple(stream.statistics() for stream, _ in streams),
            trouble=self._trouble,
        )

    # Capacity.

    async def _follow_capacity(self) -> None:
        while True:
            self._doubt_capacity.clear()
            is_known = await self._ask_capacity()
            pause_s = self._config.capacity_s if is_known else self._config.retry_s
            await _pause(self._doubt_capacity, pause_s)

    async def _ask_capacity(self) -> bool:
        """Read the metrics page; returns whether there was an answer."""
        answer = await self._ask("/metrics")
        if answer is None or answer.status >= 500:
            return False
        capacity = read_capacity(answer.body) if answer.status == 200 else UNKNOWN_CAPACITY
        named = self._replica.capacity
        capacity = KvCapacity(
            named.tokens or capacity.tokens, named.block_size or capacity.block_size
        )
        if capacity != self._capacity and not self._is_forgotten:
            self._capacity = capacity
            self._sink.set_capacity(self._replica.slot, capacity.tokens, capacity.block_size)
            if capacity.tokens is not None:
                told = (self._replica.name, capacity.tokens, capacity.block_size)
                _log.info("KV capacity of %s: %d tokens in blocks of %s", *told)
        return True

    # Sources.

    async def _follow_sources(self, group: asyncio.TaskGroup) -> None:
        pause_s = self._config.retry_s
        while True:
            self._doubt_sources.clear()
            sources = await self._find()
            if sources is not None and not self._is_forgotten:
                self._settle(sources, group)
            is_well = sources is not None and all(
                stream.is_connected for stream, _ in self._streams.values()
            )
            if is_well:
                pause_s = self._config.capacity_s
            if await _pause(self._doubt_sources, pause_s) or is_well:
                pause_s = self._config.retry_s
            else:
                pause_s = min(2 * pause_s, self._config.max_retry_s)

    async def _find(self) -> list[KvSource] | None:
        """Return what the replica publishes now; None if it did not say."""
        host = await self._resolve()
        if host is None:
            self._note_trouble("the name of its host means no address")
            return None
        try:
            if self._replica.events is not None:
                return configured_sources(self._replica.events, host)
            return await self._ask_sources(host)
        except BadKvSource as error:
            self._note_trouble(f"what it says of its publishers cannot be used: {error}")
            return []

    async def _ask_sources(self, host: ReplicaHost) -> list[KvSource] | None:
        is_sglang = self._replica.kind == "sglang"
        path = "/server_info" if is_sglang else "/kv_event_sources"
        answer = await self._ask(path)
        if answer is None or (answer.status != 200 and answer.status not in _HAS_NO_SUCH_PATH):
            self._note_trouble(f"it does not answer GET {path}")
            return None
        sources: Sequence[KvSource] = ()
        if answer.status == 200:
            read = described_sources if is_sglang else listed_sources
            sources = read(answer.body, host)
        if not sources:
            self._note_trouble("it publishes no KV events")
        return list(sources)

    async def _ask(self, path: str) -> EngineAnswer | None:
        try:
            return await self._questions.get(path, self._config.ask_s)
        except UpstreamError:
            return None

    async def _resolve(self) -> ReplicaHost | None:
        name = self._replica.origin.address.host
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._config.ask_s):
                found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError):
            return None
        # A publisher that binds `tcp://*` listens on IPv4 alone.
        found.sort(key=lambda each: each[0] != socket.AF_INET)
        addresses = tuple(dict.fromkeys(str(each[4][0]) for each in found))
        return ReplicaHost(name, addresses) if addresses else None

    def _settle(self, sources: list[KvSource], group: asyncio.TaskGroup) -> None:
        """Follow exactly these sources."""
        for source in [each for each in self._streams if each not in sources]:
            stream, task = self._streams.pop(source)
            task.cancel()
            stream.forget()
        for source in sources:
            if source in self._streams:
                continue
            stream = self._open(source)
            stream.announce()
            task = group.create_task(stream.run(), name=f"kv stream of {self._replica.name}")
            self._streams[source] = stream, task
            _log.info("KV events of %s: reading %s", self._replica.name, source.endpoint)
        if self._streams:
            self._trouble = ""

    def _open(self, source: KvSource) -> StreamFeed:
        return StreamFeed(
            self._replica.name,
            self._replica.slot,
            source,
            sink=self._sink,
            context=self._context,
            config=self._config,
            clock=self._clock,
            on_lost=self._doubt,
        )

    def _forget_streams(self) -> None:
        for stream, _ in self._streams.values():
            stream.forget()
        self._streams.clear()

    def _note_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.info("KV events of %s: none, since %s", self._replica.name, trouble)


async def _pause(doubt: asyncio.Event, seconds: float) -> bool:
    """Wait, at most until there is doubt; returns whether there is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await doubt.wait()
            return True
    return False
