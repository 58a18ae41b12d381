"""The result as rows of text."""

from typing import Final

from headstart.simulator.report.result import Line, Result
from headstart.simulator.summary import Interval

_COLUMNS: Final[tuple[tuple[str, str, float, int], ...]] = (
    ("hit ratio", "hit_ratio", 1.0, 3),
    ("TTFT P50, s", "ttft_p50_s", 1.0, 3),
    ("P90, s", "ttft_p90_s", 1.0, 3),
    ("P99, s", "ttft_p99_s", 1.0, 3),
    ("TPOT P50, ms", "tpot_p50_s", 1e3, 1),
    ("goodput, 1/s", "goodput", 1.0, 2),
    ("imbalance", "imbalance", 1.0, 2),
    ("evicted blocks", "evicted_blocks", 1.0, 0),
)
"""Heading, figure, factor and decimals."""


def header() -> list[str]:
    """Return the headings."""
    return ["policy", "load", *(heading for heading, _, _, _ in _COLUMNS)]


def rows(result: Result) -> list[list[str]]:
    """Return one row for each policy and load, with 95 % intervals."""
    return [
        [
            line.policy,
            load_of(line),
            *(
                _text(line.figures[figure], factor, decimals)
                for _, figure, factor, decimals in _COLUMNS
            ),
        ]
        for line in result.lines()
    ]


def load_of(line: Line) -> str:
    """Return the load of a line for people."""
    if line.load is not None:
        return f"{line.load:.0%}"
    return "as recorded" if line.rate is None else f"{line.rate:g}/s"


def summary(result: Result) -> list[str]:
    """Return what was simulated, and what loads refer to, as sentences."""
    setup, seeds = result.setup, {run.seed for run in result.runs}
    said = [
        f"{result.trace}: {result.num_requests} requests, blocks of {result.block_tokens} tokens, "
        f"{setup.num_replicas} replicas with {setup.kv_tokens} tokens of KV each, "
        f"cost of {setup.cost.name}, {len(seeds)} seeds.",
        f"The first {setup.warmup_ratio:.0%} of the requests are not counted. Goodput is what has "
        f"its first token within {setup.objective_s:g} s. ± is the half-width of the 95 % "
        "interval of the mean over seeds.",
    ]
    if setup.num_gateways > 1 or setup.event_delay_s:
        pinned = ", each session with one of them" if setup.is_pinned else ""
        said.append(
            f"{setup.num_gateways} gateways{pinned}; events reach them after "
            f"{setup.event_delay_s:g} s."
        )
    if result.capacity is not None:
        said.append(
            f"100 % load is {result.capacity.rate:.2f} requests/s, the most at which TTFT P90 "
            f"stays under {result.bound_s:.3g} s, with {result.capacity.policy}."
        )
    return said


def _text(interval: Interval, factor: float, decimals: int) -> str:
    mean = f"{interval.mean * factor:.{decimals}f}"
    if not interval.half_width:
        return mean
    return f"{mean} ± {interval.half_width * factor:.{decimals}f}"
