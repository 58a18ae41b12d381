"""Whether replicas are there, and what they serve.

One task per replica asks GET /v1/models, often while the replica is down, seldom while it is up,
and at once when a request had trouble with it. A check carries no body and nothing of a client's.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headstart.engines.base import HealthConfig, ReplicaConfig
from headstart.engines.upstream import UpstreamPool
from headstart.errors import UpstreamError, UpstreamTimeout
from headstart.routing.fleet import Fleet
from headstart.routing.replica import Replica
from headstart.types import JsonObject
from headstart.wire.http1 import Request, ResponseHead

_log = logging.getLogger(__name__)

_LIST_MODELS: Final = Request(
    "GET", b"/v1/models", [(b"accept", b"accept: application/json\r\n")], {}
)
_MAX_LIST_BYTES: Final = 4 * 1024 * 1024


class _ModelList(msgspec.Struct):
    data: list[dict[str, object]]


_MODEL_LIST: Final = msgspec.json.Decoder(_ModelList)


@dataclass(slots=True)
class Watched:
    """What the monitor knows of one replica.

    Attributes:
        replica: the router's view of it.
        config: the operator's.
        pool: connections to it.
        reason: why it cannot be used; empty if it can.
        models: the entries of its own list, by name.
        is_late: its last check was not answered in time.
        wake: set to check it now.
        is_checked: set once the first check has ended.
    """

    replica: Replica
    config: ReplicaConfig
    pool: UpstreamPool
    reason: str = "not checked yet"
    models: dict[str, JsonObject] = field(default_factory=dict)
    is_late: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_checked: asyncio.Event = field(default_factory=asyncio.Event)


class Monitor:
    """Keeps the fleet's availability and models true.

    Args:
        fleet: told what was found.
        configs: the replicas, in the fleet's order.
        pools: connections, by replica name.
        health: how often to check.
    """

    def __init__(
        self,
        fleet: Fleet,
        configs: Sequence[ReplicaConfig],
        pools: Mapping[str, UpstreamPool],
        health: HealthConfig,
    ) -> None:
        self._fleet = fleet
        self._health = health
        self._watched = {
            config.name: Watched(replica, config, pools[config.name])
            for replica, config in zip(fleet.replicas, configs, strict=True)
        }
        for replica in fleet.replicas:
            fleet.set_available(replica, False)

    @property
    def watched(self) -> list[Watched]:
        """What is known of each replica, in the order of the configuration."""
        return list(self._watched.values())

    def told_models(self) -> list[dict[str, JsonObject]]:
        """Return each engine's own list of models, by name."""
        return [watched.models for watched in self._watched.values()]

    def unreachable(self, replica: Replica, reason: str) -> None:
        """Hear that no connection could be made; it is not used until it answers again."""
        watched = self._watched[replica.name]
        self._set_down(watched, reason)
        watched.wake.set()

    def suspect(self, replica: Replica) -> None:
        """Hear that it dropped a connection; it is checked at once."""
        self._watched[replica.name].wake.set()

    async def checked(self, within_s: float) -> None:
        """Wait until every replica has been checked once, at most `within_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for watched in self._watched.values():
                    await watched.is_checked.wait()

    async def run(self) -> None:
        """Check every replica until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watched in self._watched.values():
                group.create_task(self._watch(watched), name=f"monitor {watched.config.name}")

    async def _watch(self, watched: Watched) -> None:
        while True:
            watched.wake.clear()
            await self.check(watched)
            is_up = watched.replica.is_available
            is_well = is_up and not watched.is_late
            pause_s = self._health.up_interval_s if is_well else self._health.down_interval_s
            if not is_up:
                # A request found it unreachable and woke us; it is no use asking again at once.
                await asyncio.sleep(pause_s)
                continue
            try:
                async with asyncio.timeout(pause_s):
                    await watched.wake.wait()
            except TimeoutError:
                pass

    async def check(self, watched: Watched) -> None:
        """Ask one replica and tell the fleet."""
        try:
            status, body = await self._ask(watched.pool)
        except UpstreamTimeout as error:
            # An engine that computes on the processor that answers checks can be late once; one
            # that is late again, or from which nothing came at all, is of no use.
            if watched.is_late or not watched.pool.has_received:
                self._set_down(watched, error.message)
            watched.is_late = True
        except UpstreamError as error:
            self._set_down(watched, error.message)
        else:
            watched.is_late = False
            self._judge(watched, status, body)
        watched.pool.has_received = False
        watched.is_checked.set()

    def _judge(self, watched: Watched, status: int, body: bytes) -> None:
        if status in (401, 403):
            self._set_down(watched, f"it refuses our key ({status}); check api_key_env")
        elif status >= 500:
            self._set_down(watched, f"GET /v1/models answers {status}")
        else:
            self._set_up(watched, body if status == 200 else b"")

    async def _ask(self, pool: UpstreamPool) -> tuple[int, bytes]:
        limit = self._health.timeout_s
        try:
            async with asyncio.timeout(limit):
                while True:
                    answer = await _fetch(pool)
                    if answer is not None:
                        return answer
        except TimeoutError:
            raise UpstreamTimeout(f"no answer to GET /v1/models within {limit:g} s") from None

    def _set_down(self, watched: Watched, reason: str) -> None:
        if watched.replica.is_available:
            _log.warning("replica %s is not available: %s", watched.config.name, reason)
        watched.reason = reason
        self._fleet.set_available(watched.replica, False)

    def _set_up(self, watched: Watched, body: bytes) -> None:
        models = _read_models(body)
        if models is not None:
            watched.models = models
            if not watched.config.models:
                self._fleet.set_models(watched.replica, frozenset(models))
        if not watched.replica.is_available:
            _log.info("replica %s is available", watched.config.name)
        watched.reason = ""
        self._fleet.set_available(watched.replica, True)


def _read_models(body: bytes) -> dict[str, JsonObject] | None:
    try:
        entries = _MODEL_LIST.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    named = ((entry.get("id"), entry) for entry in entries)
    return {name: entry for name, entry in named if isinstance(name, str)}


async def _fetch(pool: UpstreamPool) -> tuple[int, bytes] | None:
    """Return status and body; None if a kept connection was closed under the question."""
    fetch = _Fetch()
    call = pool.call("GET", (pool.origin.head(_LIST_MODELS, 0),), fetch)
    try:
        return await fetch.result
    except UpstreamError as error:
        if isinstance(error, UpstreamTimeout) or not call.is_reused:
            raise
        return None  # that says nothing of the engine, and the pool has one connection less
    finally:
        call.abort()


class _Fetch:
    """A small response as a future, for checks off the data path."""

    def __init__(self) -> None:
        self.result: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = bytearray()

    def response_received(
        self, head: ResponseHead | None, body: bytes, *, is_complete: bool
    ) -> None:
        if head is not None:
            self._status = head.status
        if len(self._body) + len(body) <= _MAX_LIST_BYTES:
            self._body += body
        if is_complete and not self.result.done():
            self.result.set_result((self._status, bytes(self._body)))

    def response_failed(self, error: UpstreamError) -> None:
        if not self.result.done():
            self.result.set_exception(error)
