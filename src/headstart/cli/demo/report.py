"""Shows the demo's results: a table for people, JSON for programs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rich.table import Table

from headstart.cli.demo.measure import ScenarioResult

UNKNOWN = "–"

_HEADINGS = (
    "req.",
    "input\ntokens",
    "cached\ntokens",
    "hit\nratio",
    "TTFT\noff",
    "TTFT\non",
    "change",
    "TPOT\noff",
    "TPOT\non",
    "same\noutput",
)


def as_json(results: Sequence[ScenarioResult]) -> str:
    """Return `{"scenarios": [...]}` with one object per scenario; unknown figures are null."""
    return json.dumps({"scenarios": [asdict(result) for result in results]}, indent=2)


def as_table(results: Sequence[ScenarioResult]) -> Table:
    """Return the table of all scenarios, 78 columns wide; times in milliseconds."""
    table = Table(
        title="The same requests with the prefix cache off and on (medians, milliseconds)",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("scenario", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_row(result))
    return table


def _row(result: ScenarioResult) -> tuple[str, ...]:
    same = UNKNOWN if result.same_output is None else ("yes" if result.same_output else "no")
    return (
        result.name,
        str(result.requests),
        _show(result.input_tokens, lambda n: f"{n:,.0f}"),
        _show(result.cached_tokens, lambda n: f"{n:,.0f}"),
        _show(result.hit_ratio, lambda n: f"{n:.2f}"),
        _show(result.ttft_cold_s, _milliseconds),
        _show(result.ttft_warm_s, _milliseconds),
        _change(result.ttft_cold_s, result.ttft_warm_s),
        _show(result.tpot_cold_s, _milliseconds),
        _show(result.tpot_warm_s, _milliseconds),
        same,
    )


def _show(figure: float | None, form: Callable[[float], str]) -> str:
    return UNKNOWN if figure is None else form(figure)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}"


def _change(cold_s: float | None, warm_s: float | None) -> str:
    return UNKNOWN if cold_s is None or warm_s is None else f"{warm_s / cold_s - 1:+.0%}"
