"""Every policy on every workload of the contest: one line per cell and seed, and the verdict.

    python -m benchmarks.routing.matrix --data FOLDER [--workload NAME]... [--policy NAME]...
        [--loads 0.6,0.8,0.95] [--seeds 8] [--set SECTION.KEY=VALUE]... --out runs.jsonl
    python -m benchmarks.routing.matrix --report runs.jsonl [--ours expected_ttft]

Runs that `--out` holds already are not repeated. Rates are fractions of the capacity that the best
of the policies reaches, which is found once for each workload and kept beside the runs.
"""

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any, get_args

import msgspec

from benchmarks.routing.contest import BOUND_FACTOR, CONTEST, HELD_OUT, LOADS, workloads
from benchmarks.routing.verdict import verdict
from headstart.routing.config import PolicyName, RoutingConfig
from headstart.simulator.experiment import capacity_of, light_p90_s
from headstart.simulator.run import Runner
from headstart.simulator.setup import Cell

_SEARCHED = ("expected_ttft", "lmetric", "llm_d_weighted", "preble_e2")
"""Policies of which the best defines a workload's capacity."""


def main() -> None:
    """Run what is asked for."""
    arguments = _arguments()
    if arguments.report:
        print(verdict(_read(arguments.report), arguments.ours))
        return
    folder = arguments.data / "traces"
    names = arguments.workload or list(CONTEST)
    capacities = _capacities(arguments.out.with_suffix(".capacity.json"), names, folder)
    done = {_key(run) for run in _read(arguments.out)}
    jobs = []
    for name in names:
        for seed in range(arguments.seeds):
            for load in arguments.loads:
                policies = [
                    policy
                    for policy in arguments.policy or get_args(PolicyName)
                    if (name, policy, arguments.tag, load, seed) not in done
                ]
                if policies:
                    rate = capacities[name] * load
                    jobs.append((name, folder, policies, rate, load, seed, arguments.set))
    context = get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, context) as pool, arguments.out.open("a") as out:
        for future in as_completed([pool.submit(_run, *job) for job in jobs]):
            for run in future.result():
                out.write(json.dumps({**run, "tag": arguments.tag}) + "\n")
            out.flush()


def _run(
    name: str,
    folder: Path,
    policies: Sequence[PolicyName],
    rate: float,
    load: float,
    seed: int,
    changes: Sequence[str],
) -> list[dict[str, Any]]:
    runner = _runner(name, folder, tuple(changes))
    runs = []
    for policy in policies:
        start = process_time()
        outcome = runner.run(Cell(policy, rate, seed))
        cost_s = process_time() - start
        runs.append(
            {
                "workload": name,
                "policy": policy,
                "load": load,
                "seed": seed,
                "rate": rate,
                "cpu_s": round(cost_s, 3),
                **msgspec.to_builtins(outcome),
            }
        )
    return runs


_runners: dict[tuple[str, tuple[str, ...]], Runner] = {}  # of a worker process


def _runner(name: str, folder: Path, changes: tuple[str, ...]) -> Runner:
    runner = _runners.get((name, changes))
    if runner is None:
        workload = workloads()[name]
        setup = replace(workload.setup(), routing=_routing(changes))
        runner = Runner(workload.make(folder), setup)
        _runners.clear()
        _runners[name, changes] = runner
    return runner


def _routing(changes: Sequence[str]) -> RoutingConfig:
    routing = RoutingConfig()
    for change in changes:
        name, value = change.split("=")
        section, key = name.split(".")
        part = getattr(routing, section)
        kind = type(getattr(part, key))
        routing = replace(routing, **{section: replace(part, **{key: kind(json.loads(value))})})
    return routing


def _capacities(path: Path, names: Sequence[str], folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    missing = [name for name in names if name not in found]
    if missing:
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
            rates = pool.map(_capacity, missing, [folder] * len(missing))
            found |= dict(zip(missing, rates, strict=True))
        path.write_text(json.dumps(found, indent=1))
    return found


def _capacity(name: str, folder: Path) -> float:
    workload = workloads()[name]
    trace, setup = workload.make(folder), workload.setup()
    known = [policy for policy in _SEARCHED if policy in get_args(PolicyName)]
    bound_s = BOUND_FACTOR * light_p90_s(trace, setup, "expected_ttft")
    capacity = capacity_of(trace, setup, known, bound_s)
    print(f"{name}: {capacity.rate:.2f}/s with {capacity.policy}, P90 <= {bound_s:.2f} s")
    return capacity.rate


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _key(run: dict[str, Any]) -> tuple[str, str, str, float, int]:
    return run["workload"], run["policy"], run["tag"], run["load"], run["seed"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    data = Path(os.environ.get("HEADSTART_TEST_DATA", ".")) / "data"
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--workload", action="append", choices=[*CONTEST, *HELD_OUT])
    parser.add_argument("--policy", action="append", choices=get_args(PolicyName))
    parser.add_argument("--loads", type=_numbers, default=LOADS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], help="a policy's parameter")
    parser.add_argument("--tag", default="", help="names these parameters in the runs")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--ours", default="expected_ttft")
    return parser.parse_args()


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


if __name__ == "__main__":
    main()
