"""What an experiment came to: as JSON, as rows and sentences, and as a page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from math import nan

import msgspec
import pytest

from headstart.errors import ConfigError
from headstart.simulator.capacity import Capacity
from headstart.simulator.outcome import Outcome
from headstart.simulator.report import html
from headstart.simulator.report.document import document
from headstart.simulator.report.result import Result, Run
from headstart.simulator.report.table import header, rows, summary
from headstart.simulator.setup import Setup

OUTCOME = Outcome(
    requests=90,
    failed=0,
    hit_ratio=0.5,
    ttft_mean_s=0.25,
    ttft_p50_s=0.2,
    ttft_p90_s=0.4,
    ttft_p99_s=0.8,
    tpot_p50_s=0.0125,
    goodput=4.5,
    goodput_ratio=1.0,
    imbalance=1.25,
    evicted_blocks=1234,
    error_ratio=0.01,
    duration_s=20.0,
)

VOID = {"meta", "br", "hr", "img", "link", "input"}


def result(**changes):
    """Two policies at two loads with two seeds, TTFT P50 of 0.2 and 0.3 s."""
    runs = [
        Run(policy, load, 10.0 * load, seed, with_figures(ttft_p50_s=0.2 + 0.1 * seed))
        for load in (0.6, 0.95)
        for policy in ("expected_ttft", "lmetric")
        for seed in (0, 1)
    ]
    base = Result(
        "a & b",
        100,
        512,
        Setup(),
        runs,
        Capacity(10.0, "lmetric", 9),
        bound_s=0.5,
        light_p90_s=0.1,
    )
    return msgspec.structs.replace(base, **changes)


def with_figures(**changes):
    return msgspec.structs.replace(OUTCOME, **changes)


def one_run(outcome=OUTCOME, load=None, rate=None, **setup):
    """A result of a single run."""
    runs = [Run("random", load, rate, 0, outcome)]
    return Result("trace", 100, 16, replace(Setup(), **setup), runs)


class Page(HTMLParser):
    """Cells, text outside of scripts, and attributes of a page whose elements must nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells, self.text, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" in self.open or "style" in self.open:
            return
        self.text.append(data)
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_document_has_each_run_and_a_line_for_each_policy_and_load():
    """All that a run came to, in the order of the runs, and means with half-widths."""
    found = document(result())
    assert list(found) == ["trace", "setup", "capacity", "runs", "summary"]
    assert found["runs"][0] == {
        "policy": "expected_ttft",
        "load": 0.6,
        "rate": 6.0,
        "seed": 0,
        **msgspec.to_builtins(with_figures(ttft_p50_s=0.2)),
    }
    line = found["summary"][3]
    assert (line["policy"], line["load"], line["seeds"]) == ("lmetric", 0.95, 2)
    assert line["ttft_p50_s"]["mean"] == pytest.approx(0.25)
    assert line["ttft_p50_s"]["half_width"] == pytest.approx(12.706 * 0.05, rel=1e-3)
    assert found["capacity"] == {
        "rate": 10.0,
        "policy": "lmetric",
        "num_runs": 9,
        "ttft_p90_bound_s": 0.5,
        "light_ttft_p90_s": 0.1,
    }


def test_the_document_says_the_whole_setup():
    """The coefficients of the cost model too, and parameters of policies but not one policy."""
    setup = document(result())["setup"]
    assert setup["num_replicas"] == 8
    assert setup["cost"]["name"] == "mistral-7b-a100"
    assert setup["cost"]["token_s"] > 0
    assert "expected_ttft" in setup["routing"]
    assert not setup["routing"].keys() & {"policy", "shadow", "seed"}


def test_what_is_not_known_is_null():
    """NaN is no JSON, and one seed says nothing of how much seeds differ."""
    found = document(one_run(with_figures(tpot_p50_s=nan), rate=3.0))
    json.dumps(found, allow_nan=False)
    assert found["runs"][0]["tpot_p50_s"] is None
    assert found["runs"][0]["load"] is None
    assert found["capacity"] is None
    (line,) = found["summary"]
    assert line["tpot_p50_s"] == {"mean": None, "half_width": None}
    assert line["hit_ratio"] == {"mean": 0.5, "half_width": None}


def test_rows():
    """One for each policy and load: figures in the units of the header, with half-widths."""
    found = rows(result())
    assert [row[:2] for row in found] == [
        ["expected_ttft", "60%"],
        ["lmetric", "60%"],
        ["expected_ttft", "95%"],
        ["lmetric", "95%"],
    ]
    assert dict(zip(header(), found[0], strict=True)) == {
        "policy": "expected_ttft",
        "load": "60%",
        "hit ratio": "0.500",
        "TTFT P50, s": "0.250 ± 0.635",
        "P90, s": "0.400",
        "P99, s": "0.800",
        "TPOT P50, ms": "12.5",
        "goodput, 1/s": "4.50",
        "imbalance": "1.25",
        "evicted blocks": "1234",
    }


def test_rows_without_a_load():
    """A rate, or times as recorded; what there was none of is a dash."""
    assert rows(one_run(rate=2.5))[0][1] == "2.5/s"
    row = rows(one_run(with_figures(tpot_p50_s=nan)))[0]
    assert row[1] == "as recorded"
    assert row[6] == "-"


def test_the_summary_says_what_loads_refer_to():
    """The capacity, with which policy, its bound, and where that is from."""
    said = summary(result())
    assert "a & b: 100 requests, blocks of 512 tokens, 8 replicas" in said[0]
    assert "mean over 2 seeds" in said[1]
    assert said[-1] == (
        "100 % load is 10.00 requests/s, the most at which TTFT P90 stays under 0.5 s "
        "(5 times that of a fleet with little to do), with lmetric."
    )
    assert "0.5 s, with lmetric" in summary(result(light_p90_s=None))[-1]


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ({"event_delay_s": 0.5}, "1 gateway; events of caches come after 0.5 s."),
        ({"num_gateways": 4}, "4 gateways; caches are seen as they are; they do not tell"),
        ({"num_gateways": 2, "is_pinned": True}, "2 gateways, each session with one of them;"),
        ({"num_gateways": 2, "gossip_s": 0.1}, "what one sent, the others hear after 0.1 s."),
        ({"knowledge": "approximate"}, "all that is known of caches is what was sent there."),
        ({"is_open_loop": True}, "without waiting for the last answer"),
        ({"gap_scale": 0.25}, "0.25 times those recorded"),
        ({"warmup_ratio": 0.2, "objective_s": 3.0}, "first token within 3 s"),
        ({"num_replicas": 1}, "1 replica with"),
    ],
)
def test_the_summary_says_what_differs(setup, said):
    """Whatever was not as usual can be read beside the figures."""
    assert said in " ".join(summary(one_run(**setup)))


def test_the_summary_says_what_the_figures_leave_out():
    """Requests without an answer, and intervals that one seed does not give."""
    said = " ".join(summary(one_run(with_figures(failed=7))))
    assert "Up to 7 of 90 requests of a run were never answered" in said
    assert "One seed, and so no intervals." in said
    assert "never answered" not in " ".join(summary(one_run()))


@pytest.fixture
def plotly():
    return pytest.importorskip("plotly", reason="plotly is not installed (headstart[report])")


def test_the_page_is_whole(plotly):
    """It nests, has the table and the sentences, and a chart for each figure."""
    one = result()
    page = Page(html.page(one))
    assert page.cells == [cell for row in rows(one) for cell in row]
    text = "".join(page.text)
    assert "Simulation of a & b" in text
    for sentence in summary(one):
        assert sentence in text
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert ids == [
        "ttft_p50_s",
        "ttft_p90_s",
        "ttft_p99_s",
        "hit_ratio",
        "imbalance",
        "goodput",
    ]


def test_the_page_fetches_nothing(plotly):
    """No element names an address; plotly's script is in the page."""
    text = html.page(result())
    named = [(tag, name) for tag, name, _ in Page(text).attributes if name in ("src", "href")]
    assert named == []
    assert len(text) > 1_000_000


def test_the_page_is_the_same_for_the_same_result(plotly):
    """Nothing in it is drawn or dated."""
    assert html.page(result()) == html.page(result())


def test_names_of_traces_are_text(plotly):
    """A file may be called anything."""
    page = Page(html.page(result(trace="<img src=x onerror=alert(1)>")))
    assert "img" not in {tag for tag, _, _ in page.attributes}
    assert "Simulation of <img src=x" in "".join(page.text)


def test_charts_of_odd_figures(plotly):
    """One point, none that is known, and intervals wider than the mean can be drawn."""
    odd = [with_figures(ttft_p50_s=nan, ttft_p90_s=0.0, ttft_p99_s=0.01 + seed) for seed in (0, 1)]
    runs = [Run("random", None, 2.0, seed, outcome) for seed, outcome in enumerate(odd)]
    for one in (one_run(), one_run(odd[0]), result(runs=runs)):
        charts = html.page(one).rpartition("<tbody>")[2]
        assert not re.search(r"\b(NaN|Infinity)\b", charts)


def test_labels_of_a_logarithmic_axis(plotly):
    """Round numbers, at least four; none if the range is too narrow to need the scale."""
    spread = [with_figures(ttft_p90_s=value) for value in (0.05, 0.7)]
    runs = [Run("random", None, 1.0 + at, 0, outcome) for at, outcome in enumerate(spread)]
    assert '"tickvals":[0.05,0.1,0.2,0.5]' in html.page(result(runs=runs))
    assert '"tickvals"' not in html.page(one_run()).rpartition("<tbody>")[2]


def test_without_plotly_the_next_step_is_said(monkeypatch):
    """Only the page needs it, and says how to get it."""
    monkeypatch.setattr(html, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'headstart[report]'")):
        html.page(one_run())
