"""The result as a page with charts, in one file that needs nothing else.

Plotly's script is taken from the installed package and written into the page; nothing is fetched.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from headstart.errors import ConfigError
from headstart.simulator.report.result import Line, Result
from headstart.simulator.report.table import header, load_of, rows, summary

_CHARTS: Final = (
    ("TTFT P50, s", "ttft_p50_s"),
    ("TTFT P90, s", "ttft_p90_s"),
    ("TTFT P99, s", "ttft_p99_s"),
    ("Hit ratio", "hit_ratio"),
    ("Imbalance", "imbalance"),
    ("Goodput, requests/s", "goodput"),
)
_LOGARITHMIC: Final = frozenset({"ttft_p50_s", "ttft_p90_s", "ttft_p99_s"})

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }
"""


def page(result: Result) -> str:
    """Return the page.

    Raises:
        ConfigError: plotly is not installed.
    """
    try:
        from plotly import graph_objects
        from plotly.offline import get_plotlyjs
    except ImportError as exc:
        raise ConfigError(
            "The page needs plotly, which is not installed: pip install 'headstart[report]'."
        ) from exc
    lines = result.lines()
    charts = [
        _chart(graph_objects, lines, title, figure).to_html(
            full_html=False, include_plotlyjs=False, config={"displaylogo": False}
        )
        for title, figure in _CHARTS
    ]
    return "".join(
        (
            "<!doctype html><html lang=en><meta charset=utf-8>",
            f"<title>headstart simulate: {escape(result.trace)}</title><style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script><body>",
            f"<h1>Simulation of {escape(result.trace)}</h1>",
            *(f"<p>{escape(sentence)}</p>" for sentence in summary(result)),
            _table(result),
            "<div class=charts>",
            *(f"<div>{chart}</div>" for chart in charts),
            "</div></body></html>",
        )
    )


def _table(result: Result) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in header())
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(result)
    )
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _chart(objects: Any, lines: Sequence[Line], title: str, figure: str) -> Any:
    """Return one figure over load, a line for each policy."""
    chart = objects.Figure()
    policies = list(dict.fromkeys(line.policy for line in lines))
    for policy in policies:
        own = [line for line in lines if line.policy == policy]
        chart.add_trace(
            objects.Scatter(
                x=[load_of(line) for line in own],
                y=[line.figures[figure].mean for line in own],
                error_y={"array": [line.figures[figure].half_width for line in own]},
                name=policy,
                mode="lines+markers",
            )
        )
    chart.update_layout(
        title=title,
        margin={"l": 50, "r": 10, "t": 40, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(128,128,128,0.06)",
        font={"color": "#888"},
        xaxis={"type": "category"},
    )
    if figure in _LOGARITHMIC:
        chart.update_yaxes(type="log")
    return chart
