"""`headstart simulate` on small traces: what it prints, and what it refuses."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from headstart.cli.main import app

RUN_KEYS = {
    "policy",
    "load",
    "rate",
    "seed",
    "requests",
    "hit_ratio",
    "ttft_p50_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "imbalance",
    "evicted_blocks",
}


@pytest.fixture
def trace(tmp_path):
    """120 requests of five families, in Mooncake's form, gzipped."""
    lines = []
    for number in range(120):
        family = number % 5
        ids = [*range(100 * family, 100 * family + 6), 1000 + number]
        lines.append(
            {
                "timestamp": 200 * number,
                "input_length": 7 * 512 - 40,
                "output_length": 30,
                "hash_ids": ids,
            }
        )
    path = tmp_path / "trace.bin"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return str(path)


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments])


def document(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_document(trace):
    """A run for each policy, load and seed, a line for each policy and load, and the capacity."""
    found = document(
        trace,
        *("--replicas", "2", "--policy", "expected_ttft", "--policy", "round_robin"),
        *("--load", "0.5,0.9", "--seeds", "2", "--processes", "1"),
    )
    assert [(run["policy"], run["load"], run["seed"]) for run in found["runs"]] == [
        (policy, load, seed)
        for load in (0.5, 0.9)
        for policy in ("expected_ttft", "round_robin")
        for seed in (0, 1)
    ]
    for one in found["runs"]:
        assert one.keys() >= RUN_KEYS
        assert one["rate"] == pytest.approx(one["load"] * found["capacity"]["rate"])
        assert one["requests"] == 108  # less a tenth for warming up
        assert 0 < one["ttft_p50_s"] <= one["ttft_p90_s"] <= one["ttft_p99_s"]
    assert found["capacity"]["policy"] in ("expected_ttft", "round_robin")
    assert found["capacity"]["ttft_p90_bound_s"] > 0
    assert [(line["policy"], line["load"], line["seeds"]) for line in found["summary"]] == [
        (policy, load, 2) for load in (0.5, 0.9) for policy in ("expected_ttft", "round_robin")
    ]
    line, runs = found["summary"][0], found["runs"][:2]
    assert line["hit_ratio"]["mean"] == pytest.approx(sum(run["hit_ratio"] for run in runs) / 2)


def test_the_same_seeds_give_the_same_whatever_the_processes(trace):
    """A run depends on its cell alone."""
    arguments = (trace, "--rate", "3,6", "--seeds", "2", "--policy", "power_of_two")
    one = document(*arguments, "--processes", "1")
    assert one == document(*arguments, "--processes", "2")
    assert {run["load"] for run in one["runs"]} == {None}
    assert one["capacity"] is None


def test_as_recorded(trace):
    """Without a load or a rate the trace's own times are kept; a table is printed."""
    result = run(trace, "--seeds", "1", "--replicas", "2")
    assert result.exit_code == 0, result.output
    assert "as recorded" in result.stdout
    assert "120 requests" in result.stdout
    assert document(trace, "--seeds", "1")["runs"][0]["rate"] is None


def test_a_prefix_policy_hits_more_than_chance(trace):
    """What the whole is about, on a trace where it must show."""
    found = document(
        trace, "--rate", "5", "--seeds", "1", "--policy", "expected_ttft", "--policy", "random"
    )
    ours, chance = (line["hit_ratio"]["mean"] for line in found["summary"])
    assert ours > chance


def test_the_page(trace, tmp_path):
    """It holds the table, a chart for each figure and plotly's script, and fetches nothing."""
    pytest.importorskip("plotly", reason="plotly is not installed (headstart[report])")
    page = tmp_path / "page.html"
    result = run(trace, "--rate", "5", "--seeds", "1", "--html", str(page))
    assert result.exit_code == 0, result.output
    text = page.read_text()
    for title in ("TTFT P50, s", "TTFT P90, s", "TTFT P99, s", "Hit ratio", "Imbalance"):
        assert title in text
    assert "<td>expected_ttft</td>" in text
    assert "<script src" not in text
    assert "color-scheme: light dark" in text


@pytest.mark.parametrize("name", ["llm-d", "sglang", "multi-turn", "mix-arena"])
def test_generators(name):
    """Traces can be drawn instead of read."""
    found = document(f"generate:{name}", "--requests", "60", "--rate", "4", "--seeds", "1")
    assert found["runs"][0]["requests"] == 54


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.jsonl"], "absent.jsonl"),
        (["generate:llmd"], "did you mean `llm-d`?"),
        (["TRACE", "--policy", "expected_tft"], "did you mean `expected_ttft`?"),
        (["TRACE", "--cost", "mistral"], "mistral-7b-a100"),
        (["TRACE", "--load", "0.5,much"], "'much' is none"),
        (["TRACE", "--load", "0.5", "--rate", "3"], "exclude each other"),
        (["TRACE", "--block-tokens", "700"], "e.g. 512"),
        (["TRACE", "--kv-tokens", "1000"], "holds no request"),
        (["TRACE", "--load", "0.5", "--bound", "0.000001"], "give another --bound"),
    ],
)
def test_what_cannot_be_simulated_is_said(trace, arguments, said):
    """One line that names the value and the next step, and status 1."""
    result = run(*[trace if argument == "TRACE" else argument for argument in arguments])
    assert result.exit_code == 1
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
