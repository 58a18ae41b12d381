"""The embedded engine's HTTP server: one engine, one aiohttp application, one life cycle.

Start: load the weights, start the engine's thread and the event publisher, listen. Stop: refuse
new requests, let open ones finish within `drain_s`, then abort them, stop the engine, close.
"""

import asyncio
import contextlib
import os

from aiohttp import web

from headstart.clock import Clock
from headstart.engines.embedded.api.chat import chat_completions
from headstart.engines.embedded.api.completions import completions
from headstart.engines.embedded.api.context import CONTEXT, ApiContext, RequestGate
from headstart.engines.embedded.api.errors import error_middleware
from headstart.engines.embedded.api.service import (
    detokenize,
    health,
    kv_event_sources,
    metrics,
    models,
    reset_prefix_cache,
    tokenize,
    version,
)
from headstart.engines.embedded.engine import EmbeddedEngine, EngineConfig
from headstart.engines.embedded.kv_publisher import KvEventPublisher
from headstart.engines.embedded.metrics import CacheFacts, EngineMetrics
from headstart.engines.embedded.settings import EngineSettings
from headstart.errors import ConfigError
from headstart.prompt.chat_template import ChatTemplate
from headstart.types import JsonObject

MAX_BODY_BYTES = 32 * 1024 * 1024

_CLOSE_S = 2.0
"""How long aiohttp may take to close connections once nothing is open."""


class EngineServer:
    """One engine behind HTTP.

    Args:
        settings: what to load and where to listen. Constructing loads the weights (seconds).
        clock: its monotonic reading must be `time.monotonic`, the engine's.

    Raises:
        ModelUnavailable: the file cannot be read.
    """

    def __init__(self, settings: EngineSettings, clock: Clock) -> None:
        self._settings = settings
        self.engine = EmbeddedEngine(
            EngineConfig(
                model_path=settings.model_path,
                model_name=settings.model_name,
                backend=settings.backend,
                block_size=settings.block_size,
                num_blocks=settings.num_blocks,
                max_num_batched_tokens=settings.max_num_batched_tokens,
                max_num_seqs=settings.max_num_seqs,
                enable_prefix_caching=settings.enable_prefix_caching,
                threads=settings.threads,
            )
        )
        self._clock = clock
        self._publisher = (
            KvEventPublisher(settings.kv_events, clock) if settings.kv_events else None
        )
        self._gate = RequestGate()
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Return the base URL; empty until started."""
        return self._url

    def describe(self) -> JsonObject:
        """Return what a parent process needs to know once this one listens."""
        return {
            "url": self._url,
            "model": self._settings.model_name,
            "kv_event_sources": self._publisher.sources if self._publisher else [],
        }

    async def start(self) -> None:
        """Start the engine and listen.

        Raises:
            ConfigError: an address is taken or not this machine's.
        """
        if self._publisher is not None:
            self._publisher.start()
            self.engine.on_kv_events = self._publisher.publish
        context = self._context()
        self.engine.on_finished = context.metrics.observe
        self.engine.start()
        self._runner = web.AppRunner(
            make_application(context),
            handler_cancellation=True,  # a client that leaves ends its generation
            access_log=None,
            shutdown_timeout=_CLOSE_S,
        )
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._settings.host, self._settings.port)
        try:
            await self._site.start()
        except OSError as exc:
            await self.stop()
            raise ConfigError(
                f"Cannot listen on {self._settings.host}:{self._settings.port}: {_reason(exc)}. "
                "Choose another --port, or 0 for a free one."
            ) from exc
        self._url = _url_of(self._settings.host, self._runner.addresses[0][1])

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Drain and close.

        Args:
            hurry: once set, open requests are aborted without waiting further.
        """
        self._gate.close()
        if self._site is not None:
            with contextlib.suppress(RuntimeError):  # it never started
                await self._site.stop()
        await self._drain(hurry or asyncio.Event())
        await asyncio.to_thread(self.engine.stop)
        if self._runner is not None:
            await self._runner.cleanup()
        if self._publisher is not None:
            await asyncio.to_thread(self._publisher.close)

    async def _drain(self, hurry: asyncio.Event) -> None:
        waits = {asyncio.create_task(self._gate.wait_idle()), asyncio.create_task(hurry.wait())}
        _, unfinished = await asyncio.wait(
            waits, timeout=self._settings.drain_s, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in unfinished:
            wait.cancel()

    def _context(self) -> ApiContext:
        engine = self.engine
        source = engine.chat_template_source
        template = (
            ChatTemplate(source, bos_token=engine.bos_token or "", eos_token=engine.eos_token or "")
            if source
            else None
        )
        facts = CacheFacts(
            enable_prefix_caching=self._settings.enable_prefix_caching,
            dtype="float32" if self._settings.backend == "numpy" else "bfloat16",
        )
        return ApiContext(
            engine=engine,
            template=template,
            model_name=self._settings.model_name,
            clock=self._clock,
            metrics=EngineMetrics(engine, self._settings.model_name, facts, self._publisher),
            gate=self._gate,
            publisher=self._publisher,
        )


def make_application(context: ApiContext) -> web.Application:
    """Return the routes and the error form around one engine; starts nothing."""
    app = web.Application(middlewares=[error_middleware], client_max_size=MAX_BODY_BYTES)
    app[CONTEXT] = context
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", models),
            web.post("/tokenize", tokenize),
            web.post("/detokenize", detokenize),
            web.get("/health", health),
            web.get("/version", version),
            web.get("/metrics", metrics),
            web.post("/reset_prefix_cache", reset_prefix_cache),
            web.get("/kv_event_sources", kv_event_sources),
        ]
    )
    return app


def _reason(error: OSError) -> str:
    # asyncio wraps the system's words in a sentence of its own; a failed look-up has errno < 0.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else str(error.strerror or error)


def _url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
