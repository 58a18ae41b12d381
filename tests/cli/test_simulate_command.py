"""`headstart simulate` on small traces: what it prints, and what it refuses."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from headstart.cli.main import app
from headstart.simulator.cost import cost_models
from headstart.simulator.outcome import Outcome
from headstart.simulator.source import GENERATORS

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


def request_line(number, blocks):
    """A request of Mooncake's form whose last block is its own; the others five families share."""
    family = 100 * (number % 5)
    return {
        "timestamp": 200 * number,
        "input_length": blocks * 512 - 40,
        "output_length": 30,
        "hash_ids": [*range(family, family + blocks - 1), 1000 + number],
    }


@pytest.fixture
def trace(tmp_path):
    """120 requests of seven blocks, gzipped."""
    lines = [json.dumps(request_line(number, 7)) for number in range(120)]
    path = tmp_path / "trace.bin"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return str(path)


@pytest.fixture
def long(tmp_path):
    """Requests of seven blocks, and a few of thirty."""
    lines = [json.dumps(request_line(at, 30 if at % 10 == 9 else 7)) for at in range(40)]
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(lines))
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


def test_the_page_names_everything():
    """docs/simulator.md has each option, generator and cost model, and each member of a run."""
    text = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    command = typer.main.get_command(app).commands["simulate"]
    options = {one.opts[0] for one in command.params} - {"trace"}
    names = {*GENERATORS, *(model.name for model in cost_models()), *Outcome.__struct_fields__}
    assert "--load" in options
    assert [name for name in sorted(options) if name not in text] == []
    assert [name for name in sorted(RUN_KEYS | names) if f"`{name}`" not in text] == []


def test_the_default_bound_is_said(trace):
    """It is five times the P90 of a fleet with little to do; one that is given is taken."""
    arguments = (trace, "--replicas", "2", "--load", "0.5", "--seeds", "1")
    capacity = document(*arguments)["capacity"]
    assert capacity["ttft_p90_bound_s"] == pytest.approx(5 * capacity["light_ttft_p90_s"])
    assert "5 times that of a fleet with little to do" in " ".join(run(*arguments).stdout.split())
    capacity = document(*arguments, "--bound", "0.5")["capacity"]
    assert (capacity["ttft_p90_bound_s"], capacity["light_ttft_p90_s"]) == (0.5, None)


def test_blocks_can_be_made_longer(trace):
    """By a whole factor; what fills none is no longer found."""
    found = document(trace, "--seeds", "1", "--block-tokens", "1024")
    assert found["trace"]["block_tokens"] == 1024


def test_standard_output_is_json_and_nothing_else(trace, monkeypatch):
    """No bar is drawn where nobody watches, and NaN is not JSON: answers here have one token."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)  # which makes anything a terminal
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    with gzip.open(trace, "rt") as file:
        text = file.read()
    with gzip.open(trace, "wt") as file:
        file.write(text.replace('"output_length": 30', '"output_length": 1'))
    result = run(trace, "--seeds", "1", "--json")
    assert result.stderr == ""
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    assert found["runs"][0]["tpot_p50_s"] is None


def test_progress_is_shown_on_a_terminal(trace, monkeypatch):
    """On standard error, the search for the capacity too."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run(trace, "--seeds", "1", "--load", "0.5", "--replicas", "2", "--json")
    json.loads(result.stdout)
    assert "capacity" in result.stderr
    assert "replays" in result.stderr


def test_no_other_command_pays_for_charts():
    """Plotly is imported when a page is asked for."""
    code = "import sys, headstart.cli.main; print({'plotly', 'pandas'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


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


def test_requests_that_fit_nowhere_are_counted(long):
    """A replica refuses them, and the figures say so."""
    arguments = (long, "--kv-tokens", "8000", "--rate", "5", "--seeds", "1")
    assert document(*arguments)["runs"][0]["failed"] == 4
    assert "Up to 4 of 36 requests" in run(*arguments).stdout


def test_a_prefix_policy_hits_more_than_chance(trace):
    """What the whole is about, on a trace where it must show."""
    found = document(
        trace, "--rate", "5", "--seeds", "1", "--policy", "expected_ttft", "--policy", "random"
    )
    ours, chance = (line["hit_ratio"]["mean"] for line in found["summary"])
    assert ours > chance


def test_the_page(trace, tmp_path):
    """It is written beside what is printed."""
    pytest.importorskip("plotly", reason="plotly is not installed (headstart[report])")
    page = tmp_path / "page.html"
    result = run(trace, "--rate", "5", "--seeds", "1", "--html", str(page))
    assert result.exit_code == 0, result.output
    assert "expected_ttft" in result.stdout
    assert "<td>expected_ttft</td>" in page.read_text()


def test_a_page_that_cannot_be_written_is_refused_at_once(trace, tmp_path):
    """Not after an hour of replays."""
    pytest.importorskip("plotly", reason="plotly is not installed (headstart[report])")
    for page in (tmp_path / "absent" / "page.html", tmp_path):
        result = run(trace, "--html", str(page))
        assert result.exit_code == 1
        assert f"--html {page} cannot be written" in result.stderr
        assert result.stdout == ""


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
        (["generate:zzz"], "choose from llm-d, mix-arena, mix-lmsys"),
        (["TRACE", "--policy", "expected_tft"], "did you mean `expected_ttft`?"),
        (["TRACE", "--policy", "zzz"], "choose from dynamo_cost, expected_ttft"),
        (["TRACE", "--knowledge", "event"], "did you mean `events`?"),
        (["TRACE", "--cost", "mistral"], "mistral-7b-a100"),
        (["TRACE", "--load", "0.5,much"], "'much' is none"),
        (["TRACE", "--cost", "TRACE"], "is no store of records"),
        (["TRACE", "--rate", "3,,4"], "'' is none"),
        (["TRACE", "--rate", "inf"], "'inf' is none"),
        (["TRACE", "--objective", "inf"], "--objective inf"),
        (["TRACE", "--load", "0.5", "--rate", "3"], "exclude each other"),
        (["TRACE", "--bound", "0.5"], "give --load"),
        (["TRACE", "--block-tokens", "700"], "e.g. 512"),
        (["TRACE", "--kv-tokens", "1000"], "holds no request"),
        (["LONG", "--kv-tokens", "8000", "--load", "0.5"], "give --kv-tokens 15360"),
        (["TRACE", "--load", "0.5", "--bound", "0.000001"], "give another --bound"),
    ],
)
def test_what_cannot_be_simulated_is_said(trace, long, arguments, said):
    """One line that names the value and the next step, and status 1."""
    files = {"TRACE": trace, "LONG": long}
    result = run(*[files.get(argument, argument) for argument in arguments])
    assert result.exit_code == 1
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
