"""A real vLLM on CPU, as processes that a test may stop, freeze and kill."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import aiohttp

MODEL_NAME = "smol"
BLOCK_SIZE = 32

CHAT_TEMPLATE = Path(__file__).parents[2] / "examples" / "vllm" / "smollm2-tools.jinja"
"""SmolLM2's own template has no place for tools; this one has."""

_STOP_S = 30.0
_FATAL = (signal.SIGTERM, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


R = TypeVar("R", bound="VllmReplica")


class VllmReplica:
    """One engine; `start` again after it was killed keeps its port.

    It is an API server, which answers HTTP, and below it an engine core and a worker. They share a
    session of their own, by which they are found again even when their parent is gone.

    Args:
        home: virtual environment with vLLM, and beside it the model as `smol`.
        folder: for its log.
        core: the processor that it computes on.
        nickname: of its log.
        flags: further ones of `vllm serve`.

    Attributes:
        name: as the gateway calls it.
    """

    def __init__(self, home: Path, folder: Path, core: int, nickname: str, *flags: str) -> None:
        self.port = free_port()
        self.name = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.name}"
        self._home = home
        self._core = core
        self._flags = flags
        self._log = folder / f"vllm-{nickname}.log"
        self._process: subprocess.Popen | None = None
        self._num_workers = 0
        self._is_ending = False

    def is_whole(self) -> bool:
        """The server and all that it started are alive, and nothing was told to end."""
        assert self._process is not None
        is_alive = self._process.poll() is None and len(self.worker_pids()) == self._num_workers
        return is_alive and not self._is_ending

    def start(self) -> None:
        """Start it; it serves a minute later, see `wait_healthy`."""
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # One thread: with several, each waits by spinning for one that a neighbour displaces.
            "VLLM_CPU_OMP_THREADS_BIND": str(self._core),
        }
        # fmt: off
        command = [
            self._home / "VENV/bin/vllm", "serve", self._home / "smol",
            "--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(self.port),
            # A processor without bfloat16 instructions prefills six times as fast in float32.
            "--dtype", "float32",
            "--enforce-eager", "--max-model-len", "4096", "--block-size", str(BLOCK_SIZE),
            # Steps of a second or two, so that slow is not taken for frozen.
            "--max-num-batched-tokens", "256",
            "--enable-prefix-caching", "--enable-prompt-tokens-details",
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
            "--chat-template", CHAT_TEMPLATE, *self._flags,
        ]
        # fmt: on
        self._is_ending = False
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    async def wait_healthy(self, timeout_s: float = 300.0) -> None:
        """Return once it answers `/health`."""
        async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
            while True:
                assert self._process is not None
                assert self._process.poll() is None, self._log.read_text()[-2000:]
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{self.url}/health") as response:
                        if response.status == 200:
                            self._num_workers = len(self.worker_pids())
                            return
                await asyncio.sleep(0.5)

    @property
    def api_server_pid(self) -> int:
        """Process id of the HTTP server."""
        assert self._process is not None
        return self._process.pid

    def worker_pids(self) -> list[int]:
        """Process ids of everything that it started: engine core and workers."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _parent, _group, session = stat.read_text().rpartition(")")[2].split()[:4]
                if state != "Z" and int(session) == self.api_server_pid:
                    found.append(int(stat.parent.name))
        return [pid for pid in found if pid != self.api_server_pid]

    def signal_workers(self, number: signal.Signals) -> None:
        """Send a signal to the engine core and its workers, not to the HTTP server."""
        self._is_ending |= number in _FATAL
        for pid in self.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def signal_api_server(self, number: signal.Signals) -> None:
        """Send a signal to the HTTP server alone."""
        self._is_ending |= number in _FATAL
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """End every process of it.

        By their ids, until none is left: a core that outlives its server would keep the port.
        """
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + _STOP_S
        while self.worker_pids():
            assert time.monotonic() < deadline, self.worker_pids()
            self.signal_workers(signal.SIGKILL)
            time.sleep(0.05)

    async def metric(self, name: str) -> float:
        """Return the sum of a metric's series."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as page:
            lines = (await page.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def all_healthy(engines: Sequence[VllmReplica]) -> None:
    """Return once all of them answer `/health`."""
    await asyncio.gather(*(engine.wait_healthy() for engine in engines))


@contextlib.contextmanager
def running(engines: Sequence[R]) -> Iterator[Sequence[R]]:
    """Start engines side by side; yields them once they serve, and stops them in the end."""
    try:
        for engine in engines:
            engine.start()
        asyncio.run(all_healthy(engines))
        yield engines
    finally:
        for engine in engines:
            engine.stop()
