"""The result as a page with charts, in one file that needs nothing else.

Plotly's script is taken from the installed package and written into the page; nothing is fetched.
"""

from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from math import ceil, floor, log10
from typing import Any, Final

from headstart.errors import ConfigError
from headstart.simulator.report.result import Line, Result
from headstart.simulator.report.table import header, load_of, rows, summary
from headstart.simulator.summary import Interval

_CHARTS: Final = (
    ("TTFT P50, s", "ttft_p50_s"),
    ("TTFT P90, s", "ttft_p90_s"),
    ("TTFT P99, s", "ttft_p99_s"),
    ("Hit ratio", "hit_ratio"),
    ("Imbalance", "imbalance"),
    ("Goodput, requests/s", "goodput"),
)
_LOGARITHMIC: Final = frozenset({"ttft_p50_s", "ttft_p90_s", "ttft_p99_s"})

_DASHES: Final = ("solid", "dot", "dash")
_COLOURS: Final = 10
"""Of plotly, before it begins again; from there on lines are not solid."""

_DIGITS: Final = ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7))
_LEAST_TICKS: Final = 4

_HEIGHT: Final = 420
_LEGEND_HEIGHT: Final = 10
"""Pixels; of a policy's half of a line."""

_GRID: Final = {"gridcolor": "rgba(128,128,128,.25)", "zerolinecolor": "rgba(128,128,128,.25)"}

_CONFIG: Final = {"displayModeBar": False, "responsive": True}

# The number of columns does not depend on what is there yet: charts are drawn one by one as the
# page is read, each as wide as its column is then.
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: right; }
th { vertical-align: bottom; }
td { font-variant-numeric: tabular-nums; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
.charts { margin-top: 2rem; }
.charts .infolayer text, .charts .xtick text, .charts .ytick text { fill: CanvasText !important; }
@media (max-width: 52rem) { .charts { grid-template-columns: minmax(0, 1fr); } }
"""


def check_installed() -> None:
    """Make sure that `page` will find what it needs, before hours are spent on its figures.

    Raises:
        ConfigError: plotly is not installed.
    """
    if find_spec("plotly") is None:
        raise ConfigError(
            "The page needs plotly, which is not installed: pip install 'headstart[report]'."
        )


def page(result: Result) -> str:
    """Return the page.

    Raises:
        ConfigError: plotly is not installed.

    Cost: about 5 MB, nearly all of it plotly's script.
    """
    check_installed()
    from plotly.offline import get_plotlyjs  # half a second that no other command pays

    title = f"Simulation of {escape(result.trace)}"
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head>\n<body><h1>{title}</h1>\n",
            *(f"<p>{escape(sentence)}</p>\n" for sentence in summary(result)),
            _table(result),
            _charts(result.lines()),
            "</body></html>\n",
        )
    )


def _table(result: Result) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in header())
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n"
        for row in rows(result)
    )
    table = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>\n'


def _charts(lines: Sequence[Line]) -> str:
    from plotly import graph_objects

    charts = [
        _chart(graph_objects, lines, title, figure).to_html(
            full_html=False, include_plotlyjs=False, config=_CONFIG, div_id=figure
        )
        for title, figure in _CHARTS
    ]
    return '<div class="charts">' + "".join(f"<div>{one}</div>\n" for one in charts) + "</div>\n"


def _chart(objects: Any, lines: Sequence[Line], title: str, figure: str) -> Any:
    """Return one figure over load, a line for each policy."""
    chart = objects.Figure()
    policies = list(dict.fromkeys(line.policy for line in lines))
    for index, policy in enumerate(policies):
        own = [line for line in lines if line.policy == policy]
        chart.add_trace(
            objects.Scatter(
                x=[_x(line) for line in own],
                y=[line.figures[figure].mean for line in own],
                error_y={"array": [line.figures[figure].half_width for line in own]},
                name=policy,
                mode="lines+markers",
                line={"dash": _DASHES[index // _COLOURS % len(_DASHES)]},
            )
        )
    chart.update_layout(
        title=title,
        height=_HEIGHT + _LEGEND_HEIGHT * len(policies),
        showlegend=True,
        legend={"orientation": "h", "y": -0.2},
        margin={"l": 55, "r": 15, "t": 45, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(128,128,128,.06)",
    )
    chart.update_xaxes(title=_x_title(lines), tickformat=_x_format(lines), **_GRID)
    ticks = _ticks([line.figures[figure] for line in lines]) if figure in _LOGARITHMIC else None
    if ticks:
        chart.update_yaxes(type="log", tickvals=ticks, **_GRID)
    else:  # from 0, lest a small difference look like a large one
        chart.update_yaxes(rangemode="tozero", **_GRID)
    return chart


def _ticks(figures: Sequence[Interval]) -> list[float] | None:
    """Return where a logarithmic axis has its labels; None: the range is too narrow for one.

    Left to itself, plotly writes a lone `5` where 0.5 is meant.
    """
    known = [one for one in figures if one.mean > 0.0]
    low = min((one.mean - one.half_width for one in known), default=1.0)
    low = max(low, min((one.mean for one in known), default=1.0) / 2.0)
    high = max((one.mean + one.half_width for one in known), default=1.0)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in _DIGITS:
        ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= _LEAST_TICKS:
            return ticks
    return None


def _x(line: Line) -> float | str:
    if line.load is not None:
        return line.load
    return load_of(line) if line.rate is None else line.rate


def _x_title(lines: Sequence[Line]) -> str:
    if any(line.load is not None for line in lines):
        return "load, share of the capacity"
    return "load" if any(line.rate is None for line in lines) else "requests/s"


def _x_format(lines: Sequence[Line]) -> str:
    return ".0%" if any(line.load is not None for line in lines) else ""
