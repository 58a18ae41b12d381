"""Requests per second and CPU per request of one gateway process and of several.

    python benchmarks/overhead/workers.py [--workers 1,2,4] [--reps 3] [--seconds 3]

Engines, load generator and gateway share all cores, so that more workers help only where cores
are left: on a machine of two cores, one worker, the engines and the load generator fill them.
headstart runs with everything on, 64 connections, 0.8 KB bodies; figures are the best of the
repetitions of one run. Needs a C compiler and Linux.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gateways import KEY_VARIABLE, Setting, headstart
from run import KEY, build, free_ports, wait_for

*PORTS, GATEWAY_PORT = free_ports(3)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--workers", default="1,2")
    options.add_argument("--reps", type=int, default=3)
    options.add_argument("--seconds", type=float, default=3.0)
    args = options.parse_args()
    numbers = [int(number) for number in args.workers.split(",")]
    best: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        build(folder)
        stack.enter_context(engines(folder))
        for _ in range(args.reps):
            for number in numbers:
                with gateway(folder, number) as process:
                    keep_best(best.setdefault(number, {}), load(folder, args.seconds, process.pid))
    print(f"{os.cpu_count()} cores")
    print(f"{'workers':>8} {'rps':>8} {'cpu ms':>8} {'p50 ms':>8} {'p99 ms':>8}")
    for number, figures in best.items():
        print(
            f"{number:8} {figures['rps']:8.0f} {figures['cpu_ms_per_req']:8.3f} "
            f"{figures['lat_p50']:8.2f} {figures['lat_p99']:8.2f}"
        )


def keep_best(best: dict[str, float], found: dict[str, float]) -> None:
    assert found["bad"] == found["connerr"] == 0, found
    for name, value in found.items():
        better = max if name == "rps" else min
        best[name] = better(best.get(name, value), value)


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[None]:
    started = [
        subprocess.Popen([folder / "mockd", "-p", str(port), "-n", f"r{index}"])
        for index, port in enumerate(PORTS)
    ]
    try:
        for port in PORTS:
            wait_for(port)
        yield
    finally:
        for process in started:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def gateway(folder: Path, workers: int) -> Iterator[subprocess.Popen[bytes]]:
    home = folder / "run"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    command = [*headstart(Setting(home, GATEWAY_PORT, tuple(PORTS))), "--workers", workers]
    environment = {**os.environ, KEY_VARIABLE: KEY}
    with (home / "out.log").open("w") as log:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=log, stderr=log, env=environment
        )
        try:
            wait_for(GATEWAY_PORT)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def load(folder: Path, seconds: float, pid: int) -> dict[str, float]:
    command = [folder / "loadgen", "-u", f"127.0.0.1:{GATEWAY_PORT}"]
    command += ["-b", folder / "small_plain.jsonl", "-c", "64", "-d", seconds, "-w", "0.5"]
    command += ["-k", KEY, "-p", pid]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    main()
