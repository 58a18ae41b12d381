"""The admin port: health, metrics and replicas, for operators and their tools.

On its own port, so that it can be closed to clients, and on aiohttp, because nothing here is on
a request's path. It shares the event loop with the data path, so what takes long runs on a thread.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from urllib.parse import urlsplit, urlunsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from headstart import __version__
from headstart.accounting.exposition import CONTENT_TYPE, render_metrics
from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.recorder import Recorder
from headstart.errors import BadRequest, HeadstartError, NotFound, Unauthorized
from headstart.gateway.state import GatewayState, ReplicaStatus

_OPEN_PATHS = frozenset(("/health", "/ready"))
"""Answered without the key: probes have none, and these say nothing but yes or no."""

_PATHS_HINT = "the admin port has /health, /ready, /metrics and /replicas"

_CLOSE_S = 1.0
"""How long a request on the admin port may go on when the process ends."""


class AdminServer:
    """Serves the admin port of one gateway.

    Args:
        state: the gateway as it lets others see it.
        metrics: the counters over requests.
        recorder: for its statistics.
        key: bearer token that all but the probes must bring; None asks for none.
    """

    def __init__(
        self,
        state: GatewayState,
        metrics: RequestMetrics,
        recorder: Recorder,
        *,
        key: str | None = None,
    ) -> None:
        self._state = state
        self._metrics = metrics
        self._recorder = recorder
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)
        self._runner = web.AppRunner(self._app(key), access_log=None, shutdown_timeout=_CLOSE_S)

    async def start(self, host: str, port: int) -> int:
        """Listen and return the bound port.

        Raises:
            OSError: the address cannot be bound.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stop listening and end what is open."""
        await self._runner.cleanup()

    def _app(self, key: str | None) -> web.Application:
        app = web.Application(middlewares=[_errors, _key_check(key)])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_get("/replicas", self._replicas)
        return app

    async def _health(self, _request: web.Request) -> web.Response:
        return _json({"status": "ok", "version": __version__})

    async def _ready(self, _request: web.Request) -> web.Response:
        if self._state.is_ready:
            return _json({"status": "ready"})
        return _json({"status": "draining" if self._state.is_draining else "no replica"}, 503)

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        # Copied here, where the counters change; written on a thread, because a thousand series
        # take half a second, which clients of the data port would feel.
        snapshot = self._metrics.snapshot()
        text = await asyncio.to_thread(
            render_metrics,
            snapshot,
            self._recorder.statistics(),
            chain(list(_gateway_families(self._state)), self._process.collect()),
        )
        return web.Response(body=text, headers={"content-type": CONTENT_TYPE})

    async def _replicas(self, _request: web.Request) -> web.Response:
        return _json({"data": [_replica_json(replica) for replica in self._state.replicas()]})


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer every error in the form of the OpenAI API."""
    try:
        return await handler(request)
    except HeadstartError as error:
        return _error_json(error)
    except web.HTTPNotFound:
        return _error_json(NotFound(f"there is no {request.path} here; {_PATHS_HINT}"))
    except web.HTTPMethodNotAllowed:
        return _error_json(BadRequest(f"{request.path} answers GET only"), status=405)


def _key_check(key: str | None) -> Middleware:
    wanted = None if key is None else hashlib.sha256(key.encode()).digest()

    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if wanted is not None and request.path not in _OPEN_PATHS:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            given = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
            if scheme.lower() != "bearer" or not hmac.compare_digest(given, wanted):
                raise Unauthorized("the admin port needs its key: Authorization: Bearer KEY")
        return await handler(request)

    return check


def _gateway_families(state: GatewayState) -> Iterator[Metric]:
    build = InfoMetricFamily("headstart_build", "The running headstart.")
    build.add_metric((), {"version": __version__})
    yield build
    for name, documentation, value in (
        (
            "headstart_open_requests",
            "Requests not yet answered completely.",
            state.num_open_requests,
        ),
        ("headstart_client_connections", "Open client connections.", state.num_client_connections),
        ("headstart_draining", "1 while new requests are refused.", int(state.is_draining)),
    ):
        yield GaugeMetricFamily(name, documentation, value)
    available = GaugeMetricFamily(
        "headstart_replica_available", "1 if requests may be sent to it.", labels=("replica",)
    )
    in_flight = GaugeMetricFamily(
        "headstart_replica_in_flight", "Requests sent to it and not finished.", labels=("replica",)
    )
    in_flight_bytes = GaugeMetricFamily(
        "headstart_replica_in_flight_bytes", "Prompt bytes of these.", labels=("replica",)
    )
    for replica in state.replicas():
        available.add_metric((replica.name,), int(replica.is_available))
        in_flight.add_metric((replica.name,), replica.in_flight)
        in_flight_bytes.add_metric((replica.name,), replica.in_flight_bytes)
    yield from (available, in_flight, in_flight_bytes)


def _replica_json(replica: ReplicaStatus) -> dict[str, object]:
    parts = urlsplit(replica.url)
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return {
        "name": replica.name,
        "url": url,
        "kind": replica.kind,
        "models": replica.models,
        "is_available": replica.is_available,
        "reason": replica.reason,
        "in_flight": replica.in_flight,
        "in_flight_bytes": replica.in_flight_bytes,
        "idle_connections": replica.idle_connections,
    }


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def _error_json(error: HeadstartError, *, status: int | None = None) -> web.Response:
    body = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    return _json({"error": body}, status or error.status)
