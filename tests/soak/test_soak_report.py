"""The report: a check that fails says why, and a real run of seconds passes."""

import argparse
import io
import json
from dataclasses import asdict

from benchmarks.soak.answers import Outcome, Verdict
from benchmarks.soak.records import RecordCheck
from benchmarks.soak.report import (
    Report,
    answer_checks,
    growth_checks,
    record_checks,
    render,
    rest_checks,
)
from benchmarks.soak.run import Soak
from benchmarks.soak.sampling import Samples
from benchmarks.soak.tally import Tally


def failed(checks) -> list[str]:
    return [check.name for check in checks if not check.is_passed]


def test_a_violation_and_a_failure_without_a_fault_fail():
    """And are named with the fault that was on."""
    tally = Tally(io.StringIO())
    tally.num_sent = 3
    tally.note("none", Verdict(Outcome.WHOLE), 0.01)
    tally.note("kill", Verdict(Outcome.CUT), 0.01)
    assert not failed(answer_checks(tally))
    tally.note("none", Verdict(Outcome.ERROR), 0.01)
    assert failed(answer_checks(tally)) == ["no failure without a fault"]
    tally.note("kill", Verdict(Outcome.VIOLATION, "[DONE] before the end"), 0.01)
    first = answer_checks(tally)[0]
    assert not first.is_passed
    assert first.detail == "1 × [DONE] before the end (fault: kill)"
    tally.num_held_back = 1
    assert "the load was sent" in failed(answer_checks(tally))


def test_records_may_be_unseen_only_for_requests_without_an_answer():
    """Who leaves early does not learn the id."""
    tally = Tally(io.StringIO())
    tally.note_id("")
    assert not failed(record_checks(RecordCheck(5, 4, 0, 0, 1, 0, {}), tally))
    assert failed(record_checks(RecordCheck(6, 4, 0, 0, 2, 0, {}), tally))
    assert len(failed(record_checks(RecordCheck(4, 5, 1, 1, 0, 0, {}), tally))) == 2


def test_growth_fails_by_process_and_figure():
    """A leak of tasks in one worker, and connections that do not go away."""
    samples = Samples()
    for second in range(200):
        samples.add(float(second), {("worker-0", "tasks"): second, ("worker-1", "tasks"): 5.0})
    before = {("worker-0", "tasks"): 5.0, ("worker-1", "connections"): 20.0}
    after = {("worker-0", "tasks"): 6.0, ("worker-1", "connections"): 200.0}
    assert failed(growth_checks(samples)) == ["worker-0: no growth of tasks"]
    assert failed(rest_checks(before, after)) == [
        "worker-1: connections at rest are what they were"
    ]


async def test_a_run_of_seconds_passes(tmp_path):
    """The real thing, too short for faults: engines, gateway, clients, records, report."""
    args = argparse.Namespace(minutes=0.1, workers=1, seed=1, rate=40.0)
    report = await Soak(args, tmp_path).run()
    assert isinstance(report, Report)
    text = render(report)
    assert report.is_passed, text
    assert report.outcomes["none"]["whole"] > 100
    assert "ok   every answered request has its record" in text
    assert json.loads(json.dumps(asdict(report)))["setting"]["workers"] == 1
