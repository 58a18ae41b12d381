"""The result as rows of text."""

from math import isfinite
from typing import Final

from headstart.simulator.capacity import Capacity
from headstart.simulator.report.result import Line, Result
from headstart.simulator.setup import Setup
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
    setup = result.setup
    said = [
        f"{result.trace}: {result.num_requests} requests, blocks of {result.block_tokens} tokens, "
        f"{_count(setup.num_replicas, 'replica')} with {setup.kv_tokens} tokens of KV each, "
        f"cost of {setup.cost.name}.",
        *_gateways(setup),
        *_sending(setup),
        f"The first {setup.warmup_ratio:.0%} of the requests are not counted. Goodput is what has "
        f"its first token within {setup.objective_s:g} s. {_seeds(result)}",
        *_failures(result),
    ]
    if result.capacity is not None and result.bound_s is not None:
        said.append(_capacity(result.capacity, result.bound_s, result.light_p90_s))
    return said


def _gateways(setup: Setup) -> list[str]:
    """Say what gateways know, unless it is one that sees all at once."""
    is_exact = setup.knowledge == "events" and not setup.event_delay_s
    if setup.num_gateways == 1 and is_exact:
        return []
    pinned = ", each session with one of them" if setup.is_pinned else ""
    if setup.knowledge == "approximate":
        known = "all that is known of caches is what was sent there"
    elif setup.event_delay_s:
        known = f"events of caches come after {setup.event_delay_s:g} s"
    else:
        known = "caches are seen as they are"
    told = ""
    if setup.num_gateways > 1:
        told = "; they do not tell each other what they sent"
        if setup.gossip_s:
            told = f"; what one sent, the others hear after {setup.gossip_s:g} s"
    return [f"{_count(setup.num_gateways, 'gateway')}{pinned}; {known}{told}."]


def _sending(setup: Setup) -> list[str]:
    said = []
    if setup.is_open_loop:
        said.append("Requests are sent when due, without waiting for the last answer.")
    if setup.gap_scale != 1.0:
        said.append(
            f"Gaps within sessions are {setup.gap_scale:g} times those recorded, "
            "if the trace has no times."
        )
    return said


def _seeds(result: Result) -> str:
    num = len({run.seed for run in result.runs})
    if num == 1:
        return "One seed, and so no intervals."
    return f"± is the half-width of the 95 % interval of the mean over {num} seeds."


def _failures(result: Result) -> list[str]:
    worst = max((run.outcome for run in result.runs), key=lambda one: one.failed, default=None)
    if worst is None or not worst.failed:
        return []
    return [
        f"Up to {worst.failed} of {worst.requests} requests of a run were never answered: they do "
        "not fit into a replica's KV. Times and the hit ratio are those of the others."
    ]


def _capacity(capacity: Capacity, bound_s: float, light_p90_s: float | None) -> str:
    whence = ""
    if light_p90_s:
        whence = f" ({bound_s / light_p90_s:g} times that of a fleet with little to do)"
    return (
        f"100 % load is {capacity.rate:.2f} requests/s, the most at which TTFT P90 stays under "
        f"{bound_s:.3g} s{whence}, with {capacity.policy}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _text(interval: Interval, factor: float, decimals: int) -> str:
    if not isfinite(interval.mean):
        return "-"  # nothing that it could be of
    mean = f"{interval.mean * factor:.{decimals}f}"
    if not interval.half_width:
        return mean
    return f"{mean} ± {interval.half_width * factor:.{decimals}f}"
