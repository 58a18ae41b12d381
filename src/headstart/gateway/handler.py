"""Which request is answered by whom: the table of the data port's paths.

    /health                          the process is alive
    /ready                           a replica can be used, and which cannot and why
    GET /v1/models, /v1/models/NAME  what all engines serve
    POST /v1/chat/completions        an engine that serves the model
    POST /v1/completions             likewise
    other /v1/*, /tokenize, /detokenize   forwarded unchanged to such an engine, or to any

Everything else is 404. Every request but those for health and readiness leaves a record.
"""

import os
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from headstart.accounting.metrics import USAGE_PATHS
from headstart.accounting.record import RequestRecord
from headstart.errors import HeadstartError, NotFound, UpstreamUnavailable
from headstart.gateway.connection import ClientConnection
from headstart.gateway.data_path import DataPath
from headstart.gateway.exchange import Exchange
from headstart.gateway.prepare import CHAT_PATH, COMPLETIONS_PATH
from headstart.gateway.respond import (
    error_response,
    json_response,
    merged_models,
    model_named,
    readiness,
    require_method,
)
from headstart.gateway.state import GatewayState
from headstart.types import JsonObject
from headstart.wire.http1 import Request

_MODELS_PATH: Final = "/v1/models"
_MODEL_PREFIX: Final = "/v1/models/"
_PROBES: Final = frozenset({"/health", "/ready"})
_GENERATION_PATHS: Final = frozenset({CHAT_PATH, COMPLETIONS_PATH})
_ENGINE_PATHS: Final = frozenset({"/tokenize", "/detokenize"})


class RequestIds:
    """Numbers requests: unique across processes and restarts, cheap to make."""

    __slots__ = ("_count", "_prefix")

    def __init__(self) -> None:
        self._prefix = os.urandom(6).hex()
        self._count = 0

    def next(self) -> str:
        """Return a new id."""
        self._count += 1
        return f"{self._prefix}-{self._count:08x}"


class Handler:
    """Dispatches the data port's requests.

    Args:
        path: what exchanges work with.
        state: read for readiness.
        told_models: what each engine's list of models says, by name.

    Attributes:
        is_draining: refuse requests; set by the gateway.
    """

    def __init__(
        self,
        path: DataPath,
        state: GatewayState,
        told_models: Callable[[], list[dict[str, JsonObject]]],
    ) -> None:
        self._path = path
        self._state = state
        self._told_models = told_models
        self._ids = RequestIds()
        self.is_draining = False

    def handle(self, request: Request, client: ClientConnection, accepted_at: float) -> None:
        """Answer `request` on `client`, now or later."""
        request_id = self._ids.next()
        is_hot = request.path in _GENERATION_PATHS and request.method == "POST"
        if not is_hot or self.is_draining:
            if request.path in _PROBES:
                self._answer_probe(request, client, request_id)
                return
            try:
                if self._answers_itself(request, client, request_id, accepted_at):
                    return
            except HeadstartError as error:
                closes = self._closes(request)
                client.write(error_response(request, error, request_id, closes=closes))
                self._record(request, request_id, accepted_at, error)
                client.finished(closes=closes)
                return
        exchange = Exchange(
            self._path, client, request, request_id=request_id, accepted_at=accepted_at
        )
        client.active = exchange
        exchange.begin()

    def _answers_itself(
        self, request: Request, client: ClientConnection, request_id: str, accepted_at: float
    ) -> bool:
        name = request.path
        if self.is_draining:
            raise UpstreamUnavailable("The gateway is shutting down; try again elsewhere.")
        if name in _GENERATION_PATHS:
            require_method(request, "POST")
        if name == _MODELS_PATH or name.startswith(_MODEL_PREFIX):
            require_method(request, "GET", "HEAD")
            self._answer_models(request, client, request_id, accepted_at)
            return True
        if not _is_forwarded(name):
            raise NotFound(f"There is nothing at {name[:200]!r}; the API is under /v1.")
        return False

    def refuse(self, error: HeadstartError, client: ClientConnection, accepted_at: float) -> None:
        """Answer a request that could not be read; the connection then closes by itself."""
        request_id = self._ids.next()
        client.write(error_response(None, error, request_id, closes=True))
        self._record(None, request_id, accepted_at, error)

    def _closes(self, request: Request) -> bool:
        return self.is_draining or not request.is_keep_alive

    def _answer_probe(self, request: Request, client: ClientConnection, request_id: str) -> None:
        status: int
        value: object
        status, value = 200, {"status": "ok"}
        if request.path == "/ready":
            status, value = readiness(self._state.replicas(), is_draining=self.is_draining)
        closes = self._closes(request)
        client.write(json_response(request, status, value, request_id, closes=closes))
        client.finished(closes=closes)

    def _answer_models(
        self, request: Request, client: ClientConnection, request_id: str, accepted_at: float
    ) -> None:
        tenant = self._path.authenticator.tenant_of(request.header.fields).name
        entries = merged_models(self._path.fleet.models(), self._told_models())
        value: object = {"object": "list", "data": entries}
        if request.path != _MODELS_PATH:
            value = model_named(unquote(request.path.removeprefix(_MODEL_PREFIX)), entries)
        closes = self._closes(request)
        client.write(json_response(request, 200, value, request_id, closes=closes))
        self._record(request, request_id, accepted_at, None, tenant=tenant)
        client.finished(closes=closes)

    def _record(
        self,
        request: Request | None,
        request_id: str,
        accepted_at: float,
        error: HeadstartError | None,
        *,
        tenant: str | None = None,
    ) -> None:
        clock = self._path.clock
        self._path.recorder.record(
            RequestRecord(
                request_id=request_id,
                time_s=clock.time(),
                path="" if request is None else request.path,
                tenant=self._path.authenticator.stranger.name if tenant is None else tenant,
                status=200 if error is None else error.status,
                error_code=None if error is None else error.code,
                total_s=clock.monotonic() - accepted_at,
            )
        )


def _is_forwarded(path: str) -> bool:
    if not path.startswith("/v1/") and path not in _ENGINE_PATHS:
        return False
    segments = unquote(path).split("/")
    if ".." in segments:
        # `/v1/../admin` would leave the part of the engine that clients may reach.
        return False
    # Engines, and proxies before them, take `/v1/%63hat/completions` and the like for a path that
    # is looked at and counted here by its name, and so would generate past the tenant's limits.
    meant = "/" + "/".join(segment for segment in segments if segment not in ("", "."))
    return meant == path or meant not in USAGE_PATHS
