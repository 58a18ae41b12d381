"""`headstart engine`: serve one model with the embedded engine, in this process."""

import asyncio
import os
import signal
import sys
import threading
from enum import StrEnum

import msgspec
import typer

from headstart.cli.errors import one_line_errors
from headstart.cli.model import DEFAULT_MODEL, resolve_model
from headstart.clock import SystemClock
from headstart.engines.embedded.kv_publisher import KvEventsConfig
from headstart.engines.embedded.settings import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_KV_TOKENS,
    EngineSettings,
    thread_environment,
)
from headstart.errors import ConfigError

DEFAULT_PORT = 8000


class Backend(StrEnum):
    """What computes: numpy in fp32, or torch in bf16."""

    NUMPY = "numpy"
    TORCH = "torch"


def engine(
    model: str = typer.Option(DEFAULT_MODEL, help="A known name, or the path of a GGUF file."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(DEFAULT_PORT, min=0, max=65535, help="0 takes a free one."),
    served_model_name: str = typer.Option("", help="What clients call the model."),
    backend: Backend = typer.Option(Backend.NUMPY, help="numpy fp32, or torch bf16."),
    kv_tokens: int = typer.Option(0, min=0, help=f"Pool size in tokens [{DEFAULT_KV_TOKENS}]."),
    num_blocks: int = typer.Option(0, min=0, help="Pool size in blocks, instead of --kv-tokens."),
    block_size: int = typer.Option(DEFAULT_BLOCK_SIZE, min=1, help="Tokens per KV block."),
    prefix_caching: bool = typer.Option(
        True, "--prefix-caching/--no-prefix-caching", help="Reuse KV between requests."
    ),
    threads: int = typer.Option(0, min=0, help="Threads of the linear algebra; 0: its default."),
    max_num_batched_tokens: int = typer.Option(512, min=1, help="Most tokens in one step."),
    max_num_seqs: int = typer.Option(32, min=1, help="Most sequences running at once."),
    kv_events_port: int = typer.Option(0, min=0, max=65535, help="Publish KV events here."),
    kv_replay_port: int = typer.Option(0, min=0, max=65535, help="Answer event replays here."),
    kv_events_endpoint: str = typer.Option("", help="ZMQ address, instead of --kv-events-port."),
    kv_replay_endpoint: str = typer.Option("", help="ZMQ address, instead of --kv-replay-port."),
    kv_events_topic: str = typer.Option("", help="First frame of every event message."),
    drain_s: float = typer.Option(30.0, min=0, help="How long open requests may end on SIGTERM."),
    exit_with_parent: bool = typer.Option(False, help="End when standard input closes."),
    ready_fd: int = typer.Option(-1, hidden=True, help="Write a JSON line here when listening."),
) -> None:
    """Serve one model on an OpenAI-compatible port until SIGTERM or Ctrl-C."""
    if threads:
        _ensure_threads(threads)
    with one_line_errors():
        resolved = resolve_model(model)
        settings = EngineSettings(
            model_path=resolved.path,
            model_name=served_model_name or resolved.name,
            host=host,
            port=port,
            backend=backend.value,
            block_size=block_size,
            num_blocks=_num_blocks(num_blocks, kv_tokens, block_size),
            enable_prefix_caching=prefix_caching,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            threads=threads or None,
            kv_events=_kv_events(
                kv_events_endpoint or _endpoint(host, kv_events_port),
                kv_replay_endpoint or _endpoint(host, kv_replay_port),
                kv_events_topic,
            ),
            drain_s=drain_s,
        )
        _serve(settings, exit_with_parent=exit_with_parent, ready_fd=ready_fd)


def _serve(settings: EngineSettings, *, exit_with_parent: bool, ready_fd: int) -> None:
    # Loaded here: numpy takes a quarter of a second, and no other command needs it.
    from headstart.engines.embedded.server import EngineServer

    server = EngineServer(settings, SystemClock())

    async def run() -> None:
        stop, hurry = asyncio.Event(), asyncio.Event()
        _stop_on_signals(stop, hurry)
        await server.start()
        if exit_with_parent:
            _stop_at_end_of_input(stop)
        _announce(settings, server.url, server.describe(), ready_fd)
        await stop.wait()
        await server.stop(hurry)

    asyncio.run(run())


def _stop_on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Drain on the first signal; end at once on the second."""

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def read() -> None:
        # os.read, not sys.stdin: a thread inside the buffered reader breaks interpreter exit.
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=read, name="parent-watch", daemon=True).start()


def _announce(
    settings: EngineSettings, url: str, description: dict[str, object], ready_fd: int
) -> None:
    tokens = settings.num_blocks * settings.block_size
    typer.echo(
        f"headstart engine: {url} serves {settings.model_name} ({settings.backend}, KV pool of "
        f"{tokens} tokens: {settings.num_blocks} blocks of {settings.block_size})"
    )
    sys.stdout.flush()
    if ready_fd >= 0:
        os.write(ready_fd, msgspec.json.encode(description) + b"\n")
        os.close(ready_fd)


def _num_blocks(num_blocks: int, kv_tokens: int, block_size: int) -> int:
    if num_blocks and kv_tokens:
        raise ConfigError("Give --num-blocks or --kv-tokens, not both.", param="--num-blocks")
    return num_blocks or -(-(kv_tokens or DEFAULT_KV_TOKENS) // block_size)


def _kv_events(endpoint: str, replay_endpoint: str, topic: str) -> KvEventsConfig | None:
    if not endpoint:
        if replay_endpoint:
            raise ConfigError(
                "A replay address needs --kv-events-port or --kv-events-endpoint.",
                param="--kv-replay-port",
            )
        return None
    return KvEventsConfig(endpoint, replay_endpoint or None, topic)


def _endpoint(host: str, port: int) -> str:
    return f"tcp://{host}:{port}" if port else ""


def _ensure_threads(threads: int) -> None:
    """Start again with the variables that numpy reads when it is loaded, unless they are set."""
    wanted = thread_environment(threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        command = [sys.executable, "-P", "-m", "headstart", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **wanted})  # noqa: S606


def register(app: typer.Typer) -> None:
    """Add the `engine` command to the command line."""
    app.command("engine")(engine)
