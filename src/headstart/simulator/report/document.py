"""The result as JSON."""

from dataclasses import asdict

import msgspec

from headstart.simulator.report.result import Line, Result, Run
from headstart.types import JsonObject


def document(result: Result) -> JsonObject:
    """Return what `headstart simulate --json` prints; times are in seconds."""
    setup = asdict(result.setup)
    setup["cost"] = {"name": result.setup.cost.name, "source": result.setup.cost.source}
    capacity = None
    if result.capacity is not None:
        capacity = {**msgspec.to_builtins(result.capacity), "ttft_p90_bound_s": result.bound_s}
    return {
        "trace": {
            "name": result.trace,
            "requests": result.num_requests,
            "block_tokens": result.block_tokens,
        },
        "setup": setup,
        "capacity": capacity,
        "runs": [_run(run) for run in result.runs],
        "summary": [_line(line) for line in result.lines()],
    }


def _run(run: Run) -> JsonObject:
    head = {"policy": run.policy, "load": run.load, "rate": run.rate, "seed": run.seed}
    return {**head, **msgspec.to_builtins(run.outcome)}


def _line(line: Line) -> JsonObject:
    figures = {
        name: {"mean": figure.mean, "half_width": figure.half_width}
        for name, figure in line.figures.items()
    }
    head = {"policy": line.policy, "load": line.load, "rate": line.rate}
    return {**head, "seeds": line.num_seeds, **figures}
