"""`headstart serve`: the gateway, in front of engines or of its own replica.

It runs in this process, or in several workers under this one: `_service` chooses, and the rest is
the same for both.
"""

import asyncio
import contextlib
import logging
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import typer

from headstart.cli import options
from headstart.cli.announce import announce, say
from headstart.cli.errors import one_line_errors
from headstart.cli.lifecycle import (
    configure_process,
    first,
    on_signals,
    run_on_uvloop,
    settle_memory,
)
from headstart.config.load import LoadedConfig
from headstart.config.schema import HeadstartConfig
from headstart.errors import UpstreamUnavailable

if TYPE_CHECKING:
    from headstart.cli.service import Service
    from headstart.cli.workers.supervisor import WorkersService
    from headstart.engines.embedded.settings import EngineSettings

_INCOMPLETE = 1
"""Exit status after a second signal, or if a worker was lost: open requests were cut off."""


def serve(
    config: options.ConfigOption = None,
    engine: options.EngineOption = None,
    model: options.ModelOption = None,
    policy: options.PolicyOption = None,
    host: options.HostOption = None,
    port: options.PortOption = None,
    admin: options.AdminOption = None,
    workers: options.WorkersOption = None,
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
            workers=workers,
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
    configure_process()
    for warning in loaded.warnings:
        logging.getLogger(__name__).warning("%s", warning)
    has_replicas = loaded.config.engines or loaded.config.sources
    embedded = None if has_replicas else embedded_settings(loaded.config)
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


async def _serve(config: HeadstartConfig, embedded: "EngineSettings | None") -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    on_signals(stop, hurry)
    if embedded is not None:
        say(f"headstart: loading {embedded.model_name} into an embedded replica")
    async with contextlib.AsyncExitStack() as stack:
        start = asyncio.ensure_future(stack.enter_async_context(_service(config, embedded)))
        if not await first(start, stop):
            start.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await start
            return 0
        service = start.result()
        announce(service, await service.status(), config)
        settle_memory()
        await _wait(service, stop)
        if not await _drain(service, hurry):
            return _INCOMPLETE
    say("headstart: all requests are answered and recorded")
    return 0


def _service(
    config: HeadstartConfig, embedded: "EngineSettings | None"
) -> "AbstractAsyncContextManager[Service | WorkersService]":
    if config.workers == 1:
        from headstart.cli.service import running_service

        return running_service(config, embedded)
    from headstart.cli.workers.supervisor import running_workers

    return running_workers(config, embedded)


async def _wait(service: "Service | WorkersService", stop: asyncio.Event) -> None:
    """Wait for the signal to stop.

    Raises:
        UpstreamUnavailable: the embedded replica ended by itself.
    """
    if service.embedded is None:
        await stop.wait()
        return
    ended = asyncio.ensure_future(service.embedded.wait())
    if await first(ended, stop) and not stop.is_set():
        lines = " / ".join(service.embedded.last_lines()) or "nothing"
        raise UpstreamUnavailable(
            f"the embedded replica ended with status {ended.result()}; it said: {lines}"
        )
    ended.cancel()


async def _drain(service: "Service | WorkersService", hurry: asyncio.Event) -> bool:
    """Let open requests finish; False if a second signal came first, or some were lost."""
    num_open = (await service.status()).num_open_requests
    if num_open:
        say(f"headstart: {num_open} open requests finish; once more to cut them off")
    drain = asyncio.ensure_future(service.drain())
    if await first(drain, hurry):
        return drain.result()
    drain.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await drain
    return False


def register(app: typer.Typer) -> None:
    """Add `serve` to the command line."""
    app.command()(serve)
