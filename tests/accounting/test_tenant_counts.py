"""`TenantCounts` against a naive twin, over several workers and a clock that jumps."""

import multiprocessing
from mmap import mmap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headstart.accounting.tenant import TenantLimits
from headstart.accounting.tenant_counts import WINDOW_S, TenantCounts

LIMITS = [TenantLimits(3, 5, 100), TenantLimits(), TenantLimits(input_tokens_per_minute=50)]
TENANTS = st.integers(0, len(LIMITS) - 1)
WORKERS = st.integers(0, 2)


def shared(num_rows, num_tenants):
    return memoryview(mmap(-1, TenantCounts.num_bytes(num_tenants, num_rows))).cast("q")


class NaiveRequest:
    def __init__(self, worker, tenant, tokens, second):
        self.worker, self.tenant, self.tokens, self.second = worker, tenant, tokens, second
        self.is_open = self.is_counted = True


class CountsMachine(RuleBasedStateMachine):
    """The twin keeps every request for ever and counts again each time."""

    def __init__(self):
        super().__init__()
        self.cells = shared(3, len(LIMITS))
        self.workers = [self.worker(row) for row in range(3)]
        self.requests = []
        self.second = 1000

    def worker(self, row):
        return TenantCounts(LIMITS, cells=self.cells, row=row, num_rows=3)

    def recent(self, tenant):
        mine = [each for each in self.requests if each.tenant == tenant]
        return [each for each in mine if self.second - each.second <= WINDOW_S]

    def totals(self, tenant):
        return (
            sum(each.is_open for each in self.requests if each.tenant == tenant),
            sum(each.is_counted for each in self.recent(tenant)),
            sum(each.tokens for each in self.recent(tenant)),
        )

    def has_room(self, tenant, tokens):
        num_open, requests, used = self.totals(tenant)
        limits = LIMITS[tenant]
        return (
            (limits.concurrent is None or num_open < limits.concurrent)
            and (limits.requests_per_minute is None or requests < limits.requests_per_minute)
            and (
                limits.input_tokens_per_minute is None
                or used + tokens <= limits.input_tokens_per_minute
            )
        )

    @rule(seconds=st.one_of(st.integers(0, 3), st.sampled_from([59, 60, 61, 62, 64, 65, 500])))
    def let_time_pass(self, seconds):
        self.second += seconds
        for worker in self.workers:
            worker.advance(self.second)

    @rule(row=WORKERS, tenant=TENANTS, tokens=st.integers(0, 60))
    def begin(self, row, tenant, tokens):
        passes = self.workers[row].try_begin(tenant, tokens, self.second)
        assert passes == self.has_room(tenant, tokens)
        if passes:
            self.requests.append(NaiveRequest(row, tenant, tokens, self.second))

    @rule(data=st.data(), actual=st.integers(0, 200), was_sent=st.booleans())
    def end(self, data, actual, was_sent):
        still_open = [each for each in self.requests if each.is_open]
        if not still_open:
            return
        request = data.draw(st.sampled_from(still_open))
        worker = self.workers[request.worker]
        actual = actual if was_sent else 0
        worker.end(request.tenant, request.second, request.tokens, actual)
        request.is_open = False
        if self.second - request.second <= WINDOW_S:
            request.tokens = actual
        if not was_sent:
            worker.take_back(request.tenant, request.second)
            request.is_counted = False

    @rule(row=WORKERS)
    def worker_dies_and_is_replaced(self, row):
        TenantCounts.forget_open(self.cells, len(LIMITS), row)
        for request in self.requests:
            if request.worker == row:
                request.is_open = False
        self.check_totals()
        self.workers[row] = self.worker(row)

    @invariant()
    def check_totals(self):
        for tenant in range(len(LIMITS)):
            expected = self.totals(tenant)
            assert [worker.totals(tenant) for worker in self.workers] == [expected] * 3
            shares = [worker.own(tenant) for worker in self.workers]
            assert tuple(map(sum, zip(*shares, strict=True))) == expected

    @invariant()
    def check_integrity(self):
        for worker in self.workers:
            worker.check_integrity()


TestCounts = CountsMachine.TestCase
TestCounts.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@given(st.lists(st.floats(0, 200), max_size=80).map(sorted), st.integers(1, 4))
def test_no_60_seconds_hold_more_than_the_limit(times, limit):
    """Wherever the 60 s begin."""
    counts = TenantCounts([TenantLimits(requests_per_minute=limit)])
    passed = [now for now in times if counts.try_begin(0, 0, int(now))]
    for first in passed:
        assert sum(first <= now < first + WINDOW_S for now in passed) <= limit


@given(
    st.lists(st.tuples(st.floats(0, 4), st.integers(1, 30)), min_size=1, max_size=30),
    st.integers(1, 60),
)
def test_the_wait_it_names_is_enough_and_no_longer_than_needed(steps, tokens):
    """Exact to the second in which something expires."""
    counts, now = TenantCounts([TenantLimits(input_tokens_per_minute=60)]), 100.0
    for pause, more in steps:
        now += pause
        counts.try_begin(0, more, int(now))
    excess = counts.totals(0)[2] + tokens - 60
    if excess <= 0:
        return
    wait_s = counts.tokens_wait_s(0, excess, now)
    assert 0 < wait_s <= WINDOW_S + 1
    before = int(now + wait_s) - 1
    counts.advance(before)
    assert not counts.try_begin(0, tokens, before)
    assert counts.try_begin(0, tokens, before + 1)


def test_the_wait_looks_at_every_worker():
    """What must expire may be another's."""
    cells = shared(2, 1)
    limits = [TenantLimits(requests_per_minute=2)]
    one, other = (TenantCounts(limits, cells=cells, row=row, num_rows=2) for row in range(2))
    assert other.try_begin(0, 0, 10)
    assert one.try_begin(0, 0, 30)
    assert not one.try_begin(0, 0, 40)
    assert one.requests_wait_s(0, 1, 40.5) == 10 + WINDOW_S + 1 - 40.5
    assert one.requests_wait_s(0, 2, 40.5) == 30 + WINDOW_S + 1 - 40.5


def test_a_false_count_cannot_overflow():
    """An engine may say what it likes."""
    counts = TenantCounts([TenantLimits(concurrent=5)], cells=shared(1, 1))
    for _ in range(2000):
        assert counts.try_begin(0, 1, 5)
        counts.end(0, 5, 1, 2**53)
    counts.check_integrity()


def test_a_worker_that_died_between_two_writes_leaves_no_gap():
    """Its follower adds its buckets up again."""
    cells = shared(1, 1)
    limits = [TenantLimits(requests_per_minute=2)]
    counts = TenantCounts(limits, cells=cells)
    counts.try_begin(0, 7, 5)
    cells[1] += 1  # the sum of requests, without its bucket
    assert TenantCounts(limits, cells=cells).totals(0) == (0, 1, 7)


def _count(memory, row, times):
    cells = memoryview(memory).cast("q")
    counts = TenantCounts([TenantLimits(concurrent=10**9)], cells=cells, row=row, num_rows=2)
    for _ in range(times):
        assert counts.try_begin(0, 3, 7)


@pytest.mark.parametrize("times", [2000])
def test_processes_do_not_lose_each_others_counts(times):
    """Each writes its own row, without a lock."""
    memory = mmap(-1, TenantCounts.num_bytes(1, 2))
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_count, args=(memory, row, times)) for row in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    # Row 0's worker is this process from here on, and finds what the first one has counted.
    counts = TenantCounts([TenantLimits()], cells=memoryview(memory).cast("q"), num_rows=2)
    assert counts.totals(0) == (times, 2 * times, 6 * times)
