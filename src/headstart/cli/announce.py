"""What `headstart serve` says on standard error once it serves."""

from typing import Protocol

import typer

from headstart import __version__
from headstart.accounting.store import STORE_FILE
from headstart.config.address import Address
from headstart.config.schema import HeadstartConfig
from headstart.gateway.state import GatewayStatus, ReplicaStatus

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 -- compared, not bound


class Listening(Protocol):
    """Where a gateway can be reached."""

    @property
    def listen(self) -> Address:
        """Bound data port."""
        ...

    @property
    def admin(self) -> Address:
        """Bound admin port."""
        ...

    @property
    def num_templates(self) -> int:
        """Loaded ones."""
        ...


def announce(service: Listening, status: GatewayStatus, config: HeadstartConfig) -> None:
    """Say where it listens, what it fronts, where records go, and what to try."""
    scheme = "http" if config.tls.cert_file is None else "https"
    say(typer.style(f"headstart {__version__} listens on {scheme}://{service.listen}", bold=True))
    for replica in status.replicas:
        serves = f"serves {', '.join(replica.models)}" if replica.is_available else replica.reason
        _say_row("replica", f"{replica.name}: {replica.url} {serves}")
    _say_row("routing", config.routing.policy)
    if config.workers > 1:
        _say_row("workers", str(config.workers))
    names = ", ".join(tenant.name for tenant in config.tenants)
    _say_row("tenants", names or "none: anyone who reaches the port may use it")
    if config.templates is not None:
        _say_row("templates", f"{service.num_templates} in {config.templates}")
    _say_row("metrics", _metrics_hint(service.admin, needs_key=config.admin_key is not None))
    _say_row("records", str(config.data_dir / STORE_FILE))
    _say_row("log", "standard output" if config.request_log == "-" else str(config.request_log))
    base = f"{scheme}://{_reachable(service.listen, has_certificate=scheme == 'https')}"
    say("Try:\n  " + _example(base, status.replicas, has_tenants=bool(config.tenants)))


def _metrics_hint(admin: Address, *, needs_key: bool) -> str:
    hint = f"http://{_reachable(admin)}/metrics"
    if admin.host in _WILDCARDS:
        hint += f", on every address of this machine, port {admin.port}"
    return f"{hint} (with its key)" if needs_key else hint


def _reachable(address: Address, *, has_certificate: bool = False) -> Address:
    """Return an address to connect to: nobody can connect to 0.0.0.0 everywhere.

    A certificate is for a name, and `localhost` is the likeliest that leads here.
    """
    if address.host in _WILDCARDS or (has_certificate and address.is_loopback):
        return Address("localhost", address.port)
    return address


def _example(base: str, replicas: tuple[ReplicaStatus, ...], *, has_tenants: bool) -> str:
    models = [model for replica in replicas for model in replica.models]
    model = models[0] if models else "MODEL"
    key = "-H 'authorization: Bearer KEY' " if has_tenants else ""
    return (
        f"curl {base}/v1/chat/completions {key}-H 'content-type: application/json' "
        f'-d \'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}\''
    )


def _say_row(label: str, text: str) -> None:
    say(f"  {label:<10}{text}")


def say(text: str) -> None:
    """Write a line for people."""
    # To standard error: standard output is the request log's, and nothing else may be among it.
    typer.echo(text, err=True)
