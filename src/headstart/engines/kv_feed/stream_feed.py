"""One publisher's stream on real sockets: reads it, repairs it, and hears when it is cut.

    link      the SUB socket's monitor: handshake, disconnection, failed attempts
    messages  the SUB socket: live batches
    repair    a DEALER for each replay that the stream wants

What they bring goes into `prefix.stream.EventStream`, which knows what is missing, and what follows
from it to the sink. Work is done in slices, so that a long replay does not hold the event loop.

Source: vLLM `vllm/distributed/kv_events.py` (frames, replay); libzmq `zmq_socket_monitor(3)`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import zmq

from headstart.clock import Clock
from headstart.engines.kv_feed.config import KvFeedConfig
from headstart.engines.kv_feed.replay import Replay, ReplayEnd
from headstart.engines.kv_feed.sink import KvSink
from headstart.engines.kv_feed.slices import Slices
from headstart.engines.kv_feed.sockets import Frames, Link, Readiness, Subscription
from headstart.engines.kv_feed.sources import KvSource
from headstart.engines.kv_feed.statistics import KvStreamStatistics
from headstart.prefix.stream import EventStream, StreamFault, StreamStanding, StreamStep
from headstart.wire.kv_events import (
    KvEventBatch,
    KvEventDecodeError,
    RemovedBlocks,
    StoredBlocks,
    decode_sequence,
)

_log = logging.getLogger(__name__)

_LIVE_FRAMES: Final = 3


class StreamFeed:
    """Follows one publisher until it is cancelled.

    Args:
        name: of the replica, for the log.
        slot: of the replica.
        source: the publisher.
        sink: told of everything.
        context: whose sockets are used.
        config: how.
        clock: monotonic readings for the sink, wall clock for the lag.
        on_lost: called when the connection is lost.

    Attributes:
        source: as given.
        is_connected: the connection is up.
    """

    def __init__(
        self,
        name: str,
        slot: int,
        source: KvSource,
        *,
        sink: KvSink,
        context: "zmq.Context[zmq.Socket[bytes]]",
        config: KvFeedConfig,
        clock: Clock,
        on_lost: Callable[[], None],
    ) -> None:
        self.source = source
        self.is_connected = False
        self._name = name
        self._slot = slot
        self._sink = sink
        self._context = context
        self._config = config
        self._clock = clock
        self._on_lost = on_lost
        self._stream = EventStream(has_replay=source.replay_endpoint is not None)
        self._told: tuple[StreamStanding, StreamFault | None] = (StreamStanding.WAITING, None)
        self._is_forgotten = False
        self._heard_at = clock.monotonic()
        self._replay: Replay | None = None
        self._replay_from: int | None = None
        self._is_replay_wanted = asyncio.Event()
        self._num_blocks = 0
        self._num_malformed = 0
        self._num_replays = 0
        self._num_resets = 0
        self._lag_s: float | None = None

    async def run(self) -> None:
        """Follow the publisher; only returns by being cancelled."""
        source = self.source
        subscription = Subscription(self._context, source.endpoint, source.topic, self._config)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_link(subscription))
                group.create_task(self._read(subscription.messages))
                group.create_task(self._repair())
                group.create_task(self._watch_silence())
        finally:
            self.is_connected = False
            subscription.close()

    def announce(self) -> None:
        """Tell the sink that there is a stream, of which nothing was heard yet."""
        standing, fault = self._told
        now = self._clock.monotonic()
        self._sink.stream_standing(self._slot, self.source.rank, standing, fault, now)

    def verify(self) -> None:
        """Ask the publisher whether it is the one that we know, and whether we missed some."""
        if self.is_connected:
            self._carry_out(self._stream.probe())

    def rebuild(self) -> None:
        """Forget what the publisher told, and read it from its beginning."""
        self._carry_out(self._stream.rebuild())

    def forget(self) -> None:
        """Have the sink forget the stream, and tell it nothing more."""
        if self._is_forgotten:
            return
        self._is_forgotten = True
        self._sink.stream_removed(self._slot, self.source.rank)

    def statistics(self) -> KvStreamStatistics:
        """Return what it shows at this moment."""
        stream = self._stream.statistics()
        faults = stream.faults
        return KvStreamStatistics(
            rank=self.source.rank,
            endpoint=self.source.endpoint,
            is_connected=self.is_connected,
            standing=stream.standing,
            last_seq=stream.next_seq - 1 if stream.next_seq else None,
            batches=stream.num_batches,
            blocks=self._num_blocks,
            replays=self._num_replays,
            replays_failed=faults.get(StreamFault.REPLAY_FAILED, 0),
            gaps=faults.get(StreamFault.GAP, 0),
            resets=self._num_resets,
            decode_failures=faults.get(StreamFault.UNDECODABLE, 0) + self._num_malformed,
            lag_s=self._lag_s,
        )

    # The connection.

    async def _follow_link(self, subscription: Subscription) -> None:
        while True:
            link = await subscription.link()
            if link is Link.UP:
                self.is_connected = True
                self._heard_at = self._clock.monotonic()
                self._carry_out(self._stream.connected())
            elif self.is_connected:
                self.is_connected = False
                self._carry_out(self._stream.lost())
                self._on_lost()

    # Live batches.

    async def _read(self, messages: Readiness) -> None:
        slices = Slices(self._config.slice_s)
        while True:
            await messages.wait()
            slices.begin()
            while (frames := messages.receive()) is not None:
                # What was sent before a cut and is read after it comes again with the replay;
                # taken now, it would look like a sign of life.
                if self.is_connected:
                    self._take_live(frames)
                await slices.rest()

    def _take_live(self, frames: Frames) -> None:
        self._heard_at = self._clock.monotonic()
        try:
            if len(frames) != _LIVE_FRAMES:
                raise KvEventDecodeError(f"A message has 3 frames, this one {len(frames)}.")
            seq = decode_sequence(frames[1])
            if seq < 0:
                raise KvEventDecodeError("A sequence number is negative.")
        except KvEventDecodeError as error:
            self._num_malformed += 1
            _log.warning("KV events of %s: a message cannot be read: %s", self._name, error)
            # Which batch it was is not known; the publisher is asked what we missed.
            self._carry_out(self._stream.probe())
            return
        step = self._stream.receive(seq, frames[2])
        self._carry_out(step)
        if step.batches:
            self._lag_s = self._clock.time() - step.batches[-1].ts

    async def _watch_silence(self) -> None:
        """Ask now and then whether the last batches before a silence were lost."""
        silence_s = self._config.silence_s
        while True:
            left_s = self._heard_at + silence_s - self._clock.monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
                continue
            self._heard_at = self._clock.monotonic()
            self.verify()

    # Replays.

    async def _repair(self) -> None:
        """Make the replays that the stream wants, one at a time."""
        pause_s = self._config.replay_pause_s
        while True:
            await self._is_replay_wanted.wait()
            self._is_replay_wanted.clear()
            end = await self._read_replay()
            if end is ReplayEnd.COMPLETE:
                pause_s = self._config.replay_pause_s
                self._carry_out(self._stream.replay_ended())
            elif end is ReplayEnd.FAILED:
                self._carry_out(self._stream.replay_failed())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._is_replay_wanted.wait()
                pause_s = min(2 * pause_s, self._config.replay_max_pause_s)
                self.verify()

    async def _read_replay(self) -> ReplayEnd:
        endpoint, start = self.source.replay_endpoint, self._replay_from
        if endpoint is None or start is None:
            return ReplayEnd.ABANDONED
        self._num_replays += 1
        self._replay_from = None
        self._replay = Replay(self._context, endpoint, start, self._config, self._take_replayed)
        try:
            return await self._replay.read()
        finally:
            self._replay = None

    def _take_replayed(self, seq: int, payload: bytes) -> None:
        self._carry_out(self._stream.replayed(seq, payload))

    # To the sink.

    def _carry_out(self, step: StreamStep) -> None:
        if self._is_forgotten:
            return
        now, slot, rank = self._clock.monotonic(), self._slot, self.source.rank
        if step.is_reset:
            self._num_resets += 1
            self._sink.stream_reset(slot, rank, now)
        if step.batches:
            self._num_blocks += sum(map(_num_blocks, step.batches))
            self._sink.stream_batches(slot, rank, step.batches, now)
        if step.fault is not None or step.standing is not self._told[0]:
            self._tell_standing(step, now)
        if step.replay_from is not None:
            self._replay_from = step.replay_from
            self._is_replay_wanted.set()
        if self._replay is not None and (
            step.replay_from is not None or not self._stream.is_replaying
        ):
            self._replay.abandon()

    def _tell_standing(self, step: StreamStep, now: float) -> None:
        self._sink.stream_standing(self._slot, self.source.rank, step.standing, step.fault, now)
        if self._told != (step.standing, step.fault):
            level = logging.INFO if step.fault is None else logging.WARNING
            was, fault = self._told[0].value, f" ({step.fault.value})" if step.fault else ""
            shown = (self._name, self.source.rank, step.standing.value, was, fault)
            _log.log(level, "KV events of %s, rank %d: %s, was %s%s", *shown)
        self._told = step.standing, step.fault


def _num_blocks(batch: KvEventBatch) -> int:
    return sum(
        len(event.block_hashes)
        for event in batch.events
        if isinstance(event, StoredBlocks | RemovedBlocks)
    )
