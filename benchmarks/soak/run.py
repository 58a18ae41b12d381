"""A soak: faults and rude clients at 70 % of capacity, for as long as it takes to see growth.

    python -m benchmarks.soak.run --minutes 30 [--workers 1] [--seed 1] [--json report.json]

Starts `headstart serve` with everything on before three mock engines, measures what it can take,
drives 70 % of that while engines are killed, frozen, reset, slowed, half-closed and made to answer
nonsense, and while clients leave, dawdle and send what is no request. Every answer is judged, every
record is looked up, and memory, descriptors and tasks are watched. Exit status 1 if a check fails.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import uvloop

from benchmarks.soak.faults import cause, inject, schedule
from benchmarks.soak.load import MAX_OPEN, Load, Tokens
from benchmarks.soak.processes import (
    NUM_ENGINES,
    TENANTS,
    EngineProcesses,
    GatewayProcess,
    free_ports,
    key_of,
)
from benchmarks.soak.records import compare
from benchmarks.soak.report import (
    Check,
    Report,
    answer_checks,
    growth_checks,
    latencies,
    record_checks,
    render,
    rest_checks,
)
from benchmarks.soak.rude import RudeClients
from benchmarks.soak.sampling import Samples, counter, process_figures, sample
from benchmarks.soak.tally import open_tally

SHARE_OF_CAPACITY = 0.7
_RAMP = (4, 8, 16, 32, 64, 128)
_RAMP_STEP_S = 4.0
_RUDE_PER_S = 10.0
_FILL_S = 4.0
_REST_S = 6.0  # longer than kept connections to engines are kept unused


class Soak:
    """One run.

    Args:
        args: the command line.
        folder: for everything that is written.
    """

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self._report = Report()
        self._tokens = Tokens([key_of(tenant) for tenant in TENANTS], args.seed)
        self._samples = Samples()

    async def run(self) -> Report:
        """Do all of it and return the report."""
        args, report = self._args, self._report
        report.setting = {
            "minutes": args.minutes,
            "workers": args.workers,
            "seed": args.seed,
            "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        }
        own, gateways = _cores(args.workers)
        engines = EngineProcesses(free_ports(NUM_ENGINES), own)
        if own:
            os.sched_setaffinity(0, {int(own)})
        try:
            engines.start_all()
            gateway = GatewayProcess(self._folder, engines.ports, args.workers, gateways)
            try:
                await self._measure(gateway, engines)
                await self._drive(gateway, engines)
            finally:
                status = gateway.stop()
            report.checks.append(Check("the gateway ended in order", status == 0, f"{status}"))
        finally:
            engines.close()
        self._compare_records(gateway)
        return report

    async def _measure(self, gateway: GatewayProcess, engines: EngineProcesses) -> None:
        self._ramp = open_tally(self._folder, "ramp")
        load = Load(gateway.port, self._tokens, self._ramp, lambda _start, _end: "none")
        best = 0.0
        for num_open in _RAMP if self._args.rate is None else ():
            rate = await load.saturate(num_open, _RAMP_STEP_S)
            self._report.capacity[f"{num_open} open requests"] = rate
            _say(f"capacity with {num_open} open requests: {rate:.0f}/s")
            best = max(best, rate)
        if self._args.minutes >= 1:  # in less nobody sees growth
            await self._fill(load, engines)
        load.close()
        self._rate = self._args.rate or SHARE_OF_CAPACITY * best
        self._report.capacity["driven"] = self._rate

    async def _fill(self, load: Load, engines: EngineProcesses) -> None:
        """Open as many requests as there can be, once: memory has then been at its height.

        An allocator keeps what a peak needed. If the first peak came in the drive it would look
        like growth.
        """
        for index in range(NUM_ENGINES):
            engines.freeze(index)
        filling = asyncio.create_task(load.saturate(MAX_OPEN, 2 * _FILL_S))
        await asyncio.sleep(_FILL_S)
        for index in range(NUM_ENGINES):
            engines.thaw(index)
        await filling

    async def _drive(self, gateway: GatewayProcess, engines: EngineProcesses) -> None:
        args, report = self._args, self._report
        tally = self._tally = open_tally(self._folder, "drive")
        await asyncio.sleep(_REST_S)
        before = process_figures(gateway.metrics())
        duration_s = args.minutes * 60
        faults = schedule(duration_s, NUM_ENGINES, args.seed)
        started = time.monotonic()
        load = Load(
            gateway.port,
            self._tokens,
            tally,
            lambda start, end: cause(faults, start - started, end - started),
        )
        rude = RudeClients(gateway.port, self._tokens, tally, args.seed)
        async with self._sampling(gateway), asyncio.TaskGroup() as group:
            group.create_task(inject(faults, engines, started))
            group.create_task(rude.visit(_RUDE_PER_S, duration_s))
            group.create_task(load.drive(self._rate, duration_s, random.Random(args.seed)))
        load.close()
        await asyncio.sleep(_REST_S)
        text = gateway.metrics()
        report.counts["faults"] = len(faults)
        report.outcomes = {cause: dict(counts) for cause, counts in tally.outcomes.items()}
        report.rude = {manner: dict(counts) for manner, counts in tally.rude.items()}
        report.latency_ms = latencies(tally)
        report.trends = {" ".join(key): found for key, found in self._samples.trends().items()}
        report.series = self._samples.series()
        tally.violations += self._ramp.violations
        report.checks += answer_checks(tally)
        report.checks += rest_checks(before, process_figures(text))
        if args.minutes >= 5:  # in less a burst of requests looks like growth
            report.checks += growth_checks(self._samples)
        dropped = counter(text, "headstart_records_dropped_total")
        report.checks.append(Check("no record was dropped", dropped == 0, f"{dropped:.0f}"))

    @asynccontextmanager
    async def _sampling(self, gateway: GatewayProcess) -> AsyncIterator[None]:
        sampler = asyncio.create_task(sample(gateway, self._samples))
        try:
            yield
        finally:
            sampler.cancel()
            await asyncio.gather(sampler, return_exceptions=True)

    def _compare_records(self, gateway: GatewayProcess) -> None:
        files = []
        for tally in (self._ramp, self._tally):
            tally.id_file.close()
            files.append(Path(tally.id_file.name))
        found = compare(gateway.database, files, self._folder / "seen.db")
        self._tally.num_unanswered += self._ramp.num_unanswered
        self._report.checks += record_checks(found, self._tally)
        self._report.counts["requests sent"] = self._tally.num_sent + self._ramp.num_sent
        self._report.counts["records"] = found.num_records
        self._report.counts["retried"] = found.num_retried
        self._report.counts["records by error"] = found.errors


def _cores(workers: int) -> tuple[str, str]:
    """Return where engines and load run, and where the gateway: apart, if it is one process."""
    is_apart = workers == 1 and (os.cpu_count() or 1) > 1 and shutil.which("taskset") is not None
    return ("0", "1") if is_apart else ("", "")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run what the command line describes; return the exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--rate", type=float, help="requests per second, instead of 70 %%")
    options.add_argument("--json", type=Path, help="file for the report")
    options.add_argument("--keep", type=Path, help="new folder for records and logs, kept")
    args = options.parse_args()
    if args.keep and args.keep.exists():
        options.error(f"{args.keep} is there already, and its records would count: name a new one")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for the processes started here too
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = uvloop.run(Soak(args, folder).run())
        if args.json:
            args.json.write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")
    print(render(report))
    return 0 if report.is_passed else 1


if __name__ == "__main__":
    sys.exit(main())
