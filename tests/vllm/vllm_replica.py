"""A real vLLM on one CPU core, as a process that a test may stop, freeze and kill."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import aiohttp

MODEL_NAME = "smol"

CHAT_TEMPLATE = r"""
{%- if messages[0].role == 'system' %}
  {%- set system = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}
  {%- set system = 'You are a helpful assistant.' %}{%- set rest = messages %}
{%- endif %}
{{- '<|im_start|>system\n' + system }}
{%- if tools %}
  {{- '\n\nFunctions:' }}
  {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
  {{- '\nTo call one: <tool_call>{"name": ..., "arguments": {...}}</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in rest %}
  {{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\n' }}
  {{- message.content or '' }}
  {%- for call in message.tool_calls or [] %}
    {{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
  {%- endfor %}
  {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
"""SmolLM2's own template has no place for tools; this one has."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class VllmReplica:
    """One engine; `start` again after it was killed keeps its port.

    Args:
        home: virtual environment with vLLM, and beside it the model as `smol`.
        folder: for its chat template and log.
        core: the CPU core it computes on.
    """

    def __init__(self, home: Path, folder: Path, core: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._home = home
        self._core = core
        self._log = folder / f"vllm-{core}.log"
        self._template = folder / "tools.jinja"
        self._template.write_text(CHAT_TEMPLATE)
        self._process: subprocess.Popen | None = None
        self._num_workers = 0

    def is_whole(self) -> bool:
        """The server and all that it started are alive."""
        assert self._process is not None
        return self._process.poll() is None and len(self.worker_pids()) == self._num_workers

    def start(self) -> None:
        """Start it; it serves a minute later, see `wait_healthy`."""
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str(self._core),
        }
        # fmt: off
        command = [
            self._home / "VENV/bin/vllm", "serve", self._home / "smol",
            "--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(self.port),
            "--enforce-eager", "--max-model-len", "4096", "--block-size", "32",
            "--enable-prefix-caching", "--enable-prompt-tokens-details",
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
            "--chat-template", self._template,
        ]
        # fmt: on
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
        found, todo = [], [self.api_server_pid]
        while todo:
            pid = todo.pop()
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                found += children
                todo += children
        return found

    def signal_workers(self, number: signal.Signals) -> None:
        """Send a signal to the engine core and its workers, not to the HTTP server."""
        for pid in self.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def signal_api_server(self, number: signal.Signals) -> None:
        """Send a signal to the HTTP server alone."""
        os.kill(self.api_server_pid, number)

    def stop(self) -> None:
        """End the whole process group that `start` made."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    async def metric(self, name: str) -> float:
        """Return the sum of a metric's series."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as page:
            lines = (await page.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
