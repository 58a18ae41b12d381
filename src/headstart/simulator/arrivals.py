"""When requests of a trace arrive: the process that turns what was recorded into a load.

    timed, coarse clock     many requests share a time: each is moved to some moment between its
    (Mooncake: 3 s)         own time and the next
    timed otherwise         each is moved by up to the mean gap, so that seeds differ
    not timed (WEKA)        sessions start as a Poisson process, in an order drawn by the seed; gaps
                            within one are as recorded, but no longer than `MAX_GAP_S`

A request of a session never arrives before the one before it has been answered: `Arrival.after`
says which that is, and whoever replays has to wait for it.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise
from random import Random
from statistics import median
from typing import Final

import msgspec

from headstart.simulator.trace import Trace, TraceRequest, timed_trace

MAX_GAP_S: Final = 600.0
"""Within a session of an untimed trace. People leave for the night; a cache does not see that."""

SESSIONS_PER_S: Final = 1 / 60
"""Of an untimed trace where no rate is asked for."""

_COARSE_SHARE: Final = 0.5
"""With fewer different times than this share of its requests, a trace's clock is coarse."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One request and when it wants to be sent.

    Attributes:
        at_s: from the start, >= 0.
        request: of the trace.
        after: index, in the same list, of the request of the same session before it: it is not
            sent before that one has been answered; -1: none.
    """

    at_s: float
    request: TraceRequest
    after: int = -1


def schedule(
    trace: Trace, rate: float | None, seed: int, *, gap_scale: float = 1.0
) -> list[Arrival]:
    """Return the arrivals of a trace in order of time.

    Args:
        trace: timed or not.
        rate: requests a second on the mean, > 0; None: as recorded, or one session a minute. Of
            an untimed trace it is the long-run mean: sessions start at `rate` over the mean number
            of requests in one. While the first have begun and the last not, it is reached only if
            the whole takes long against one session; `gap_scale` shortens those.
        seed: of whatever is drawn.
        gap_scale: factor on the gaps within the sessions of an untimed trace, > 0.

    Cost: O(n log n).
    """
    assert rate is None or rate > 0
    assert gap_scale > 0
    if not trace.requests:
        return []
    rng = Random(f"arrivals {seed}")
    if trace.is_timed:
        timed = _timed(trace.requests, rate, rng)
    else:
        timed = _untimed(trace.requests, rate, rng, gap_scale)
    return _in_order(timed)


def with_times(trace: Trace, rate: float | None, seed: int, *, gap_scale: float = 1.0) -> Trace:
    """Return the trace with the times that `schedule` gives it, e.g. to write it to a file."""
    requests = [
        msgspec.structs.replace(arrival.request, arrival_s=arrival.at_s)
        for arrival in schedule(trace, rate, seed, gap_scale=gap_scale)
    ]
    return timed_trace(trace.name, trace.block_tokens, requests)


def _timed(
    requests: Sequence[TraceRequest], rate: float | None, rng: Random
) -> list[tuple[float, TraceRequest]]:
    gap_s = _clock_gap_s(requests)
    duration_s = requests[-1].arrival_s - requests[0].arrival_s + gap_s
    if duration_s <= 0:  # all at once, of which only a rate can make more
        gap_s = duration_s = 0.0 if rate is None else len(requests) / rate
    factor = 1.0 if rate is None or not duration_s else len(requests) / rate / duration_s
    start_s = requests[0].arrival_s
    latest: dict[int, float] = {}
    timed = []
    for request in requests:
        at_s = (request.arrival_s - start_s + rng.random() * gap_s) * factor
        if request.session >= 0:  # moved, but not past its successor
            at_s = latest[request.session] = max(at_s, latest.get(request.session, 0.0))
        timed.append((at_s, request))
    return timed


def _clock_gap_s(requests: Sequence[TraceRequest]) -> float:
    """Return how far apart the ticks of a coarse clock are, else the mean gap between requests."""
    times = sorted({request.arrival_s for request in requests})
    if len(times) < 2:
        return 0.0
    if len(times) < _COARSE_SHARE * len(requests):
        return median(after - before for before, after in pairwise(times))
    return (times[-1] - times[0]) / (len(requests) - 1)


def _untimed(
    requests: Sequence[TraceRequest], rate: float | None, rng: Random, gap_scale: float
) -> list[tuple[float, TraceRequest]]:
    sessions = _sessions(requests)
    rng.shuffle(sessions)
    sessions_per_s = SESSIONS_PER_S if rate is None else rate * len(sessions) / len(requests)
    start_s = 0.0
    timed = []
    for session in sessions:
        start_s += rng.expovariate(sessions_per_s)
        at_s, recorded_s = start_s, session[0].arrival_s
        for request in session:
            at_s += min(request.arrival_s - recorded_s, MAX_GAP_S) * gap_scale
            recorded_s = request.arrival_s
            timed.append((at_s, request))
    return timed


def _sessions(requests: Sequence[TraceRequest]) -> list[list[TraceRequest]]:
    sessions: list[list[TraceRequest]] = []
    for session, group in groupby(requests, key=lambda request: request.session):
        if session >= 0:
            sessions.append(list(group))
        else:
            sessions += [[request] for request in group]
    return sessions


def _in_order(timed: list[tuple[float, TraceRequest]]) -> list[Arrival]:
    timed.sort(key=lambda pair: pair[0])
    last: dict[int, int] = {}
    arrivals = []
    for index, (at_s, request) in enumerate(timed):
        session = request.session
        arrivals.append(Arrival(at_s, request, last.get(session, -1)))
        if session >= 0:
            last[session] = index
    return arrivals
