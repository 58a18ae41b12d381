"""`headstart serve`: the gateway in this process, in front of engines or of its own replica."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import typer

from headstart import __version__
from headstart.cli import options
from headstart.cli.errors import one_line_errors
from headstart.config.load import LoadedConfig
from headstart.config.schema import HeadstartConfig
from headstart.errors import UpstreamUnavailable

if TYPE_CHECKING:
    from headstart.cli.service import Service
    from headstart.engines.embedded.settings import EngineSettings

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while the event loop waits for it. The standard 5 ms
would show in the data path's 99th percentile whenever records are written."""

_FORCED = 1
"""Exit status after a second signal: open requests were cut off."""


def serve(
    config: options.ConfigOption = None,
    engine: options.EngineOption = None,
    model: options.ModelOption = None,
    policy: options.PolicyOption = None,
    host: options.HostOption = None,
    port: options.PortOption = None,
    admin: options.AdminOption = None,
    data_dir: options.DataDirOption = None,
    templates: options.TemplatesOption = None,
    request_log: options.RequestLogOption = None,
    drain_s: options.DrainOption = None,
) -> None:
    """Serve the gateway until SIGTERM or Ctrl-C; with no engine named, starts one of its own.

    Flags win over HEADSTART_… variables, these over headstart.yaml: see `headstart config explain`.
    """
    with one_line_errors():
        loaded = options.load(
            config=config,
            engine=engine,
            model=model,
            policy=policy,
            host=host,
            port=port,
            admin=admin,
            data_dir=data_dir,
            templates=templates,
            request_log=request_log,
            drain_s=drain_s,
        )
        status = run(loaded)
    raise typer.Exit(status)


def run(loaded: LoadedConfig) -> int:
    """Serve until a signal; returns the exit status.

    Raises:
        HeadstartError: it cannot start, or its embedded replica ended.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="headstart: %(message)s")
    for warning in loaded.warnings:
        logging.getLogger(__name__).warning("%s", warning)
    embedded = None if loaded.config.engines else embedded_settings(loaded.config)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return run_on_uvloop(_serve(loaded.config, embedded))


def embedded_settings(config: HeadstartConfig) -> "EngineSettings":
    """Return how to start the embedded replica; fetches its model if it is absent.

    Raises:
        ModelUnavailable: there is no such model, or it cannot be fetched.
    """
    # Loaded here: whoever fronts other engines needs neither the fetcher nor its progress bar.
    from headstart.cli.model import resolve_model
    from headstart.engines.embedded.settings import EngineSettings

    resolved = resolve_model(config.embedded.model)
    return EngineSettings(
        model_path=resolved.path,
        model_name=resolved.name,
        backend=config.embedded.backend,
        num_blocks=config.embedded.num_blocks,
        drain_s=config.drain_s,
    )


def run_on_uvloop(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` on an event loop of uvloop; returns its result."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(config: HeadstartConfig, embedded: "EngineSettings | None") -> int:
    from headstart.cli.service import running_service

    stop, hurry = asyncio.Event(), asyncio.Event()
    _on_signals(stop, hurry)
    if embedded is not None:
        _say(f"headstart: loading {embedded.model_name} into an embedded replica")
    async with contextlib.AsyncExitStack() as stack:
        start = asyncio.ensure_future(stack.enter_async_context(running_service(config, embedded)))
        if not await _first(start, stop):
            start.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await start
            return 0
        service = start.result()
        _announce(service, config)
        await _wait(service, stop)
        if not await _drain(service, hurry):
            return _FORCED
    _say("headstart: all requests are answered and recorded")
    return 0


def _on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Drain on the first signal; cut off what is open on the second."""

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


async def _first(work: "asyncio.Future[Any]", event: asyncio.Event) -> bool:
    """Return True once `work` is done, False if the event comes before."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return work.done()


async def _wait(service: "Service", stop: asyncio.Event) -> None:
    """Wait for the signal to stop.

    Raises:
        UpstreamUnavailable: the embedded replica ended by itself.
    """
    if service.embedded is None:
        await stop.wait()
        return
    ended = asyncio.ensure_future(service.embedded.wait())
    if await _first(ended, stop) and not stop.is_set():
        lines = " / ".join(service.embedded.last_lines()) or "nothing"
        raise UpstreamUnavailable(
            f"the embedded replica ended with status {ended.result()}; it said: {lines}"
        )
    ended.cancel()


async def _drain(service: "Service", hurry: asyncio.Event) -> bool:
    """Let open requests finish; False if a second signal came first."""
    num_open = service.gateway.num_open_requests
    if num_open:
        _say(f"headstart: {num_open} open requests finish; once more to cut them off")
    drain = asyncio.ensure_future(service.gateway.drain())
    if await _first(drain, hurry):
        drain.result()
        return True
    drain.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await drain
    return False


def _announce(service: "Service", config: HeadstartConfig) -> None:
    from headstart.accounting.store import STORE_FILE

    base = f"http://{service.listen}"
    _say(typer.style(f"headstart {__version__} listens on {base}", bold=True))
    for replica in service.gateway.replicas():
        state = f"serves {', '.join(replica.models)}" if replica.is_available else replica.reason
        _say_row("replica", f"{replica.name}: {replica.url} {state}")
    _say_row("routing", config.routing.policy)
    names = ", ".join(tenant.name for tenant in config.tenants)
    _say_row("tenants", names or "none: anyone who reaches the port may use it")
    if config.templates is not None:
        _say_row("templates", f"{service.num_templates} in {config.templates}")
    _say_row("metrics", f"http://{service.admin}/metrics")
    _say_row("records", str(config.data_dir / STORE_FILE))
    _say_row("log", "standard output" if config.request_log == "-" else str(config.request_log))
    _say("Try:\n  " + _example(service, has_tenants=bool(config.tenants)))


def _example(service: "Service", *, has_tenants: bool) -> str:
    is_wildcard = service.listen.host in ("0.0.0.0", "::")  # noqa: S104 -- compared, not bound
    base = f"http://localhost:{service.listen.port}" if is_wildcard else f"http://{service.listen}"
    models = [model for replica in service.gateway.replicas() for model in replica.models]
    model = models[0] if models else "MODEL"
    key = "-H 'authorization: Bearer KEY' " if has_tenants else ""
    return (
        f"curl {base}/v1/chat/completions {key}-H 'content-type: application/json' "
        f'-d \'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}\''
    )


def _say_row(label: str, text: str) -> None:
    _say(f"  {label:<10}{text}")


def _say(text: str) -> None:
    # To standard error: standard output is the request log's, and nothing else may be among it.
    typer.echo(text, err=True)


def register(app: typer.Typer) -> None:
    """Add `serve` to the command line."""
    app.command()(serve)
