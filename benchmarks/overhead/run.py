"""What a request costs in headstart, against no gateway at all and against its peers.

    python benchmarks/overhead/run.py [--reps 3] [--seconds 3] [--peers FOLDER] [--json]
        [--gateways nginx,vllm-router,vllm-router-prefix,headstart,headstart-hash]

Core 0 runs two mock engines and the load generator, core 1 the gateway. headstart runs with
everything on: tenants with keys, a template folder, the default policy with its index and receipts,
timings, usage, metrics, records and the request log; `headstart-hash` routes by `prefix_hash` and
has no index. The engines report what they had cached. Figures are the best of the repetitions of
one run:

    cpu     CPU milliseconds of the gateway per request, 16 connections (streams: 64)
    added   latency added at one connection, p50 and p99, milliseconds
    rps     requests per second at 64 connections, and as a ratio to the engine alone

Needs a C compiler and Linux. A peer that is not installed is left out; those that come from PyPI
are looked for in a virtual environment of their own each, `FOLDER/NAME`.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bodies import write_bodies
from gateways import GATEWAYS, KEY_VARIABLE, Setting

HERE = Path(__file__).parent
KEY = "sk-overhead-benchmark"
NUM_CHUNKS, GAP_MS = 20, 2
NUM_BLOCKS = 20_000
"""Of 16 tokens in each engine's cache: all shared prompts fit."""

DEFAULT = ("nginx", "vllm-router", "vllm-router-prefix", "headstart", "headstart-hash")

# name: (bodies, connections of the CPU figure)
LOADS = {
    "0.8 KB": ("small_plain", 16),
    "32 KB": ("large_plain", 16),
    "32 KB SSE": ("large_stream", 64),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything runs: a folder for files, ports, and the folder of the peers."""

    folder: Path
    engines: tuple[int, int]
    gateway: int
    peers: Path | None


Results = dict[str, dict[str, dict[str, float]]]
"""Figures by gateway, load and name."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--reps", type=int, default=3)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--gateways", default=",".join(DEFAULT))
    options.add_argument("--peers", type=Path, help="folder of the peers' virtual environments")
    options.add_argument("--json", action="store_true")
    options.add_argument("--build", type=Path, help="folder for binaries and bodies, kept")
    args = options.parse_args()
    with contextlib.ExitStack() as stack:
        folder = args.build or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        build(folder)
        first, second, port = free_ports(3)
        place = Place(folder, (first, second), port, args.peers)
        stack.enter_context(engines(place))
        names = args.gateways.split(",")
        results = measure(place, names, args.reps, args.seconds)
    print(json.dumps(results, indent=2) if args.json else table(results))


def build(folder: Path) -> None:
    for name in ("mockd", "loadgen"):
        source = HERE / f"{name}.c"
        subprocess.run(["cc", "-O2", "-o", folder / name, source, "-lm"], check=True)
    write_bodies(folder)


@contextlib.contextmanager
def engines(place: Place) -> Iterator[None]:
    started = [
        subprocess.Popen(
            pinned(
                0,
                place.folder / "mockd",
                "-p",
                port,
                "-n",
                f"r{index}",
                "-c",
                NUM_CHUNKS,
                "-g",
                GAP_MS,
                "-k",
                NUM_BLOCKS,
            )
        )
        for index, port in enumerate(place.engines)
    ]
    try:
        for port in place.engines:
            wait_for(port)
        yield
    finally:
        for process in started:
            process.terminate()
            process.wait()


def measure(place: Place, names: list[str], reps: int, seconds: float) -> Results:
    results: Results = {}
    for _ in range(reps):
        note(
            results,
            "direct",
            lambda body, count: load(place, place.engines[0], body, count, seconds),
        )
        for name in names:
            with gateway(name, place) as process:
                if process is None:
                    continue
                note(
                    results,
                    name,
                    lambda body, count, pid=process.pid: load(
                        place, place.gateway, body, count, seconds, pid
                    ),
                )
    for name, loads in results.items():
        for label, figures in loads.items():
            direct = results["direct"][label]
            figures["added_p50"] = figures["p50"] - direct["p50"]
            figures["added_p99"] = figures["p99"] - direct["p99"]
            figures["rps_ratio"] = figures["rps"] / direct["rps"]
            if name == "direct":
                figures["cpu"] = 0.0
    return results


def note(results: Results, name: str, ask: Callable[[str, int], dict[str, float]]) -> None:
    """Keep the best of each figure over the repetitions."""
    for label, (body, connections) in LOADS.items():
        one, some, many = (measured(ask, body, count) for count in (1, connections, 64))
        found = {
            "p50": one["lat_p50"],
            "p99": one["lat_p99"],
            "cpu": some["cpu_ms_per_req"],
            "rps": many["rps"],
            "failed": one["bad"] + some["bad"] + many["bad"] + many["connerr"],
        }
        best = results.setdefault(name, {}).setdefault(label, dict(found))
        for key, value in found.items():
            better = max if key in ("rps", "failed") else min
            best[key] = better(best[key], value)


def measured(
    ask: Callable[[str, int], dict[str, float]], body: str, count: int
) -> dict[str, float]:
    """Ask until requests were measured: on a machine that others use it may stand still."""
    for _ in range(5):
        found = ask(body, count)
        if found["ok"] > 0:
            return found
    raise SystemExit(f"no request was answered: {found}")


def load(
    place: Place, port: int, body: str, connections: int, seconds: float, pid: int = 0
) -> dict[str, float]:
    command = pinned(
        0, place.folder / "loadgen", "-u", f"127.0.0.1:{port}", "-b", place.folder / f"{body}.jsonl"
    )
    command += ["-c", str(connections), "-d", str(seconds), "-w", "0.5", "-k", KEY]
    if pid:
        command += ["-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


@contextlib.contextmanager
def gateway(name: str, place: Place) -> Iterator[subprocess.Popen[bytes] | None]:
    home = place.folder / f"run-{name}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    command = GATEWAYS[name](Setting(home, place.gateway, place.engines, place.peers))
    if command is None:
        print(f"{name} is not installed: left out", file=sys.stderr)
        yield None
        return
    with (home / "out.log").open("w") as log:
        environment = {**os.environ, KEY_VARIABLE: KEY}
        process = subprocess.Popen(pinned(1, *command), stdout=log, stderr=log, env=environment)
        try:
            wait_for(place.gateway)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def pinned(core: int, *command: object) -> list[str]:
    return ["taskset", "-c", str(core), *(str(part) for part in command)]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now, nor the one after each, which is headstart's own second.

    They are below those that the system gives to outgoing connections.
    """
    found: list[int] = []
    for port in random.sample(range(20_000, 30_000, 2), 200):
        if len(found) < count and is_free(port) and is_free(port + 1):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(port: int) -> None:
    """Wait until requests to `port` are answered with 200."""
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    deadline = time.monotonic() + 30
    while True:
        try:
            request = urllib.request.Request(url, body, headers)
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def table(results: Results) -> str:
    lines = [
        f"{'':20} {'load':10} {'cpu ms':>8} {'added p50':>10} {'p99':>7} {'rps@64':>8} ratio failed"
    ]
    for name, loads in results.items():
        for label, figures in loads.items():
            lines.append(
                f"{name:20} {label:10} {figures['cpu']:8.3f} {figures['added_p50']:10.2f} "
                f"{figures['added_p99']:7.2f} {figures['rps']:8.0f} {figures['rps_ratio']:5.2f} "
                f"{figures['failed']:6.0f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
