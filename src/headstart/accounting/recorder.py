"""Takes one record per request on the event loop and has it kept off it.

    event loop                          one thread per sink
    record() ── counters (metrics)
             └─ append ─→ lane's queue ─→ batches of `batch` ─→ sink.write()
                          (bounded)       every `flush_s`

What happens when things go wrong, in this order:

1. *The sink refuses* (database locked, disk full): its batch stays and is tried again every
   `flush_s`; the queue keeps what comes meanwhile; `write_failures` counts.
2. *The queue is full though the sink works*: `record()` waits for the writer to make room, at
   most `full_wait_s`. That is the back-pressure which keeps records from being lost under load.
3. *The queue is full and the sink does not work*: the oldest records are given up, counted in
   `dropped` and reported once. Memory stays bounded and no request fails or waits.

Sinks do not wait for each other: a log on a blocked pipe does not hold up the store.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headstart.accounting.record import RequestRecord
from headstart.accounting.sink import RecordSink
from headstart.errors import StoreUnavailable

_log = logging.getLogger(__name__)

_PAUSE_S = 0.0005
"""Rest between two batches. The writer holds the interpreter's lock while it converts a batch
(64 records: about 0.2 ms); without a rest it would win the lock back before the event loop wakes,
and a flush of a thousand records would cost some request several milliseconds."""

_CLOSE_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class RecorderConfig:
    """How records are collected.

    Attributes:
        flush_s: > 0; longest time a record waits before it is handed to the sinks.
        batch: >= 1; records per transaction or write.
        capacity: >= batch; records that may wait for one sink (about 1 KB each).
        full_wait_s: >= 0; longest time `record()` waits for room in a full queue.
        close_s: >= 0; longest time `close()` tries to have the rest kept.
    """

    flush_s: float = 0.5
    batch: int = 64
    capacity: int = 50_000
    full_wait_s: float = 1.0
    close_s: float = 5.0


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """One sink's state: queued + written + dropped = all records so far."""

    name: str
    queued: int
    written: int
    dropped: int
    write_failures: int


@dataclass(frozen=True, slots=True)
class RecorderStatistics:
    """What the recorder took and what became of it, per sink."""

    recorded: int
    sinks: tuple[SinkStatistics, ...]


class Recorder:
    """Counts each finished request and passes its record to every sink, in order, once.

    Args:
        sinks: where records are kept; the recorder closes them.
        observe: called in `record()` for each record; the counters behind `/metrics`. Must be
            cheap and must not raise.
        config: batch sizes, bounds and times.
    """

    def __init__(
        self,
        sinks: Sequence[RecordSink] = (),
        *,
        observe: Callable[[RequestRecord], None] | None = None,
        config: RecorderConfig | None = None,
    ) -> None:
        self._config = config or RecorderConfig()
        self._observe = observe
        self._lanes = tuple(_Lane(sink, self._config) for sink in sinks)
        self._recorded = 0

    def record(self, record: RequestRecord) -> None:
        """Take a record; called on the event loop, never raises.

        Cost: the counters and one append per sink; waits only as the module's rule 2 says.
        """
        self._recorded += 1
        if self._observe is not None:
            self._observe(record)
        for lane in self._lanes:
            lane.put(record)

    async def start(self) -> None:
        """Start to hand records to the sinks; those recorded before are kept for it."""
        for lane in self._lanes:
            lane.start()

    async def flush(self) -> None:
        """Wait, at most `close_s`, until each sink has kept or given up what came before."""
        await asyncio.gather(*(asyncio.to_thread(lane.flush) for lane in self._lanes))

    async def close(self) -> None:
        """Have everything kept, then close the sinks; gives up after `close_s`."""
        await asyncio.gather(*(asyncio.to_thread(lane.close) for lane in self._lanes))

    def statistics(self) -> RecorderStatistics:
        """Return a snapshot of the counts."""
        return RecorderStatistics(self._recorded, tuple(lane.statistics() for lane in self._lanes))


class _Lane:
    """One sink's queue and the thread that empties it.

    The event loop appends and the thread takes; both ends of a deque are atomic, so the hot path
    needs no lock. `_changed` guards only waiting for progress.
    """

    def __init__(self, sink: RecordSink, config: RecorderConfig) -> None:
        self._sink = sink
        self._config = config
        self._queue: deque[RequestRecord] = deque()
        self._batch: list[RequestRecord] = []
        self._taken = 0
        self._written = 0
        self._dropped = 0
        self._write_failures = 0
        self._is_failing = False
        self._is_closing = False
        self._wake = threading.Event()
        self._changed = threading.Condition()
        # A daemon, so that a sink that hangs (a blocked pipe, a dead network disk) cannot keep
        # the process from ending; close() waits for it in every other case.
        self._thread = threading.Thread(
            target=self._run, name=f"headstart-record-{sink.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def put(self, record: RequestRecord) -> None:
        if len(self._queue) >= self._config.capacity:
            self._make_room()
        if self._is_closing:
            self._drop(1)
            return
        self._taken += 1
        self._queue.append(record)

    def flush(self) -> None:
        goal = self._taken
        if self._thread.is_alive():
            self._wake.set()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._written + self._dropped >= goal, self._config.close_s
                )

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join(self._config.close_s + 1.0)
        if self._thread.is_alive():
            lost = len(self._queue) + len(self._batch)
            _log.error("%s hangs; %d records are lost", self._sink.name, lost)

    def statistics(self) -> SinkStatistics:
        return SinkStatistics(
            name=self._sink.name,
            queued=len(self._queue) + len(self._batch),
            written=self._written,
            dropped=self._dropped,
            write_failures=self._write_failures,
        )

    def _make_room(self) -> None:
        """Wait for a working sink; give up the oldest records of one that does not work."""
        if not self._is_failing and self._thread.is_alive():
            self._wake.set()
            with self._changed:
                has_room = self._changed.wait_for(
                    lambda: len(self._queue) < self._config.capacity, self._config.full_wait_s
                )
            if has_room:
                return
            # Not again for every record of a sink that hangs: a write that works ends this.
            self._fail("it has not kept anything for too long")
        try:
            self._queue.popleft()
        except IndexError:
            return  # the writer was quicker
        self._drop(1)

    def _drop(self, count: int) -> None:
        with self._changed:
            self._dropped += count
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wake.wait(self._config.flush_s)
                self._wake.clear()
                self._drain()
            self._drain_to_the_end()
            self._sink.close()
        except Exception:  # noqa: BLE001 -- the top of a thread
            # A bug in the sink. The queue stays bounded and the losses are counted.
            _log.exception("%s stopped; no more records are kept", self._sink.name)

    def _drain_to_the_end(self) -> None:
        deadline = time.monotonic() + self._config.close_s
        while not self._drain():
            if time.monotonic() >= deadline:
                lost = len(self._batch) + len(self._queue)
                self._batch = []
                self._queue.clear()
                self._drop(lost)
                _log.error("%s took no more; %d records are lost", self._sink.name, lost)
                return
            time.sleep(_CLOSE_RETRY_S)

    def _drain(self) -> bool:
        """Write until nothing is left; False if the sink refused."""
        while self._batch or self._queue:
            if not self._batch:
                self._take_batch()
            if not self._write_batch():
                return False
            time.sleep(_PAUSE_S)
        return True

    def _take_batch(self) -> None:
        try:
            while len(self._batch) < self._config.batch:
                self._batch.append(self._queue.popleft())
        except IndexError:
            pass  # empty; asking first would race with the event loop's dropping

    def _write_batch(self) -> bool:
        try:
            self._sink.write(self._batch)
        except StoreUnavailable as error:
            self._write_failures += 1
            self._fail(error.message)
            return False
        if self._is_failing:
            self._is_failing = False
            _log.warning("%s keeps records again", self._sink.name)
        with self._changed:
            self._written += len(self._batch)
            self._batch = []
            self._changed.notify_all()
        return True

    def _fail(self, why: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            _log.error("%s does not keep records: %s", self._sink.name, why)
