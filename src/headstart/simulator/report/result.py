"""An experiment with its figures, as reports are made of it."""

from collections.abc import Sequence

import msgspec

from headstart.routing.config import PolicyName
from headstart.simulator.capacity import Capacity
from headstart.simulator.outcome import Outcome
from headstart.simulator.setup import Setup
from headstart.simulator.summary import Interval, summarise


class Run(msgspec.Struct, frozen=True):
    """One replay.

    Attributes:
        policy: that routed.
        load: share of the capacity; None where a rate was given, or none.
        rate: requests per second; None: as recorded.
        seed: of arrivals and draws.
        outcome: its figures.
    """

    policy: PolicyName
    load: float | None
    rate: float | None
    seed: int
    outcome: Outcome


class Line(msgspec.Struct, frozen=True):
    """Runs that differ in their seed only.

    Attributes:
        policy: that routed.
        load: as in the runs; likewise `rate`.
        rate: as in the runs.
        num_seeds: so many runs.
        figures: the interval of each figure.
    """

    policy: PolicyName
    load: float | None
    rate: float | None
    num_seeds: int
    figures: dict[str, Interval]


class Result(msgspec.Struct, frozen=True):
    """An experiment.

    Attributes:
        trace: its name.
        num_requests: of it.
        block_tokens: of it.
        setup: the fleet.
        runs: in the order of load, policy and seed.
        capacity: to which loads refer, if there are any.
        bound_s: of TTFT P90, which defines it.
        light_p90_s: TTFT P90 of a fleet with little to do, if the bound is a multiple of it.
    """

    trace: str
    num_requests: int
    block_tokens: int
    setup: Setup
    runs: Sequence[Run]
    capacity: Capacity | None = None
    bound_s: float | None = None
    light_p90_s: float | None = None

    def lines(self) -> list[Line]:
        """Return one line for each policy and load, in the order of the runs."""
        groups: dict[tuple[float | None, float | None, PolicyName], list[Run]] = {}
        for run in self.runs:
            groups.setdefault((run.load, run.rate, run.policy), []).append(run)
        return [
            Line(policy, load, rate, len(runs), summarise([run.outcome for run in runs]))
            for (load, rate, policy), runs in groups.items()
        ]
