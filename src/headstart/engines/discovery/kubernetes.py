"""Replicas behind a Kubernetes service: its EndpointSlices, listed once and then watched.

    list ──(version)──> watch ──(ends as announced)──> watch from the last version
      ^                   │
      └──(410: that version is forgotten; or anything failed, after a pause)

A watch is asked to end after a minute, so that a connection that has died without a word is
missed for little more than that. Bookmarks keep the version young where nothing changes.

The service account needs `get`, `list` and `watch` on `endpointslices` of `discovery.k8s.io` in the
service's namespace.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import uniform
from typing import Final

import aiohttp
import msgspec

from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.endpoint_slices import (
    SERVICE_LABEL,
    EndpointSlice,
    PortUnknown,
    SliceList,
    slice_replicas,
)
from headstart.engines.discovery.source import SourceListener

_LIST_S: Final = 15.0
_CONNECT_S: Final = 10.0
_LATE_S: Final = 15.0
"""How much later than announced a watch may end before it is taken for dead."""

_MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""A slice has at most 1,000 endpoints of some hundred bytes."""

_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0

_GONE: Final = 410


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """Which service.

    Attributes:
        service: its name.
        namespace: of the service; None means that of the pod in which headstart runs.
        port: name or number of the engines' port, as the slices have it; None if there is one only.
        api_url: of the API server; the default is its name inside of every cluster.
        account_dir: folder with `token`, `ca.crt` and `namespace`, read anew for each question,
            because tokens are replaced every hour; a file that is absent is not needed.
        watch_s: > 0; after which a watch ends and is renewed.
    """

    service: str
    namespace: str | None = None
    port: str | int | None = None
    api_url: str = "https://kubernetes.default.svc"
    account_dir: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    watch_s: int = 60


class _Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    """What an ERROR event or a refusal holds."""

    code: int = 0
    message: str = ""


class _GoneError(Exception):
    """The version from which to watch is forgotten."""


class _Trouble(Exception):
    """The API server cannot be asked, or its answer not used; says why."""


_LIST: Final = msgspec.json.Decoder(SliceList)
_EVENT: Final = msgspec.json.Decoder(_Event)
_SLICE: Final = msgspec.json.Decoder(EndpointSlice)
_STATUS: Final = msgspec.json.Decoder(_Status)


class KubernetesSource:
    """Watches the EndpointSlices of one service.

    Args:
        config: which.
        template: what all replicas behind it have in common.
    """

    def __init__(self, config: KubernetesConfig, template: ReplicaConfig) -> None:
        self._config = config
        self._template = template
        self._slices: dict[str, EndpointSlice] = {}
        self._version = ""
        self._num_failures = 0

    @property
    def label(self) -> str:
        """What people call it."""
        where = f"{self._config.namespace}/" if self._config.namespace else ""
        return f"kubernetes {where}{self._config.service}"

    @property
    def grace_s(self) -> float:
        """None: the API server knows best."""
        return 0.0

    async def watch(self, listener: SourceListener) -> None:
        """Tell the service's replicas and each change, until cancelled."""
        while True:
            is_gone = False
            try:
                await self._follow(listener)
            except _GoneError:
                is_gone = True
            except _Trouble as trouble:
                listener.failed(str(trouble))
            except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one of the latter
                listener.failed(f"cannot ask {self._config.api_url}: {_why(error)}")
            except msgspec.DecodeError as error:
                listener.failed(f"the API server's answer cannot be read: {error}")
            self._num_failures += 1
            if not is_gone or self._num_failures > 1:
                await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Return how long to wait before the next list: spread, because all gateways ask."""
        pause_s = _FIRST_PAUSE_S * 2.0 ** min(self._num_failures - 1, 16)
        return float(min(_MAX_PAUSE_S, pause_s) * uniform(0.5, 1.0))

    async def _follow(self, listener: SourceListener) -> None:
        """List, then watch, until something is wrong.

        Raises:
            _GoneError: the version is too old: list again.
            _Trouble, aiohttp.ClientError, OSError, msgspec.DecodeError: it failed.
        """
        config = self._config
        tls = await asyncio.to_thread(_trusting, config.account_dir / "ca.crt")
        connector = aiohttp.TCPConnector(ssl=tls)
        async with aiohttp.ClientSession(config.api_url, connector=connector) as session:
            await self._list(session)
            self._tell(listener)
            while True:
                async with contextlib.aclosing(self._watch_once(session)) as pieces:
                    async for lines in pieces:
                        for line in lines:
                            self._take(_EVENT.decode(line))
                        self._tell(listener)
                        self._num_failures = 0
                self._num_failures = 0

    def _tell(self, listener: SourceListener) -> None:
        config = self._config
        try:
            replicas = slice_replicas(
                self._slices.values(), config.service, config.port, self._template
            )
        except PortUnknown as error:
            listener.failed(str(error))
        else:
            listener.found(replicas)

    async def _list(self, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=_LIST_S, sock_connect=_CONNECT_S)
        async with self._get(session, {}, timeout) as response:
            found = _LIST.decode(await response.read())
        self._slices = {each.metadata.name: each for each in found.items or []}
        self._version = found.metadata.resource_version

    async def _watch_once(
        self, session: aiohttp.ClientSession
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of one watch, as many at a time as have come."""
        watch_s = self._config.watch_s
        timeout = aiohttp.ClientTimeout(total=watch_s + _LATE_S, sock_connect=_CONNECT_S)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(watch_s),
        }
        async with self._get(session, query, timeout) as response:
            rest = b""
            async for piece in response.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _MAX_EVENT_BYTES:
                    raise _Trouble("the API server sent an event without an end")
                if lines := [line for line in lines if line.strip()]:
                    yield lines

    @contextlib.asynccontextmanager
    async def _get(
        self,
        session: aiohttp.ClientSession,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        config = self._config
        account = await asyncio.to_thread(_read_account, config.account_dir)
        namespace = config.namespace or account.get("namespace") or "default"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        headers = {"accept": "application/json"}
        if token := account.get("token"):
            headers["authorization"] = f"Bearer {token}"
        params = {"labelSelector": f"{SERVICE_LABEL}={config.service}", **query}
        async with session.get(
            path, params=params, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            if response.status == _GONE:
                raise _GoneError
            if response.status in (401, 403):
                raise _Trouble(
                    f"the API server refuses ({response.status}): the service account needs get, "
                    f"list and watch on endpointslices of discovery.k8s.io in {namespace}"
                )
            if response.status != 200:
                raise _Trouble(f"the API server answers {response.status}")
            yield response

    def _take(self, event: _Event) -> None:
        if event.type == "ERROR":
            status = _STATUS.decode(event.object)
            if status.code == _GONE:
                raise _GoneError
            raise _Trouble(f"the watch failed: {status.message[:200] or status.code}")
        one = _SLICE.decode(event.object)
        if event.type == "DELETED":
            self._slices.pop(one.metadata.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self._slices[one.metadata.name] = one
        self._version = one.metadata.resource_version or self._version  # a BOOKMARK has only this


def _trusting(ca_file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file) if ca_file.is_file() else None)


def _read_account(folder: Path) -> dict[str, str]:
    files = {name: folder / name for name in ("token", "namespace")}
    return {name: file.read_text().strip() for name, file in files.items() if file.is_file()}


def _why(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)
