"""The admin port: health, metrics and replicas, for operators and their tools.

On its own port, so that it can be closed to clients, and on aiohttp, because nothing here is on
a request's path. It shares the event loop with the data path, so what takes long runs on a thread.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from itertools import chain
from urllib.parse import urlsplit, urlunsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from headstart import __version__
from headstart.accounting.exposition import CONTENT_TYPE, render_metrics
from headstart.accounting.log import log_line
from headstart.accounting.record import RequestRecord
from headstart.errors import BadRequest, HeadstartError, NotFound, Unauthorized
from headstart.gateway.families import gateway_families
from headstart.gateway.overview import AdminSource
from headstart.gateway.replica_form import read_replica_form
from headstart.gateway.state import ReplicaStatus
from headstart.routing.receipt import expand_receipt

_OPEN_PATHS = frozenset(("/health", "/ready"))
"""Answered without the key: probes have none, and these say nothing but yes or no."""

_PATHS_HINT = (
    "the admin port has /health, /ready, /metrics, /requests/ID, /replicas, POST /replicas, "
    "DELETE /replicas/NAME, POST /replicas/NAME/drain and /replicas/NAME/resume"
)

_NOT_SAVED = (
    "This change is not saved: it holds until headstart is restarted. Change the configuration, "
    "too, or the place where its replicas are listed."
)

_ORDERS = frozenset(("POST", "DELETE"))

FindRequest = Callable[[str], tuple[RequestRecord, str | None] | None]
"""Returns the record of a request, by the gateway's own id, and its compact receipt."""

_LOOKS = 10
_LOOK_S = 0.15
"""Records are written in batches, `recorder.flush_s` after the end of a request at the latest."""

_CLOSE_S = 1.0
"""How long a request on the admin port may go on when the process ends."""


class AdminServer:
    """Serves the admin port of one gateway, of however many processes.

    Args:
        source: what it shows.
        key: bearer token that all but the probes must bring; None asks for none.
        find_request: reads a request's record and compact receipt; called on a thread.
    """

    def __init__(
        self,
        source: AdminSource,
        *,
        key: str | None = None,
        find_request: FindRequest | None = None,
    ) -> None:
        self._source = source
        self._find_request = find_request
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
        app = web.Application(middlewares=[_errors, _own_pages_only, _key_check(key)])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_get("/requests/{id}", self._request)
        app.router.add_get("/replicas", self._replicas)
        app.router.add_post("/replicas", self._add_replica)
        # A name may have colons and slashes.
        app.router.add_delete("/replicas/{name:.+}", self._remove_replica)
        app.router.add_post("/replicas/{name:.+}/{order:drain|resume}", self._drain_or_resume)
        return app

    async def _health(self, _request: web.Request) -> web.Response:
        return _json({"status": "ok", "version": __version__})

    async def _ready(self, _request: web.Request) -> web.Response:
        status = await self._source.status()
        shown: dict[str, object] = {"status": "ready"}
        if not status.is_ready:
            shown["status"] = "draining" if status.is_draining else "no replica"
        caches = {each.name: each.cache for each in status.replicas if each.cache is not None}
        if caches:  # how well they are known; requests are taken all the same
            shown["caches"] = {
                name: {
                    "trust": cache.trust,
                    "trust_reason": cache.trust_reason,
                    "tokens_agree": cache.tokens_agree,
                }
                for name, cache in caches.items()
            }
        return _json(shown, 200 if status.is_ready else 503)

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        overview = await self._source.overview()
        # On a thread, because a thousand series take half a second, which clients of the data
        # port would feel.
        text = await asyncio.to_thread(
            render_metrics,
            overview.requests,
            overview.recorder,
            chain(gateway_families(overview), self._process.collect()),
        )
        return web.Response(body=text, headers={"content-type": CONTENT_TYPE})

    async def _request(self, request: web.Request) -> web.Response:
        request_id = request.match_info["id"]
        found = None
        if self._find_request is not None:
            for _ in range(_LOOKS):
                found = await asyncio.to_thread(self._find_request, request_id)
                if found is not None:
                    break
                await asyncio.sleep(_LOOK_S)  # it may have ended just now
        if found is None:
            raise NotFound(
                f"There is no record of a request {request_id[:200]!r}; it has not ended, or its "
                "record was not kept."
            )
        record, receipt = found
        shown = msgspec.to_builtins(log_line(record))
        shown["receipt"] = None if receipt is None else expand_receipt(receipt)
        return _json(shown)

    async def _replicas(self, _request: web.Request) -> web.Response:
        status = await self._source.status()
        sources = [msgspec.to_builtins(each) for each in self._source.roster().sources()]
        shown = [_replica_json(replica) for replica in status.replicas]
        return _json({"data": shown, "sources": sources})

    async def _add_replica(self, request: web.Request) -> web.Response:
        config = read_replica_form(await request.read())
        self._source.roster().add(config)
        return await self._changed(config.name, 201)

    async def _remove_replica(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        # Asked of the replicas and not of the list: one that leaves can be told to do so now.
        names = [each.name for each in (await self._source.status()).replicas]
        if name not in names:
            raise NotFound(f"There is no replica {name[:200]!r}; there are: {', '.join(names)}.")
        is_now = request.query.get("now", "0") not in ("", "0", "false")
        self._source.roster().remove(name, is_now=is_now)
        return await self._changed(name, 200)

    async def _changed(self, name: str, code: int) -> web.Response:
        status = await self._source.status()
        shown = [_replica_json(each) for each in status.replicas if each.name == name]
        return _json({"data": shown, "note": _NOT_SAVED}, code)

    async def _drain_or_resume(self, request: web.Request) -> web.Response:
        name, order = request.match_info["name"], request.match_info["order"]
        await self._source.set_replica_draining(name, is_draining=order == "drain")
        status = await self._source.status()
        shown = [_replica_json(each) for each in status.replicas if each.name == name]
        return _json({"data": shown})


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
    except web.HTTPMethodNotAllowed as wrong:
        allowed = " and ".join(sorted(wrong.allowed_methods))
        return _error_json(BadRequest(f"{request.path} answers {allowed} only"), status=405)


@web.middleware
async def _own_pages_only(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refuse orders that a browser sends for another site's page, which need no key to come."""
    origin = request.headers.get("origin")
    if request.method in _ORDERS and origin and urlsplit(origin).netloc != request.host:
        return _error_json(BadRequest(f"pages of {origin[:200]!r} cannot give orders"), status=403)
    return await handler(request)


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


def _replica_json(replica: ReplicaStatus) -> dict[str, object]:
    parts = urlsplit(replica.url)
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return {
        "name": replica.name,
        "url": url,
        "kind": replica.kind,
        "models": replica.models,
        "is_available": replica.is_available,
        "state": replica.state,
        "reason": replica.reason,
        "in_flight": replica.in_flight,
        "in_flight_bytes": replica.in_flight_bytes,
        "idle_connections": replica.idle_connections,
        "connections": replica.connections,
        "weight": round(replica.weight, 3),
        "cache": None if replica.cache is None else msgspec.to_builtins(replica.cache),
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
