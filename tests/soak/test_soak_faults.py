"""The schedule of faults, the fitted line, and the comparison with records."""

import itertools
import sqlite3

from benchmarks.soak.faults import KINDS, QUIET_S, Fault, cause, schedule
from benchmarks.soak.records import compare
from benchmarks.soak.sampling import Samples, counter, process_figures
from benchmarks.soak.tally import Histogram
from benchmarks.soak.trend import trend


def test_a_seed_decides_the_schedule_and_every_kind_comes_up():
    """Half an hour has all of them many times, and always an engine that is well."""
    faults = schedule(1800.0, 3, 1)
    assert faults == schedule(1800.0, 3, 1)
    assert faults != schedule(1800.0, 3, 2)
    counts = [sum(fault.kind == kind for fault in faults) for kind in KINDS]
    assert min(counts) > 10
    assert max(counts) - min(counts) <= 1
    for fault in faults:
        together = {f.engine for f in faults if f.at_s <= fault.at_s < f.end_s}
        assert len(together) < 3


def test_an_engine_has_one_fault_at_a_time():
    """A frozen engine that is killed would never be thawed."""
    faults = schedule(1800.0, 3, 3)
    for index in range(3):
        mine = [fault for fault in faults if fault.engine == index]
        assert all(a.end_s < b.at_s for a, b in itertools.pairwise(mine))


def test_a_request_is_told_by_the_latest_fault_that_touches_it():
    """Also shortly after its end."""
    faults = [Fault("kill", 0, 10.0, 2.0, 1.0), Fault("slow", 1, 11.0, 2.0, 1.0)]
    assert cause(faults, 5.0, 9.0) == "none"
    assert cause(faults, 9.0, 10.5) == "kill"
    assert cause(faults, 11.5, 11.6) == "slow"
    assert cause(faults, 13.0 + QUIET_S, 60.0) == "slow"
    assert cause(faults, 13.1 + QUIET_S, 60.0) == "none"


def test_growth_is_a_rise_of_line_and_ends():
    """Of the second half; a level that is reached is no growth, nor is one peak."""
    times = [float(second) for second in range(200)]
    leak = trend(times, [100.0 + second for second in times])
    assert leak.grows(10.0, 100.0)
    assert abs(leak.slope_per_hour - 3600.0) < 1e-6
    level = trend(times, [min(second, 50.0) for second in times])
    assert not level.grows(1.0, 100.0)
    spike = trend(times, [500.0 if second == 199 else 5.0 for second in times])
    assert not spike.grows(10.0, 100.0)
    assert spike.peak == 500.0


METRICS = """\
# TYPE headstart_process_open_fds gauge
headstart_process_open_fds{process="worker-0"} 31.0
headstart_process_open_fds{process="worker-1"} 30.0
headstart_client_connections 8.0
headstart_replica_connections{replica="r0"} 3.0
headstart_replica_connections{replica="r1"} 2.0
headstart_process_event_loop_tasks{process="worker-0"} 9.0
headstart_process_resident_memory_bytes{process="worker-0"} 7.5e+07
headstart_process_cpu_seconds_total{process="worker-0"} 3.0
headstart_records_dropped_total{sink="store"} 2.0
headstart_records_dropped_total{sink="log"} 1.0
"""


def test_figures_are_read_from_metrics():
    """Per process; a family's samples add up; descriptors of connections are taken off."""
    assert process_figures(METRICS) == {
        ("all processes", "other descriptors"): 48.0,
        ("all processes", "connections"): 13.0,
        ("worker-0", "tasks"): 9.0,
        ("worker-0", "memory"): 7.5e7,
    }
    assert counter(METRICS, "headstart_records_dropped_total") == 3.0
    samples = Samples()
    for second in range(4):
        samples.add(float(second), process_figures(METRICS))
    samples.add(4.0, {})
    assert samples.half_s == 1.5
    assert samples.series()["seconds"] == [0.0, 1.0, 2.0, 3.0]
    assert samples.trends()["worker-0", "tasks"].last == 9.0


def test_quantiles_are_within_two_percent():
    """Buckets, and not the values themselves."""
    histogram = Histogram()
    assert histogram.quantile(0.5) == 0.0
    for value in range(1, 1001):
        histogram.add(value / 1000)
    assert abs(histogram.quantile(0.5) - 0.5) < 0.02
    assert abs(histogram.quantile(0.99) - 0.99) < 0.03


def test_records_are_compared_with_the_ids_that_clients_saw(tmp_path):
    """Missing, repeated, and those that nobody saw."""
    database = sqlite3.connect(tmp_path / "headstart.db")
    database.execute("CREATE TABLE requests (request_id TEXT, retries INTEGER, error_code TEXT)")
    rows = [("a", 0, None), ("b", 1, None), ("b", 0, None), ("left", 0, "client_disconnected")]
    database.executemany("INSERT INTO requests VALUES (?, ?, ?)", rows)
    database.commit()
    database.close()
    (tmp_path / "one.ids").write_text("a\nb\n")
    (tmp_path / "two.ids").write_text("gone\n")
    found = compare(
        tmp_path / "headstart.db", [tmp_path / "one.ids", tmp_path / "two.ids"], tmp_path / "s.db"
    )
    assert (found.num_records, found.num_seen) == (4, 3)
    assert (found.num_missing, found.num_repeated, found.num_unseen) == (1, 1, 1)
    assert found.num_retried == 1
    assert found.errors == {"client_disconnected": 1}
