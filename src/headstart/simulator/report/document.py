"""The result as JSON."""

from dataclasses import asdict
from math import isfinite

import msgspec

from headstart.simulator.report.result import Line, Result, Run
from headstart.simulator.setup import Setup
from headstart.types import JsonObject

_NOT_PARAMETERS = ("policy", "shadow", "seed")
"""Of a routing configuration: each run has its own."""


def document(result: Result) -> JsonObject:
    """Return what `headstart simulate --json` prints; times are in seconds.

    What is not known is null and not 0: a time per output token where no answer has two, an
    interval of one seed.
    """
    capacity = None
    if result.capacity is not None:
        capacity = {
            **msgspec.to_builtins(result.capacity),
            "ttft_p90_bound_s": result.bound_s,
            "light_ttft_p90_s": result.light_p90_s,
        }
    return {
        "trace": {
            "name": result.trace,
            "requests": result.num_requests,
            "block_tokens": result.block_tokens,
        },
        "setup": _setup(result.setup),
        "capacity": capacity,
        "runs": [_run(run) for run in result.runs],
        "summary": [_line(line) for line in result.lines()],
    }


def _setup(setup: Setup) -> JsonObject:
    members = asdict(setup)
    members["cost"] = msgspec.to_builtins(setup.cost)
    for name in _NOT_PARAMETERS:
        del members["routing"][name]
    return members


def _run(run: Run) -> JsonObject:
    figures = msgspec.to_builtins(run.outcome)
    return {
        "policy": run.policy,
        "load": run.load,
        "rate": run.rate,
        "seed": run.seed,
        **{name: _known(value) for name, value in figures.items()},
    }


def _line(line: Line) -> JsonObject:
    figures = {
        name: {
            "mean": _known(figure.mean),
            "half_width": _known(figure.half_width) if line.num_seeds > 1 else None,
        }
        for name, figure in line.figures.items()
    }
    head = {"policy": line.policy, "load": line.load, "rate": line.rate}
    return {**head, "seeds": line.num_seeds, **figures}


def _known(value: float) -> float | None:
    """Return None for NaN, which JSON does not have."""
    return value if isfinite(value) else None
