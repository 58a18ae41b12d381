"""Publish the pool's events on ZMQ as vLLM does, with replay of what a subscriber missed.

Theory of operation: the engine's thread calls `publish` once per step that changed the pool. It
numbers the batch, appends it to a bounded queue and writes one byte to wake the publisher's
thread, which encodes, sends on a PUB socket, and keeps the last `buffer_steps` messages. The same
thread answers replay requests: a DEALER sends `["", start_seq]` and receives `["", topic, seq,
payload]` for each kept message from there on, then the same with seq -1 and an empty payload.

Nothing here can hold the engine up. A full queue drops the batch but not its number, and a slow
subscriber loses messages at its high-water mark; both see a gap in the numbers and ask for a
replay or stop trusting what they know.
"""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import zmq

from headstart.clock import Clock
from headstart.errors import ConfigError
from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from headstart.types import JsonObject
from headstart.wire.kv_events import (
    END_OF_REPLAY,
    ClearedBlocks,
    KvEventBatch,
    KvEventDecodeError,
    RemovedBlocks,
    StoredBlocks,
    WireKvEvent,
    decode_sequence,
    encode_batch,
    encode_sequence,
    integer_block_hash,
)

_MEDIUM = "GPU"
"""vLLM's name for the memory that the engine computes in; subscribers look for this word."""

_LINGER_MS = 200


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """Where and how events are published.

    Attributes:
        endpoint: ZMQ address that the PUB socket binds, e.g. `tcp://127.0.0.1:5557`; port `*`
            takes a free one.
        replay_endpoint: address of the ROUTER socket; None offers no replay.
        topic: first frame of every message.
        buffer_steps: batches kept for replay.
        queue_steps: batches that may wait for the publisher's thread.
        high_water_mark: messages queued per subscriber before it loses some.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    queue_steps: int = 10_000
    high_water_mark: int = 100_000


class KvEventPublisher:
    """One engine's event stream: a thread with two sockets; does not know the engine.

    Args:
        config: addresses and bounds.
        clock: what stamps each batch.
    """

    def __init__(self, config: KvEventsConfig, clock: Clock) -> None:
        self._config = config
        self._topic = config.topic.encode()
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._replay: zmq.Socket[bytes] | None = None
        self._queue: deque[tuple[int, float, Sequence[KvEvent]]] = deque()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._lock = threading.Lock()
        self._next_seq = 0
        self._num_dropped = 0
        self._closing = False
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def start(self) -> None:
        """Bind both sockets and start the thread.

        Raises:
            ConfigError: an address is malformed or taken.
        """
        try:
            self._publisher = self._bind(
                zmq.PUB, self._config.endpoint, self._config.high_water_mark
            )
            if self._config.replay_endpoint:
                # Room for a whole replay and its end marker: a ROUTER drops what is beyond.
                self._replay = self._bind(
                    zmq.ROUTER, self._config.replay_endpoint, self._config.buffer_steps + 1
                )
        except ConfigError:
            self._context.destroy(linger=0)
            self._wake_receiver.close()
            self._wake_sender.close()
            raise
        self._config = replace(
            self._config,
            endpoint=_address_of(self._publisher),
            replay_endpoint=_address_of(self._replay) if self._replay else None,
        )
        self._thread.start()

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Enqueue one step's events; never blocks. May be called from any thread."""
        if not events:
            return
        with self._lock:
            seq = self._next_seq
            self._next_seq += 1
            if len(self._queue) >= self._config.queue_steps:
                self._num_dropped += 1
                return
            self._queue.append((seq, self._clock.time(), events))
        self._wake()

    def close(self) -> None:
        """Send what is queued, close the sockets and end the thread."""
        with self._lock:
            self._closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def sources(self) -> list[JsonObject]:
        """What `GET /kv_event_sources` says of this publisher, with the ports that were bound."""
        return [
            {
                "data_parallel_rank": 0,
                "endpoint": self._config.endpoint,
                "replay_endpoint": self._config.replay_endpoint,
                "topic": self._config.topic,
            }
        ]

    @property
    def num_dropped(self) -> int:
        """Batches that found the queue full."""
        return self._num_dropped

    def _bind(self, kind: int, endpoint: str, high_water_mark: int) -> "zmq.Socket[bytes]":
        zmq_socket = self._context.socket(kind)
        zmq_socket.set_hwm(high_water_mark)
        zmq_socket.setsockopt(zmq.LINGER, _LINGER_MS)
        try:
            zmq_socket.bind(endpoint)
        except zmq.ZMQError as exc:
            raise ConfigError(
                f"KV events cannot be published at {endpoint}: {exc}. "
                "Choose a free port and an address of this machine."
            ) from exc
        return zmq_socket

    def _wake(self) -> None:
        # A full pipe means that the thread has been told already.
        with contextlib.suppress(BlockingIOError):
            self._wake_sender.send(b"\0")

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_receiver, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake_receiver.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wake_receiver.recv(4096)
            self._send_queued()
            if self._replay is not None and self._replay in ready:
                self._answer_replay(self._replay)
            with self._lock:
                if self._closing and not self._queue:
                    break
        self._context.destroy(linger=_LINGER_MS)
        self._wake_receiver.close()
        self._wake_sender.close()

    def _send_queued(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    return
                seq, ts, events = self._queue.popleft()
            payload = encode_batch(KvEventBatch(ts, tuple(map(to_wire, events)), 0))
            self._kept.append((seq, payload))
            self._publisher.send_multipart([self._topic, encode_sequence(seq), payload])

    def _answer_replay(self, router: "zmq.Socket[bytes]") -> None:
        frames = router.recv_multipart()
        try:
            client, _, start = frames
            first = decode_sequence(start)
        except (ValueError, KvEventDecodeError):
            return  # Not a replay request; a ROUTER owes a stranger no answer.
        for seq, payload in self._kept:
            if seq >= first:
                self._reply(router, client, encode_sequence(seq), payload)
        self._reply(router, client, END_OF_REPLAY, b"")

    def _reply(
        self, router: "zmq.Socket[bytes]", client: bytes, seq: bytes, payload: bytes
    ) -> None:
        # A client that does not read loses the rest at its high-water mark; it never blocks us.
        with contextlib.suppress(zmq.Again):
            router.send_multipart([client, b"", self._topic, seq, payload], flags=zmq.NOBLOCK)


def to_wire(event: KvEvent) -> WireKvEvent:
    """Return the event as vLLM publishes it: integer hashes, salt bare on the first block."""
    match event:
        case BlockStored():
            is_first = event.parent_block_hash is None
            salt = (event.cache_salt,) if event.cache_salt is not None and is_first else None
            return StoredBlocks(
                block_hashes=tuple(map(integer_block_hash, event.block_hashes)),
                parent_block_hash=None
                if event.parent_block_hash is None
                else integer_block_hash(event.parent_block_hash),
                token_ids=event.token_ids,
                block_size=event.block_size,
                medium=_MEDIUM,
                extra_keys=(salt, *([None] * (len(event.block_hashes) - 1))),
                group_idx=0,
                kv_cache_spec_kind="full_attention",
            )
        case BlockRemoved():
            return RemovedBlocks(
                tuple(map(integer_block_hash, event.block_hashes)), medium=_MEDIUM, group_idx=0
            )
        case AllBlocksCleared():
            return ClearedBlocks()


def _address_of(zmq_socket: "zmq.Socket[bytes]") -> str:
    address = zmq_socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.decode().rstrip("\0")
