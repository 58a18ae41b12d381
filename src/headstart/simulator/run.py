"""One cell of an experiment: a trace, a policy, a rate and a seed in, figures out."""

from dataclasses import replace
from typing import Final

from headstart.routing.build import build_policy
from headstart.routing.policy import Policy
from headstart.simulator.arrivals import Arrival, schedule
from headstart.simulator.engine import EngineModel
from headstart.simulator.outcome import Outcome
from headstart.simulator.prompts import SimulatedPrompt, prepare
from headstart.simulator.replay import FleetModel, Replay
from headstart.simulator.setup import Cell, Setup
from headstart.simulator.trace import Trace, TraceRequest

_MAX_GATEWAYS: Final = 1024


class Runner:
    """Runs cells over one trace; prompts are made once.

    Args:
        trace: what is replayed.
        setup: the fleet.
    """

    __slots__ = ("_prompts", "_scheduled", "setup", "trace")

    def __init__(self, trace: Trace, setup: Setup) -> None:
        self.trace = trace
        self.setup = setup
        made = prepare(trace.requests, trace.block_tokens)
        self._prompts: dict[int, SimulatedPrompt] = {
            id(request): prompt for request, prompt in zip(trace.requests, made, strict=True)
        }
        self._scheduled: tuple[float | None, int, list[Arrival]] | None = None

    def run(self, cell: Cell) -> Outcome:
        """Play the trace once."""
        replay = self.replay(cell)
        replay.run()
        first = int(len(replay.seen) * self.setup.warmup_ratio)
        return replay.outcome(first, self.setup.objective_s)

    def replay(self, cell: Cell) -> Replay:
        """Return a replay that has yet to run."""
        setup = self.setup
        arrivals = self._schedule(cell)
        routing = replace(setup.routing, policy=cell.policy)

        def make_policy(number: int) -> Policy:
            # Gateways do not draw the same numbers, and neither do runs of other seeds.
            return build_policy(replace(routing, seed=cell.seed * _MAX_GATEWAYS + number))

        return Replay(
            arrivals,
            [self._prompt_of(arrival.request) for arrival in arrivals],
            fleet_model(setup, self.trace.block_tokens),
            make_policy,
            cell.seed,
        )

    def _schedule(self, cell: Cell) -> list[Arrival]:
        """Return the arrivals; those of the last cell are kept, since policies share them."""
        last = self._scheduled
        if last is None or last[:2] != (cell.rate, cell.seed):
            arrivals = schedule(self.trace, cell.rate, cell.seed, gap_scale=self.setup.gap_scale)
            last = self._scheduled = (cell.rate, cell.seed, arrivals)
        return last[2]

    def _prompt_of(self, request: TraceRequest) -> SimulatedPrompt:
        return self._prompts[id(request)]


def fleet_model(setup: Setup, block_tokens: int) -> FleetModel:
    """Return the fleet of `setup` for blocks of this size."""
    engine = EngineModel(
        cost=setup.cost,
        num_blocks=max(setup.kv_tokens // block_tokens, 1),
        block_tokens=block_tokens,
        token_budget=setup.token_budget,
        max_num_seqs=setup.max_num_seqs,
    )
    return FleetModel(
        engine=engine,
        num_replicas=setup.num_replicas,
        num_gateways=setup.num_gateways,
        event_delay_s=setup.event_delay_s,
        is_pinned=setup.is_pinned,
        is_open_loop=setup.is_open_loop,
        knowledge=setup.knowledge,
        gossip_s=setup.gossip_s,
    )
