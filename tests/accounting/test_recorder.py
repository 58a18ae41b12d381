"""Records reach every sink once and in order; trouble with a sink never reaches a request."""

import asyncio
import dataclasses
import logging
import sqlite3
import threading
from contextlib import closing

from headstart.accounting.record import RequestRecord
from headstart.accounting.recorder import Recorder, RecorderConfig
from headstart.accounting.store import RequestStore, read_records
from headstart.errors import StoreUnavailable

NEVER_S = 3600.0
"""No batch is written because of time: the test says when."""


def record(number: int) -> RequestRecord:
    return RequestRecord(request_id=f"{number}", time_s=float(number), path="/")


class ListSink:
    """Keeps records in a list; refuses or waits when told to."""

    def __init__(self, name: str = "list") -> None:
        self.name = name
        self.kept: list[str] = []
        self.is_closed = False
        self.refusals = 0
        self.refused = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def write(self, records):
        self.entered.set()
        self.gate.wait(60)
        if self.refusals:
            self.refusals -= 1
            self.refused.set()
            raise StoreUnavailable("no room")
        self.kept.extend(one.request_id for one in records)

    def close(self):
        self.is_closed = True


def test_closing_keeps_every_record(tmp_path):
    """Nothing is lost at shutdown: the rows are counted."""
    path = tmp_path / "headstart.db"

    async def run():
        recorder = Recorder([RequestStore(path)], config=RecorderConfig(flush_s=NEVER_S))
        await recorder.start()
        for number in range(1000):
            recorder.record(record(number))
        await recorder.close()
        return recorder.statistics()

    statistics = asyncio.run(run())
    assert [one.request_id for one in read_records(path)] == [str(n) for n in range(1000)]
    assert (statistics.sinks[0].written, statistics.sinks[0].queued) == (1000, 0)


async def test_records_from_before_the_start_are_kept():
    """The gateway may finish a request before the recorder's first flush."""
    sink = ListSink()
    recorder = Recorder([sink])
    recorder.record(record(0))
    await recorder.close()
    assert sink.kept == ["0"]
    assert sink.is_closed


async def test_flush_waits_until_records_are_kept():
    """What was recorded before is readable after."""
    sink = ListSink()
    recorder = Recorder([sink], config=RecorderConfig(flush_s=NEVER_S))
    await recorder.start()
    recorder.record(record(0))
    await recorder.flush()
    assert sink.kept == ["0"]
    await recorder.close()


async def test_time_alone_flushes():
    """A quiet gateway's records are readable soon."""
    sink = ListSink()
    recorder = Recorder([sink], config=RecorderConfig(flush_s=0.001))
    await recorder.start()
    recorder.record(record(0))
    assert await asyncio.to_thread(sink.entered.wait, 60)
    await recorder.close()
    assert sink.kept == ["0"]


async def test_a_refused_batch_is_tried_again_in_order():
    """A lock that passes costs nothing but time."""
    sink = ListSink()
    sink.refusals = 3
    recorder = Recorder([sink], config=RecorderConfig(flush_s=0.001, batch=2))
    await recorder.start()
    for number in range(5):
        recorder.record(record(number))
    await recorder.flush()
    await recorder.close()
    assert sink.kept == ["0", "1", "2", "3", "4"]
    (statistics,) = recorder.statistics().sinks
    assert (statistics.write_failures, statistics.dropped) == (3, 0)


async def test_a_locked_database_loses_nothing(tmp_path):
    """Real SQLite, real lock, held by somebody else while records come."""
    path = tmp_path / "headstart.db"
    store = RequestStore(path)
    recorder = Recorder([store], config=RecorderConfig(flush_s=0.001))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await recorder.start()
        for number in range(10):
            recorder.record(record(number))
        while not recorder.statistics().sinks[0].write_failures:
            await asyncio.sleep(0.01)
        assert not read_records(path)
        other.execute("ROLLBACK")
    await recorder.flush()
    assert len(read_records(path)) == 10
    await recorder.close()


async def test_a_full_queue_of_a_working_sink_waits_and_loses_nothing():
    """Back-pressure: more records than the queue holds are all kept."""
    sink = ListSink()
    config = RecorderConfig(flush_s=NEVER_S, batch=4, capacity=8, full_wait_s=60.0)
    recorder = Recorder([sink], config=config)
    await recorder.start()
    for number in range(100):
        recorder.record(record(number))
    await recorder.close()
    assert sink.kept == [str(number) for number in range(100)]


async def test_a_sink_that_refuses_for_long_costs_its_oldest_records_only(caplog):
    """Memory is bounded, no request waits, the loss is counted and said once."""
    sink = ListSink()
    sink.refusals = 10**9
    config = RecorderConfig(flush_s=0.001, batch=2, capacity=4, full_wait_s=60.0, close_s=60.0)
    recorder = Recorder([sink], config=config)
    await recorder.start()
    recorder.record(record(0))
    recorder.record(record(1))
    assert await asyncio.to_thread(sink.refused.wait, 60)
    for number in range(2, 100):
        recorder.record(record(number))
    statistics = recorder.statistics().sinks[0]
    assert statistics.queued <= config.capacity + config.batch
    assert statistics.queued + statistics.dropped == 100
    sink.refusals = 0
    await recorder.close()
    assert sink.kept[-4:] == ["96", "97", "98", "99"]
    statistics = recorder.statistics().sinks[0]
    assert statistics.written + statistics.dropped == 100
    errors = [line for line in caplog.records if line.levelno == logging.ERROR]
    assert [line.getMessage() for line in errors] == ["list does not keep records: no room"]


async def test_a_sink_that_hangs_makes_one_request_wait_and_then_none():
    """The first wait is bounded by `full_wait_s`; after it the sink counts as not working."""
    sink = ListSink()
    sink.gate.clear()
    config = RecorderConfig(flush_s=0.001, batch=1, capacity=2, full_wait_s=0.01)
    recorder = Recorder([sink], config=config)
    await recorder.start()
    recorder.record(record(0))
    assert await asyncio.to_thread(sink.entered.wait, 60)
    for number in range(1, 5000):  # 50 s, if each of them waited
        recorder.record(record(number))
    assert recorder.statistics().sinks[0].dropped >= 4990
    sink.gate.set()
    await recorder.close()
    assert sink.kept[0] == "0"
    assert sink.kept[-1] == "4999"


async def test_sinks_do_not_wait_for_each_other():
    """A log on a blocked pipe does not hold up the store."""
    stuck, working = ListSink("stuck"), ListSink("working")
    stuck.gate.clear()
    recorder = Recorder([stuck, working], config=RecorderConfig(flush_s=0.001))
    await recorder.start()
    recorder.record(record(0))
    assert await asyncio.to_thread(working.entered.wait, 60)
    stuck.gate.set()
    await recorder.close()
    assert working.kept == stuck.kept == ["0"]


async def test_closing_gives_up_on_a_sink_that_goes_on_refusing(caplog):
    """The process ends, and says how many records it lost."""
    sink = ListSink()
    sink.refusals = 10**9
    recorder = Recorder([sink], config=RecorderConfig(flush_s=NEVER_S, close_s=0.0))
    await recorder.start()
    for number in range(7):
        recorder.record(record(number))
    await recorder.close()
    (statistics,) = recorder.statistics().sinks
    assert (statistics.dropped, statistics.queued) == (7, 0)
    assert sink.is_closed
    assert "7 records are lost" in caplog.text


async def test_a_record_after_the_end_is_counted_as_dropped():
    """It cannot be kept, and must not vanish without a trace."""
    recorder = Recorder([ListSink()])
    await recorder.start()
    await recorder.close()
    recorder.record(record(0))
    assert recorder.statistics().sinks[0].dropped == 1


async def test_a_bug_in_a_sink_stops_that_sink_alone(caplog):
    """Requests go on, the queue stays bounded, the other sink works."""

    class Broken(ListSink):
        def write(self, records):
            raise ZeroDivisionError

    broken, working = Broken("broken"), ListSink()
    config = RecorderConfig(flush_s=0.001, capacity=4, batch=1)
    recorder = Recorder([broken, working], config=config)
    await recorder.start()
    for number in range(20):
        recorder.record(record(number))
    await recorder.flush()
    await recorder.close()
    assert working.kept == [str(number) for number in range(20)]
    assert recorder.statistics().sinks[0].queued <= 5
    assert "broken stopped" in caplog.text


def test_the_observer_sees_each_record_at_once():
    """Counters do not wait for the disk."""
    seen = []
    recorder = Recorder(observe=seen.append)
    recorder.record(record(0))
    assert seen == [record(0)]
    assert dataclasses.asdict(recorder.statistics()) == {"recorded": 1, "sinks": ()}
