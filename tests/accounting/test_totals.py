"""Sums over processes against processes that simply share one counter."""

import dataclasses
from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headstart.accounting.metrics import MetricsConfig, MetricsSnapshot, RequestMetrics
from headstart.accounting.record import RequestRecord
from headstart.accounting.recorder import RecorderStatistics, SinkStatistics
from headstart.accounting.totals import RecorderTotals, RequestTotals
from headstart.wire.usage import Usage

MAX_SERIES = 3
NAMES = st.sampled_from(["worker-0", "worker-1", "worker-2"])
RECORDS = st.builds(
    RequestRecord,
    request_id=st.just("r"),
    time_s=st.just(0.0),
    path=st.just("/v1/completions"),
    model=st.sampled_from("abcde"),
    replica=st.just("r0"),
    status=st.sampled_from([200, 500]),
    usage=st.builds(
        Usage,
        input_tokens=st.none() | st.integers(0, 100),
        cached_tokens=st.none() | st.integers(0, 100),
    ),
    ttft_s=st.none() | st.sampled_from([0.25, 2.0]),
    total_s=st.sampled_from([0.5, 4.0]),
    retries=st.integers(0, 1),
)


def record(model="m", status=200):
    return RequestRecord("r", 0.0, "/v1/completions", model=model, replica="r0", status=status)


def numbers(snapshot):
    """Every sum over all series, by name."""
    sums = Counter()
    for series in snapshot.series:
        for status, count in series.requests:
            sums[f"requests {status}"] += count
        for name in ("input_tokens", "cached_tokens", "usage_unknown", "retries"):
            sums[name] += getattr(series, name) or 0
        for name in ("ttft", "tpot", "e2e"):
            histogram = getattr(series, name)
            sums[f"{name} sum"] += histogram.sum_s
            for bound, count in zip((*histogram.bounds_s, "inf"), histogram.counts, strict=True):
                sums[f"{name} {bound}"] += count
    return sums


class Processes(RuleBasedStateMachine):
    """Processes count, report what changed, die with or without a last report."""

    @initialize()
    def start(self):
        self.config = MetricsConfig(max_label_values=10, max_series=MAX_SERIES)
        self.totals = RequestTotals(MAX_SERIES)
        self.alive = {}
        self.reported = {}  # name: records that a report has covered
        self.kept = []  # of those, the ones of processes that have ended
        self.before = Counter()

    def process(self, name):
        return self.alive.setdefault(name, (RequestMetrics(self.config), {}, []))

    @rule(name=NAMES, record=RECORDS)
    def count(self, name, record):
        metrics, _seen, records = self.process(name)
        metrics.observe(record)
        records.append(record)

    @rule(name=NAMES)
    def report(self, name):
        metrics, seen, records = self.process(name)
        changed = msgspec.msgpack.encode(metrics.changes(seen))
        self.totals.report(name, msgspec.msgpack.decode(changed, type=MetricsSnapshot))
        self.reported[name] = list(records)

    @rule(name=NAMES)
    def die(self, name):
        self.alive.pop(name, None)
        self.totals.ended(name)
        self.kept += self.reported.pop(name, [])

    @invariant()
    def the_sum_is_what_one_counter_would_show(self):
        one = RequestMetrics()
        for each in [*self.kept, *(each for all_ in self.reported.values() for each in all_)]:
            one.observe(each)
        found = numbers(self.totals.snapshot())
        assert found == numbers(one.snapshot())

    @invariant()
    def no_sum_goes_down(self):
        found = {
            (series.labels, status): count
            for series in self.totals.snapshot().series
            for status, count in series.requests
        }
        assert all(found.get(key, 0) >= count for key, count in self.before.items())
        self.before = found

    @invariant()
    def the_bounds_hold(self):
        self.totals.check_integrity()
        assert len(self.totals.snapshot().series) <= MAX_SERIES + 1


Processes.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestProcesses = Processes.TestCase


def test_changes_are_only_what_has_changed():
    """A report costs as much as happened, not as much as there is."""
    metrics, seen = RequestMetrics(), {}
    metrics.observe(record("a"))
    metrics.observe(record("b"))
    assert len(metrics.changes(seen).series) == 2
    assert metrics.changes(seen).series == ()
    metrics.observe(record("b"))
    (series,) = metrics.changes(seen).series
    assert (series.labels[0], series.requests) == ("b", ((200, 2),))


def test_a_report_that_is_repeated_counts_once():
    """It is absolute."""
    metrics = RequestMetrics()
    metrics.observe(record())
    totals = RequestTotals(10)
    for _ in range(3):
        totals.report("worker-0", metrics.snapshot())
    (series,) = totals.snapshot().series
    assert series.requests == ((200, 1),)


def test_folded_values_are_summed_and_kept():
    """Of the living and of the dead."""
    totals = RequestTotals(10)
    totals.report("worker-0", MetricsSnapshot((), (("model", 2),)))
    totals.ended("worker-0")
    totals.report("worker-0", MetricsSnapshot((), (("model", 1),)))
    totals.report("worker-1", MetricsSnapshot((), (("model", 4),)))
    assert dict(totals.snapshot().folded)["model"] == 7


def test_recorder_figures_outlive_their_process():
    """But for its queue, which died with it."""
    store = SinkStatistics("store", queued=5, written=10, dropped=1, write_failures=2)
    totals = RecorderTotals()
    totals.report("worker-0", RecorderStatistics(16, (store,)))
    totals.ended("worker-0")
    totals.ended("worker-0")
    totals.report("worker-0", RecorderStatistics(4, (dataclasses.replace(store, written=3),)))
    summed = totals.snapshot()
    assert summed.recorded == 20
    assert summed.sinks == (SinkStatistics("store", 5, 13, 2, 4),)
