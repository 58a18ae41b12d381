"""What each policy makes of five workloads: hit ratio, balance and latency, in one run.

    python -m benchmarks.routing.run [--policies expected_ttft,prefix_hash,round_robin]
        [--workloads pairs,sessions,hot_prefix,tenants,capacity] [--seed 1] [--json]
        [--simulated]

Starts four mock engines, each with a cache of 4,000 blocks of 16 tokens and a prefill of 25 us an
uncached token, one at a time; before them `headstart serve` with one policy after the other; and
sends it the workloads of `workloads.py`. The engines' own counters give the hit ratio.

    hit       cached over all prompt tokens; in brackets what one endless cache would reach
    busiest   requests of the busiest replica over the mean
    p50, p99  milliseconds of an answer

`--simulated` leaves processes and time out and runs the same router over the same workloads in a
second or two (`simulated.py`). Needs a C compiler and Linux otherwise.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.routing.simulated import Outcome, prepared, simulate
from benchmarks.routing.workloads import Messages, Workload, body_of, ideal_hit_ratio, workloads
from headstart.prefix.config import PrefixConfig
from headstart.prefix.view import PrefixView
from headstart.routing.build import build_router
from headstart.routing.config import RoutingConfig

MOCK = Path(__file__).parent.parent / "overhead" / "mockd.c"
ENGINE_ARGUMENTS = ("-k", "4000", "-P", "25", "-t", "15")
POLICIES = "expected_ttft,prefix_hash,lmetric,sglang_cache_aware,least_loaded,round_robin"
NUM_ENGINES = 4
WAIT_S = 60.0

Results = dict[str, dict[str, Outcome]]
"""Outcomes by policy and workload."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--policies", default=POLICIES)
    options.add_argument("--workloads", default="")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--simulated", action="store_true")
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    chosen = [
        each for each in workloads(args.seed) if not args.workloads or each.name in args.workloads
    ]
    policies = args.policies.split(",")
    results = simulated(policies, chosen) if args.simulated else measured(policies, chosen)
    if args.json:
        print(
            json.dumps(
                {name: {w: asdict(o) for w, o in each.items()} for name, each in results.items()},
                indent=2,
            )
        )
    else:
        print(table(results, chosen))


def simulated(policies: Sequence[str], chosen: Sequence[Workload]) -> Results:
    results: Results = {}
    for workload in chosen:
        requests = prepared(workload)
        for name in policies:
            results.setdefault(name, {})[workload.name] = simulate(
                requests,
                workload.num_clients,
                lambda _, name=name: build_router(
                    RoutingConfig(policy=name), PrefixView(PrefixConfig())
                ),
            )
    return results


def measured(policies: Sequence[str], chosen: Sequence[Workload]) -> Results:
    with tempfile.TemporaryDirectory() as folder, engines(Path(folder)) as ports:
        results: Results = {}
        for name in policies:
            for workload in chosen:
                # A gateway of its own for each: what it learned of one must not serve the next.
                urls = [f"http://127.0.0.1:{each}" for each in ports]
                with serving(Path(folder), name, urls, "mock") as port:
                    for engine in ports:
                        ask(engine, "/reset", b"")
                    times = asyncio.run(drive(port, workload))
                    results.setdefault(name, {})[workload.name] = outcome(ports, times)
    return results


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[list[int]]:
    program = folder / "mockd"
    subprocess.run(["cc", "-O2", "-o", program, MOCK], check=True)
    ports = free_ports(NUM_ENGINES)
    started = [
        subprocess.Popen([program, "-p", str(port), "-n", f"r{index}", *ENGINE_ARGUMENTS])
        for index, port in enumerate(ports)
    ]
    try:
        for port in ports:
            wait_for(port, "/health")
        yield ports
    finally:
        for process in started:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def serving(folder: Path, policy: str, urls: Sequence[str], model: str) -> Iterator[int]:
    """Serve engines at `urls` by one policy; what is kept is below `folder`. Yields the port."""
    home = Path(tempfile.mkdtemp(dir=folder))
    port, admin = free_ports(2)
    command = [sys.executable, "-m", "headstart", "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--admin", f"127.0.0.1:{admin}", "--policy", policy]
    command += ["--model", model, "--data-dir", str(home), "--request-log", "off"]
    for url in urls:
        command += ["--engine", url]
    with (home / "out.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(port, "/v1/models")
        yield port
    except BaseException:
        sys.stderr.write((home / "out.log").read_text()[-2000:])
        raise
    finally:
        process.terminate()
        process.wait()


async def drive(port: int, workload: Workload) -> list[float]:
    """Send a workload; return how long each answer took, in seconds."""
    waiting, times = deque(workload.conversations), []

    async def client() -> None:
        while waiting:
            times.extend([await send(port, messages) for messages in waiting.popleft()])

    async with asyncio.TaskGroup() as group:
        for _ in range(workload.num_clients):
            group.create_task(client())
    return times


async def send(port: int, messages: Messages) -> float:
    body = body_of(messages)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()
    if answer[9:12] != b"200":
        raise SystemExit(f"a request failed: {answer[:200]!r}")
    return time.perf_counter() - began


def outcome(ports: Sequence[int], times: list[float]) -> Outcome:
    stats = [json.loads(ask(port, "/stats")) for port in ports]
    requests = tuple(each["requests"] for each in stats)
    times.sort()
    return Outcome(
        hit_ratio=sum(each["cached_tokens"] for each in stats)
        / sum(each["prompt_tokens"] for each in stats),
        busiest_share=max(requests) * len(ports) / sum(requests),
        p50_s=times[len(times) // 2],
        p99_s=times[int(len(times) * 0.99)],
        num_requests=requests,
    )


def table(results: Results, chosen: Sequence[Workload]) -> str:
    lines = []
    for workload in chosen:
        lines.append(
            f"\n{workload.name} [{ideal_hit_ratio(workload):.3f}]".ljust(32)
            + "hit  busiest     p50     p99"
        )
        for name, outcomes in results.items():
            each = outcomes[workload.name]
            lines.append(
                f"  {name:26} {each.hit_ratio:6.3f} {each.busiest_share:8.2f}"
                f" {each.p50_s * 1e3:7.1f} {each.p99_s * 1e3:7.1f}"
            )
    return "\n".join(lines)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for(port: int, path: str) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            ask(port, path)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def ask(port: int, path: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=5) as answer:
        return answer.read()


if __name__ == "__main__":
    main()
