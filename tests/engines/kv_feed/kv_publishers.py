"""Publishers to feed on: the embedded engine's own one, one that errs as told, and who listens."""

import asyncio
import hashlib
import random
from collections.abc import Callable

import zmq
import zmq.asyncio
from aiohttp import web

from headstart.clock import SystemClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.embedded.kv_publisher import KvEventPublisher, KvEventsConfig, to_wire
from headstart.engines.kv_feed.replica_feed import FedReplica
from headstart.engines.origin import Origin
from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored
from headstart.types import BlockHash, TokenId
from headstart.wire.kv_events import (
    END_OF_REPLAY,
    ClearedBlocks,
    KvEventBatch,
    RemovedBlocks,
    StoredBlocks,
    decode_sequence,
    encode_batch,
    encode_sequence,
)

LOOPBACK = "tcp://127.0.0.1"
ANY = f"{LOOPBACK}:*"
BLOCK_SIZE = 4


async def eventually(is_true: Callable[[], bool]) -> None:
    """Let the loop run until `is_true`; the test's own timeout is the deadline."""
    while not is_true():
        await asyncio.sleep(0.002)


def block(number: int) -> BlockHash:
    return BlockHash(hashlib.sha256(number.to_bytes(8, "big")).digest()[:16])


def store(number: int) -> BlockStored:
    tokens = tuple(TokenId(number * BLOCK_SIZE + i) for i in range(BLOCK_SIZE))
    return BlockStored((block(number),), None, tokens, BLOCK_SIZE)


def remove(number: int) -> BlockRemoved:
    return BlockRemoved((block(number),))


class Churn:
    """Events of a pool of `size` blocks that is always full; knows what it holds."""

    def __init__(self, size: int = 20, seed: int = 0) -> None:
        self.held: dict[int, None] = {}
        self._size = size
        self._random = random.Random(seed)
        self._next = 0

    def step(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """What one engine step does: make room, then store."""
        events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        if self._random.random() < 0.01:
            self.held.clear()
            return [AllBlocksCleared()]
        for _ in range(self._random.randint(1, 4)):
            if len(self.held) >= self._size:
                victim = self._random.choice(list(self.held))
                del self.held[victim]
                events.append(remove(victim))
            self.held[self._next] = None
            events.append(store(self._next))
            self._next += 1
        return events

    @property
    def names(self) -> set[int]:
        """The published hashes of what is held."""
        return {int.from_bytes(block(number)[-8:], "big") for number in self.held}


def embedded_publisher(endpoint: str = ANY, replay_endpoint: str | None = ANY, **options):
    publisher = KvEventPublisher(
        KvEventsConfig(endpoint=endpoint, replay_endpoint=replay_endpoint, **options),
        SystemClock(),
    )
    publisher.start()
    return publisher


class ScriptedPublisher:
    """A publisher that leaves out, spoils and withholds what a test tells it to.

    Attributes:
        kept: what a replay gives, by number.
        has_topic_frame: in its replays; older releases of vLLM and SGLang have none.
        ends_replays: with the marker.
        max_replayed: a replay gives so many and then its end, as a full pipe does.
        asked: the first number of each replay that was asked for.
    """

    def __init__(self, topic: str = "kv") -> None:
        self._context = zmq.asyncio.Context()
        self._publisher = self._context.socket(zmq.XPUB)
        self._router = self._context.socket(zmq.ROUTER)
        for each in (self._publisher, self._router):
            each.setsockopt(zmq.LINGER, 0)
            each.set_hwm(0)
            each.bind(ANY)
        self.topic = topic.encode()
        self.kept: dict[int, bytes] = {}
        self.has_topic_frame = True
        self.ends_replays = True
        self.answers_replays = True
        self.max_replayed: int | None = None
        self.asked: list[int] = []
        self._task = asyncio.create_task(self._serve_replays())

    @property
    def sources(self) -> list[dict]:
        endpoints = [
            each.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
            for each in (self._publisher, self._router)
        ]
        return [
            {
                "data_parallel_rank": 0,
                "endpoint": endpoints[0],
                "replay_endpoint": endpoints[1],
                "topic": self.topic.decode(),
            }
        ]

    async def subscribed(self) -> None:
        """Wait until a subscription has reached the publisher."""
        await self._publisher.recv()

    def keep(self, seq: int, *events: StoredBlocks | RemovedBlocks | ClearedBlocks) -> bytes:
        """Have a batch that only a replay gives."""
        self.kept[seq] = encode_batch(KvEventBatch(1.0 + seq, events))
        return self.kept[seq]

    async def send(self, seq: int, *events: StoredBlocks | RemovedBlocks | ClearedBlocks) -> None:
        """Publish a batch, and have it for replay."""
        await self.send_raw(self.topic, encode_sequence(seq), self.keep(seq, *events))

    async def send_raw(self, *frames: bytes) -> None:
        await self._publisher.send_multipart(frames)

    async def _serve_replays(self) -> None:
        while True:
            client, empty, start = await self._router.recv_multipart()
            first = decode_sequence(start)
            self.asked.append(first)
            if not self.answers_replays:
                continue
            topic = [self.topic] if self.has_topic_frame else []
            given = [seq for seq in sorted(self.kept) if seq >= first][: self.max_replayed]
            for seq in given:
                frames = [client, empty, *topic, encode_sequence(seq), self.kept[seq]]
                await self._router.send_multipart(frames)
            if self.ends_replays:
                await self._router.send_multipart([client, empty, *topic, END_OF_REPLAY, b""])

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)


class FedEngine:
    """The HTTP side of a replica: says where it publishes, and what it can hold.

    Attributes:
        sources: what GET /kv_event_sources answers; None is 404.
        server_info: what GET /server_info answers; None is 404.
        metrics: the page.
        is_up: otherwise it answers 503 to everything.
    """

    def __init__(self) -> None:
        self.sources: object = []
        self.server_info: object = None
        self.metrics = b'vllm:cache_config_info{engine="0",block_size="4",num_gpu_blocks="20"} 1\n'
        self.is_up = True
        self.asked: list[str] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if not self.is_up:
            return web.Response(status=503)
        if request.path == "/metrics":
            return web.Response(body=self.metrics)
        told = {"/kv_event_sources": self.sources, "/server_info": self.server_info}
        if told.get(request.path) is None:
            return web.Response(status=404)
        return web.json_response(told[request.path])

    def replica(self, name: str = "r0", slot: int = 0, kind: str = "vllm", events=None):
        config = ReplicaConfig(name, f"http://127.0.0.1:{self.port}", kind)
        return FedReplica(name, slot, kind, Origin(config, strips_credentials=False), events)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


def wire_store(*numbers: int) -> StoredBlocks:
    """One chain of blocks, as vLLM publishes it."""
    events = [to_wire(store(number)) for number in numbers]
    return StoredBlocks(
        tuple(event.block_hashes[0] for event in events),
        None,
        tuple(token for event in events for token in event.token_ids),
        BLOCK_SIZE,
    )


def names(*numbers: int) -> set[int]:
    """The published hashes of blocks."""
    return {int.from_bytes(block(number)[-8:], "big") for number in numbers}
