"""What a request costs in headstart, against no gateway at all and against nginx.

    python benchmarks/overhead/run.py [--reps 3] [--seconds 3] [--gateways headstart,nginx] [--json]

Core 0 runs two mock engines and the load generator, core 1 the gateway. headstart runs with
everything on: tenants with keys, a template folder, prefix hashing and routing, timings, usage,
metrics, records and the request log. Figures are the best of the repetitions of one run:

    cpu     CPU milliseconds of the gateway per request, 16 connections (streams: 64)
    added   latency added at one connection, p50 and p99, milliseconds
    rps     requests per second at 64 connections, and as a ratio to the engine alone

Needs a C compiler and Linux; nginx is left out where it is not installed.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from bodies import write_bodies

HERE = Path(__file__).parent
KEY = "sk-overhead-benchmark"
PORTS = (9601, 9602)
GATEWAY_PORT = 8600
NUM_CHUNKS, GAP_MS = 20, 2

# name: (bodies, connections of the CPU figure)
LOADS = {
    "0.8 KB": ("small_plain", 16),
    "32 KB": ("large_plain", 16),
    "32 KB SSE": ("large_stream", 64),
}


Results = dict[str, dict[str, dict[str, float]]]
"""Figures by gateway, load and name."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--reps", type=int, default=3)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--gateways", default="nginx,headstart")
    options.add_argument("--json", action="store_true")
    options.add_argument("--build", type=Path, help="folder for binaries and bodies, kept")
    args = options.parse_args()
    with contextlib.ExitStack() as stack:
        folder = args.build or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        build(folder)
        stack.enter_context(engines(folder))
        results = measure(folder, args.gateways.split(","), args.reps, args.seconds)
    print(json.dumps(results, indent=2) if args.json else table(results))


def build(folder: Path) -> None:
    for name in ("mockd", "loadgen"):
        source = HERE / f"{name}.c"
        subprocess.run(["cc", "-O2", "-o", folder / name, source, "-lm"], check=True)
    write_bodies(folder)


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[None]:
    started = [
        subprocess.Popen(
            pinned(
                0, folder / "mockd", "-p", port, "-n", f"r{index}", "-c", NUM_CHUNKS, "-g", GAP_MS
            )
        )
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


def measure(folder: Path, names: list[str], reps: int, seconds: float) -> Results:
    results: Results = {}
    for _ in range(reps):
        note(results, "direct", lambda body, count: load(folder, PORTS[0], body, count, seconds))
        for name in names:
            with gateway(name, folder) as process:
                if process is None:
                    continue
                note(
                    results,
                    name,
                    lambda body, count, pid=process.pid: load(
                        folder, GATEWAY_PORT, body, count, seconds, pid
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
        one, some, many = ask(body, 1), ask(body, connections), ask(body, 64)
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


def load(
    folder: Path, port: int, body: str, connections: int, seconds: float, pid: int = 0
) -> dict[str, float]:
    command = pinned(
        0, folder / "loadgen", "-u", f"127.0.0.1:{port}", "-b", folder / f"{body}.jsonl"
    )
    command += ["-c", str(connections), "-d", str(seconds), "-w", "0.5", "-k", KEY]
    if pid:
        command += ["-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


@contextlib.contextmanager
def gateway(name: str, folder: Path) -> Iterator[subprocess.Popen | None]:
    home = folder / f"run-{name}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    command = {"headstart": headstart, "nginx": nginx}[name](home)
    if command is None:
        print(f"{name} is not installed: left out", file=sys.stderr)
        yield None
        return
    with (home / "out.log").open("w") as log:
        environment = {**os.environ, "OVERHEAD_KEY": KEY}
        process = subprocess.Popen(pinned(1, *command), stdout=log, stderr=log, env=environment)
        try:
            wait_for(GATEWAY_PORT)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def headstart(home: Path) -> list[object]:
    engines_yaml = "".join(
        f"  - {{name: r{index}, url: 'http://127.0.0.1:{port}', models: [mock]}}\n"
        for index, port in enumerate(PORTS)
    )
    examples = HERE.parent.parent / "examples" / "templates"
    (home / "headstart.yaml").write_text(
        f"listen: 127.0.0.1:{GATEWAY_PORT}\ndata_dir: {home}\ntemplates: {examples}\n"
        f"request_log: {home / 'requests.jsonl'}\nengines:\n{engines_yaml}"
        "tenants:\n  - {name: acme, key_env: OVERHEAD_KEY, business_line: support}\n"
        "routing: {policy: prefix_hash}\n"
    )
    return [sys.executable, "-m", "headstart", "serve", "--config", home / "headstart.yaml"]


def nginx(home: Path) -> list[object] | None:
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    servers = " ".join(f"server 127.0.0.1:{port};" for port in PORTS)
    temporary = " ".join(
        f"{kind}_temp_path {home}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (home / "nginx.conf").write_text(
        f"worker_processes 1; daemon off; master_process off; pid {home}/pid;\n"
        "events { worker_connections 4096; }\n"
        f"http {{ access_log off; {temporary} keepalive_requests 1000000;\n"
        f"upstream engines {{ {servers} keepalive 256; keepalive_requests 1000000; }}\n"
        f"server {{ listen 127.0.0.1:{GATEWAY_PORT} backlog=1024; client_body_buffer_size 256k;\n"
        "location / { proxy_pass http://engines; proxy_http_version 1.1; proxy_buffering off;\n"
        'proxy_set_header Connection ""; } } }\n'
    )
    return (
        [program, "-p", home, "-c", home / "nginx.conf", "-e", home / "error.log"]
        if program
        else None
    )


def pinned(core: int, *command: object) -> list[str]:
    return ["taskset", "-c", str(core), *(str(part) for part in command)]


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
        f"{'':10} {'load':10} {'cpu ms':>8} {'added p50':>10} {'p99':>7} {'rps@64':>8} ratio failed"
    ]
    for name, loads in results.items():
        for label, figures in loads.items():
            lines.append(
                f"{name:10} {label:10} {figures['cpu']:8.3f} {figures['added_p50']:10.2f} "
                f"{figures['added_p99']:7.2f} {figures['rps']:8.0f} {figures['rps_ratio']:5.2f} "
                f"{figures['failed']:6.0f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
