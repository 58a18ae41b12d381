"""How each gateway of the comparison is started in front of the mock engines.

A peer is found in its own virtual environment, `PEERS/NAME/bin/`, or on PATH; one that is not
installed is left out. Every one runs in a folder of its own with nothing switched on that it does
not need to pass requests on, and headstart with everything on.
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

KEY_VARIABLE = "OVERHEAD_KEY"
_TEMPLATES = Path(__file__).parent.parent.parent / "examples" / "templates"


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a gateway is to listen and what it fronts.

    Attributes:
        home: folder for its files, empty.
        port: to listen on, at 127.0.0.1.
        engines: ports of the engines.
        peers: folder of virtual environments; None looks on PATH only.
    """

    home: Path
    port: int
    engines: tuple[int, ...]
    peers: Path | None = None

    def urls(self) -> list[str]:
        """Return the engines' URLs."""
        return [f"http://127.0.0.1:{port}" for port in self.engines]

    def program(self, name: str) -> str | None:
        """Return the path of an installed program; None if there is none."""
        if self.peers is not None and (found := shutil.which(self.peers / name / "bin" / name)):
            return found
        return shutil.which(name) or shutil.which(f"/usr/sbin/{name}")


Command = list[object]


def headstart(setting: Setting, policy: str = "expected_ttft") -> Command:
    """Return the command of headstart with everything on."""
    home = setting.home
    engines = "".join(
        f"  - {{name: r{index}, url: '{url}', models: [mock]}}\n"
        for index, url in enumerate(setting.urls())
    )
    (home / "headstart.yaml").write_text(
        f"listen: 127.0.0.1:{setting.port}\ndata_dir: {home}\ntemplates: {_TEMPLATES}\n"
        f"request_log: {home / 'requests.jsonl'}\nengines:\n{engines}"
        f"tenants:\n  - {{name: acme, key_env: {KEY_VARIABLE}, business_line: support}}\n"
        f"routing: {{policy: {policy}}}\n"
    )
    return [sys.executable, "-m", "headstart", "serve", "--config", home / "headstart.yaml"]


def nginx(setting: Setting) -> Command | None:
    """Return the command of nginx as a plain reverse proxy."""
    program, home = setting.program("nginx"), setting.home
    servers = " ".join(f"server 127.0.0.1:{port};" for port in setting.engines)
    temporary = " ".join(
        f"{kind}_temp_path {home}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (home / "nginx.conf").write_text(
        f"worker_processes 1; daemon off; master_process off; pid {home}/pid;\n"
        "events { worker_connections 4096; }\n"
        f"http {{ access_log off; {temporary} keepalive_requests 1000000;\n"
        f"upstream engines {{ {servers} keepalive 256; keepalive_requests 1000000; }}\n"
        f"server {{ listen 127.0.0.1:{setting.port} backlog=1024; client_body_buffer_size 256k;\n"
        "location / { proxy_pass http://engines; proxy_http_version 1.1; proxy_buffering off;\n"
        'proxy_set_header Connection ""; } } }\n'
    )
    if program is None:
        return None
    return [program, "-p", home, "-c", home / "nginx.conf", "-e", home / "error.log"]


def _rust_router(name: str, policy: str, *arguments: str) -> Callable[[Setting], Command | None]:
    def command(setting: Setting) -> Command | None:
        program = setting.program(name)
        if program is None:
            return None
        where: Command = ["--host", "127.0.0.1", "--port", setting.port]
        metrics: Command = ["--prometheus-port", setting.port + 1000]
        fleet: Command = ["--worker-urls", *setting.urls(), "--policy", policy]
        return [program, *arguments, *where, *metrics, *fleet]

    return command


GATEWAYS: dict[str, Callable[[Setting], Command | None]] = {
    "nginx": nginx,
    "vllm-router": _rust_router("vllm-router", "round_robin", "--log-level", "warning"),
    "vllm-router-prefix": _rust_router("vllm-router", "cache_aware", "--log-level", "warning"),
    "sglang-router": _rust_router("sglang-router", "round_robin", "launch", "--log-level", "warn"),
    "sglang-router-prefix": _rust_router(
        "sglang-router", "cache_aware", "launch", "--log-level", "warn"
    ),
    "headstart": headstart,
    "headstart-hash": partial(headstart, policy="prefix_hash"),
}
"""Commands by the name that `run.py --gateways` takes; None means that it is not installed."""
