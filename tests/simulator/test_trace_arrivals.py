"""Traces become loads."""

from itertools import pairwise
from statistics import mean

import pytest
from drawn_traces import timed_traces, untimed_traces
from hypothesis import given
from hypothesis import strategies as st

from headstart.simulator.arrivals import MAX_GAP_S, schedule, with_times
from headstart.simulator.trace import Trace, TraceRequest


def timed(times, sessions=None):
    sessions = sessions or [-1] * len(times)
    requests = tuple(
        TraceRequest(at_s, 100 + index, 1, (), session)
        for index, (at_s, session) in enumerate(zip(times, sessions, strict=True))
    )
    return Trace("timed", 16, requests, is_timed=True)


def sessions_of(num_sessions, gaps):
    requests = []
    for session in range(num_sessions):
        at_s = 0.0
        for gap in (0.0, *gaps):
            at_s += gap
            requests.append(TraceRequest(at_s, 100, 1, (), session))
    return Trace("untimed", 16, tuple(requests), is_timed=False)


@given(
    timed_traces() | untimed_traces(),
    st.none() | st.floats(0.01, 100),
    st.integers(0, 99),
)
def test_a_schedule_is_in_order_and_whole(trace, rate, seed):
    """Every request once, in order of time, and each after the one before it in its session."""
    arrivals = schedule(trace, rate, seed)
    assert sorted(map(id, trace.requests)) == sorted(id(each.request) for each in arrivals)
    assert all(before.at_s <= after.at_s for before, after in pairwise(arrivals))
    assert all(each.at_s >= 0 for each in arrivals)
    last = {}
    for index, each in enumerate(arrivals):
        session = each.request.session
        assert each.after == (last.get(session, -1) if session >= 0 else -1)
        last[session] = index


@given(timed_traces(), st.none() | st.floats(0.01, 100), st.integers(0, 99))
def test_a_session_keeps_its_order(trace, rate, seed):
    """However its requests are moved."""
    position = {id(request): index for index, request in enumerate(trace.requests)}
    arrivals = schedule(trace, rate, seed)
    for session in {request.session for request in trace.requests} - {-1}:
        order = [position[id(a.request)] for a in arrivals if a.request.session == session]
        assert order == sorted(order)


def test_the_same_seed_is_the_same_schedule():
    """And another is another."""
    trace = timed([0.0, 1.0, 2.5, 4.0])
    assert schedule(trace, 2.0, 1) == schedule(trace, 2.0, 1) != schedule(trace, 2.0, 2)


def test_a_coarse_clock_is_spread_over_its_ticks():
    """As in Mooncake's conversation trace: 20 requests share a time, the next is 3 s on."""
    trace = timed([3.0 * tick for tick in range(50) for _ in range(20)])
    arrivals = schedule(trace, None, 7)
    moved = [each.at_s - each.request.arrival_s for each in arrivals]
    assert min(moved) >= 0
    assert max(moved) < 3.0
    assert 1.3 < mean(moved) < 1.7
    assert len({each.at_s for each in arrivals}) == 1000


def test_a_fine_clock_is_moved_by_less_than_the_mean_gap():
    """Enough for seeds to differ."""
    trace = timed([2.0 * index for index in range(100)])
    moved = [each.at_s - each.request.arrival_s for each in schedule(trace, None, 7)]
    assert 0 <= min(moved) < max(moved) < 2.0


@pytest.mark.parametrize("rate", [0.1, 5.0, 300.0])
def test_times_are_scaled_to_the_rate(rate):
    """Requests over the time that they take."""
    trace = timed([3.0 * tick for tick in range(100) for _ in range(20)])
    arrivals = schedule(trace, rate, 1)
    assert len(arrivals) / arrivals[-1].at_s == pytest.approx(rate, rel=0.02)


def test_all_at_once_is_spread_where_a_rate_is_given():
    """SGLang's benchmark has no times; without a rate all come together."""
    trace = timed([0.0] * 400)
    assert {each.at_s for each in schedule(trace, None, 1)} == {0.0}
    assert schedule(trace, 8.0, 1)[-1].at_s == pytest.approx(50.0, rel=0.05)


def test_no_requests_are_no_arrivals():
    """An empty trace is not refused here."""
    assert schedule(Trace("empty", 16, (), is_timed=True), 1.0, 1) == []


def test_sessions_start_as_a_poisson_process():
    """Their order is drawn, and their rate follows from the requests in each."""
    trace = sessions_of(2000, (1.0, 1.0, 1.0))
    arrivals = schedule(trace, 8.0, 3)
    starts = [each for each in arrivals if each.after == -1]
    gaps = [after.at_s - before.at_s for before, after in pairwise(starts)]
    assert mean(gaps) == pytest.approx(0.5, rel=0.1)
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.04)
    assert len(arrivals) / arrivals[-1].at_s == pytest.approx(8.0, rel=0.1)
    order = [each.request.session for each in starts]
    assert order != sorted(order)
    assert sorted(order) == list(range(2000))


def test_without_a_rate_a_session_starts_each_minute():
    """As in the figures of the data's own page."""
    starts = [each.at_s for each in schedule(sessions_of(2000, ()), None, 3)]
    assert mean(after - before for before, after in pairwise(starts)) == pytest.approx(60, rel=0.1)


def test_gaps_within_a_session_are_as_recorded_but_bounded():
    """A night in between counts as ten minutes."""
    arrivals = schedule(sessions_of(1, (5.0, 40_000.0, 7.0)), None, 3)
    gaps = [after.at_s - before.at_s for before, after in pairwise(arrivals)]
    assert gaps == pytest.approx([5.0, MAX_GAP_S, 7.0])


def test_gaps_can_be_scaled():
    """To reach a rate for which there are too few sessions."""
    arrivals = schedule(sessions_of(1, (5.0, 40_000.0)), None, 3, gap_scale=0.1)
    gaps = [after.at_s - before.at_s for before, after in pairwise(arrivals)]
    assert gaps == pytest.approx([0.5, MAX_GAP_S / 10])


def test_an_untimed_trace_can_be_given_times():
    """For a file in a format that has them."""
    trace = with_times(sessions_of(3, (1.0,)), 1.0, 5)
    trace.check_integrity()
    assert trace.is_timed
    assert len(trace.requests) == 6
    assert trace.requests[0].arrival_s == 0.0
