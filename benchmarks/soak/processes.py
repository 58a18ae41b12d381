"""The processes of a run: engines, which are killed and stopped, and the gateway."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.soak.engine import HOST, MODEL

ROOT = Path(__file__).resolve().parents[2]
TENANTS = ("acme", "globex", "initech")
NUM_ENGINES = 3
_START_S = 60.0


def key_of(tenant: str) -> str:
    """Return a tenant's key."""
    return f"sk-soak-{tenant}"


def pinned(cores: str, *command: object) -> list[str]:
    """Return a command that runs on `cores` (as taskset has them), or anywhere if empty."""
    words = [str(part) for part in command]
    return ["taskset", "-c", cores, *words] if cores else words


def free_ports(num: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(num)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


class EngineProcesses:
    """The mock engines; `faults.Engines` by form.

    Args:
        ports: one each.
        cores: where they run.
    """

    def __init__(self, ports: list[int], cores: str) -> None:
        self.ports = ports
        self._cores = cores
        self._running: list[subprocess.Popen[bytes] | None] = [None] * len(ports)
        self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def start_all(self) -> None:
        """Start every engine and wait until they listen."""
        for index in range(len(self.ports)):
            self.start(index)
        deadline = time.monotonic() + _START_S
        for port in self.ports:
            while not _listens(port):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"The mock engine on port {port} does not start.")
                time.sleep(0.05)

    def start(self, index: int) -> None:
        """Start an engine."""
        command = pinned(
            self._cores, sys.executable, "-m", "benchmarks.soak.engine", self.ports[index]
        )
        self._running[index] = subprocess.Popen(command, cwd=ROOT)

    def kill(self, index: int) -> None:
        """Kill an engine."""
        process = self._running[index]
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self, index: int) -> None:
        """Stop an engine where it is."""
        self._signal(index, signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        """Let it go on."""
        self._signal(index, signal.SIGCONT)

    def order(self, index: int, fault: str, share: float) -> None:
        """Make a share of its answers fail."""
        self._control.sendto(f"{fault} {share}".encode(), (HOST, self.ports[index]))

    def close(self) -> None:
        """Kill all of them."""
        for index in range(len(self._running)):
            self.kill(index)
        self._control.close()

    def _signal(self, index: int, number: int) -> None:
        process = self._running[index]
        if process is not None and process.poll() is None:
            process.send_signal(number)


class GatewayProcess:
    """`headstart serve`, with everything on.

    Args:
        folder: for configuration, records and logs.
        engines: ports.
        workers: processes of the gateway.
        cores: where it runs.
    """

    def __init__(self, folder: Path, engines: list[int], workers: int, cores: str) -> None:
        self.folder = folder
        self.port, self.admin_port = free_ports(2)
        (folder / "headstart.yaml").write_text(self._configuration(engines), encoding="utf-8")
        command = pinned(cores, sys.executable, "-m", "headstart", "serve")
        command += ["--config", str(folder / "headstart.yaml"), "--workers", str(workers)]
        keys = {f"SOAK_{tenant.upper()}": key_of(tenant) for tenant in TENANTS}
        self._log = (folder / "gateway.log").open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            command, env={**os.environ, **keys}, stdout=self._log, stderr=self._log, cwd=folder
        )
        self._wait_for_readiness()

    @property
    def is_running(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    @property
    def database(self) -> Path:
        """Where its records are."""
        return self.folder / "headstart.db"

    def metrics(self) -> str:
        """Return what `/metrics` says now."""
        url = f"http://{HOST}:{self.admin_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            text: str = response.read().decode()
        return text

    def stop(self) -> int:
        """Tell it to end, as a service manager does; return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._log.close()
        return status

    def _configuration(self, engines: list[int]) -> str:
        """Write YAML; JSON is YAML."""
        return json.dumps(
            {
                "listen": f"{HOST}:{self.port}",
                "admin": f"{HOST}:{self.admin_port}",
                "data_dir": str(self.folder),
                "templates": str(ROOT / "examples" / "templates"),
                "request_log": str(self.folder / "requests.jsonl"),
                "engines": [
                    {
                        "name": f"r{index}",
                        "url": f"http://{HOST}:{port}",
                        "models": [MODEL],
                        # Small, so that the index is full within a minute and evicts from then on.
                        "kv_capacity_tokens": 40_000,
                    }
                    for index, port in enumerate(engines)
                ],
                "tenants": [
                    {
                        "name": tenant,
                        "key_env": f"SOAK_{tenant.upper()}",
                        "business_line": "soak",
                        "limits": {
                            "concurrent": 10_000,
                            "requests_per_minute": 10_000_000,
                            "input_tokens_per_minute": 10_000_000_000,
                        },
                    }
                    for tenant in TENANTS
                ],
                "queue": {"max_in_flight": 1000},
                # Short, so that silence ends within the run.
                "upstream": {"connect_s": 2, "first_byte_s": 10, "between_chunks_s": 10},
                "drain_s": 20,
            },
            indent=1,
        )

    def _wait_for_readiness(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{HOST}:{self.port}/ready", timeout=5):
                    return
            except OSError:
                if time.monotonic() > deadline or not self.is_running:
                    raise
                time.sleep(0.1)
