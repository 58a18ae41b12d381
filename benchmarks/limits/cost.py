"""What limits and the queue cost a request, in microseconds of the event loop.

    python benchmarks/limits/cost.py

The best of a hundred short runs of each, so that other programs on the machine do not count. A
request is admitted and its end is settled with the engine's usage; a refused one is told which
limit, and until when. `4 workers` reads the counts of all of them from shared memory. A queued
request joins, waits behind the given number, and is sent.
"""

import sys
import timeit
from collections.abc import Callable
from mmap import mmap

from headstart.accounting.tenant import Tenant, TenantLimits
from headstart.accounting.tenant_counts import TenantCounts
from headstart.errors import Overloaded
from headstart.gateway.limits import TenantLimiter
from headstart.routing.queue import Line, QueueConfig, WaitQueue
from headstart.routing.queue_orders import NO_MATCH

CALLS = 1000
RUNS = 100
NOW = 1000.5
PATH = "/v1/chat/completions"
PROMPT_BYTES = 800
PROMPT_TOKENS = 190

FREE = Tenant("free")
LIMITED = Tenant("limited", limits=TenantLimits(1000, 10**9, 10**12))
SPENT = Tenant("spent", limits=TenantLimits(requests_per_minute=1))
TENANTS = [FREE, LIMITED, SPENT]


def limiter(num_workers: int = 0) -> TenantLimiter:
    """Return a limiter that counts alone, or one of several workers'."""
    if not num_workers:
        return TenantLimiter(TENANTS)
    memory = mmap(-1, TenantCounts.num_bytes(len(TENANTS), num_workers))
    limits = [tenant.limits for tenant in TENANTS]
    cells = memoryview(memory).cast("q")
    return TenantLimiter(TENANTS, TenantCounts(limits, cells=cells, num_rows=num_workers))


def request(limits: TenantLimiter, tenant: Tenant) -> Callable[[], None]:
    """Return one request's way through the limits."""

    def call() -> None:
        admission = limits.admit(tenant, PATH, PROMPT_BYTES, NOW)
        if admission is not None:
            admission.end(PROMPT_TOKENS, was_sent=True)

    return call


def refusal() -> Callable[[], None]:
    """Return a request that finds its tenant's minute used up."""
    limits = limiter()
    limits.admit(SPENT, PATH, PROMPT_BYTES, NOW)

    def call() -> None:
        try:
            limits.admit(SPENT, PATH, PROMPT_BYTES, NOW)
        except Overloaded:
            return
        raise AssertionError("it was let through")

    return call


def queued(num_waiting: int) -> Callable[[], None]:
    """Return a wait behind `num_waiting` others."""
    queue: WaitQueue[str] = WaitQueue(QueueConfig(max_in_flight=1, max_waiting=num_waiting + 1))
    line = Line("m")
    for _ in range(num_waiting):
        queue.join("before", line, PROMPT_BYTES, NOW)

    def call() -> None:
        queue.join("this", line, PROMPT_BYTES, NOW)
        queue.pop_next(lambda _line: True, lambda _place: NO_MATCH, NOW)

    return call


def advance(num_tenants: int) -> Callable[[], None]:
    """Return what is done once a second: a second's counts expire."""
    counts = TenantCounts([LIMITED.limits] * num_tenants)
    second = 0

    def call() -> None:
        nonlocal second
        second += 1
        counts.advance(second)

    return call


def per_call_us(call: Callable[[], None], calls: int = CALLS) -> float:
    """Return the best run, without what an empty call costs."""
    empty = min(timeit.repeat(lambda: None, number=calls, repeat=RUNS))
    return (min(timeit.repeat(call, number=calls, repeat=RUNS)) - empty) / calls * 1e6


def main() -> None:
    """Print the table."""
    for label, call in (
        ("no limits", request(limiter(), FREE)),
        ("all three limits", request(limiter(), LIMITED)),
        ("all three limits, 4 workers", request(limiter(4), LIMITED)),
        ("refused", refusal()),
        ("queued, nobody before it", queued(0)),
        ("queued, 10,000 before it", queued(10_000)),
    ):
        print(f"{label:<32} {per_call_us(call):6.2f} µs")
    print(f"{'once a second, 1,000 tenants':<32} {per_call_us(advance(1000), 10):6.0f} µs")
    print(f"Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
