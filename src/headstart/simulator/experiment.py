"""Many cells on all cores."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Final

from headstart.routing.config import PolicyName
from headstart.simulator.capacity import Capacity, find_capacity
from headstart.simulator.outcome import Outcome
from headstart.simulator.run import Runner
from headstart.simulator.setup import Cell, Setup
from headstart.simulator.trace import Trace

_CAPACITY_SEED: Final = 0

_LIGHT: Final = 0.1
"""Of the rate that a search begins with."""

_runner: Runner | None = None  # of a worker process, set once by its initializer


def run_cells(
    trace: Trace, setup: Setup, cells: Sequence[Cell], num_processes: int = 1
) -> Iterator[tuple[Cell, Outcome]]:
    """Run `cells`; yield each with its figures as it is done, in any order.

    Args:
        trace: what is replayed.
        setup: the fleet.
        cells: each independent of the others.
        num_processes: >= 1; 1 runs here.
    """
    if num_processes == 1 or len(cells) < 2:
        runner = Runner(trace, setup)
        for cell in cells:
            yield cell, runner.run(cell)
        return
    # Not forked: the caller may have threads.
    with ProcessPoolExecutor(
        num_processes, get_context("spawn"), initializer=_start, initargs=(trace, setup)
    ) as pool:
        futures = {pool.submit(_run, cell): cell for cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.result()


def capacity_of(
    trace: Trace,
    setup: Setup,
    policies: Sequence[PolicyName],
    bound_s: float,
    heard: Callable[[PolicyName, float, float], None] | None = None,
) -> Capacity:
    """Return the highest rate at which TTFT P90 stays under `bound_s` with the best policy.

    Args:
        trace: what is replayed.
        setup: the fleet.
        policies: of which the best counts.
        bound_s: > 0.
        heard: is told the policy, the rate and the P90 of each replay.

    Raises:
        ValueError: there is no such rate.
    """
    runner = Runner(trace, setup)

    def meets_bound(policy: PolicyName, rate: float) -> bool:
        outcome = runner.run(Cell(policy, rate, _CAPACITY_SEED))
        if heard is not None:
            heard(policy, rate, outcome.ttft_p90_s)
        return not outcome.failed and outcome.ttft_p90_s <= bound_s

    return find_capacity(policies, meets_bound, _start_rate(trace, setup))


def light_p90_s(trace: Trace, setup: Setup, policy: PolicyName) -> float:
    """Return TTFT P90 of a fleet that has little to do: what a bound can be a multiple of."""
    rate = _LIGHT * _start_rate(trace, setup)
    return Runner(trace, setup).run(Cell(policy, rate, _CAPACITY_SEED)).ttft_p90_s


def _start_rate(trace: Trace, setup: Setup) -> float:
    """Return a rate of the right order: half of what the fleet computes without a cache."""
    num = len(trace.requests)
    tokens = sum(request.input_tokens for request in trace.requests) / num
    outputs = sum(request.output_tokens for request in trace.requests) / num
    prefill_s = setup.cost.prefill_s(int(tokens), 0, setup.token_budget)
    share_s = prefill_s + outputs * setup.cost.token_s
    return 0.5 * setup.num_replicas / share_s


def _start(trace: Trace, setup: Setup) -> None:
    global _runner  # the only way to hand a worker process something for good
    _runner = Runner(trace, setup)


def _run(cell: Cell) -> Outcome:
    assert _runner is not None
    return _runner.run(cell)


def cells_of(
    policies: Iterable[PolicyName], rates: Iterable[float | None], seeds: Iterable[int]
) -> list[Cell]:
    """Return every combination, those that share their arrivals one after another."""
    seeds, rates, policies = list(seeds), list(rates), list(policies)
    return [Cell(policy, rate, seed) for rate in rates for seed in seeds for policy in policies]
