"""The KV feed: keeps the index of every replica fed with that replica's own events.

    KvFeed ── ReplicaFeed ─┬─ capacity    GET /metrics
                           ├─ sources     GET /kv_event_sources, /server_info
                           └─ StreamFeed  one a rank: SUB, connection, replay

It decides nothing of trust: it tells the sink what it heard and what is missing.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import zmq

from headstart.clock import Clock, SystemClock
from headstart.engines.base import OWN_KINDS
from headstart.engines.kv_feed.config import KvFeedConfig
from headstart.engines.kv_feed.replica_feed import FedReplica, ReplicaFeed
from headstart.engines.kv_feed.sink import KvSink
from headstart.engines.kv_feed.statistics import KvReplicaStatistics

_log = logging.getLogger(__name__)

_MAX_SOCKETS: Final = 8192
"""Two a stream, and one more while it is replayed; ZMQ's own bound is 1,023."""

_DEFAULT_CONFIG: Final = KvFeedConfig()
_SYSTEM_CLOCK: Final = SystemClock()


class KvFeed:
    """Follows replicas, from `start` to `close`, on one event loop.

    A replica of a kind that has no cache of ours to look into is passed over, unless the operator
    named its publishers.

    Args:
        sink: told of every batch and of everything that casts doubt.
        config: how the feed asks, reads and repairs.
        clock: monotonic readings for the sink, wall clock for the lag.
    """

    def __init__(
        self, sink: KvSink, config: KvFeedConfig = _DEFAULT_CONFIG, clock: Clock = _SYSTEM_CLOCK
    ) -> None:
        self._sink = sink
        self._config = config
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._waiting: dict[int, FedReplica] = {}
        self._followed: dict[int, tuple[ReplicaFeed, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, replicas: Iterable[FedReplica] = ()) -> None:
        """Follow `replicas` and those that were added before; returns at once."""
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        waiting, self._waiting = self._waiting, {}
        for replica in (*waiting.values(), *replicas):
            self.add(replica)

    def add(self, replica: FedReplica) -> None:
        """Follow one more replica; its slot is free."""
        assert replica.slot not in self._followed
        if replica.kind not in OWN_KINDS and replica.events is None:
            return
        if self._context is None:
            self._waiting[replica.slot] = replica
            return
        feed = ReplicaFeed(replica, self._sink, self._context, self._config, self._clock)
        task = asyncio.get_running_loop().create_task(
            self._keep(replica.name, feed), name=f"kv feed of {replica.name}"
        )
        self._followed[replica.slot] = feed, task

    def remove(self, slot: int) -> None:
        """Stop following the replica in `slot`, if it is followed.

        The sink forgets its streams before this returns, and hears nothing more of them: the slot
        may be another replica's at once.
        """
        self._waiting.pop(slot, None)
        followed = self._followed.pop(slot, None)
        if followed is None:
            return
        feed, task = followed
        feed.forget()
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def came_back(self, slot: int) -> None:
        """Hear that the replica in `slot` was down and is up: it may be a new process."""
        followed = self._followed.get(slot)
        if followed is not None:
            followed[0].came_back()

    def rebuild(self, slot: int) -> None:
        """Forget what the events of the replica in `slot` told; read them from the beginning."""
        followed = self._followed.get(slot)
        if followed is not None:
            followed[0].rebuild()

    async def close(self) -> None:
        """End every task and close every socket."""
        for slot in list(self._followed):
            self.remove(slot)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def statistics(self) -> list[KvReplicaStatistics]:
        """Return what is known of each replica that is followed, in the order of `add`."""
        return [feed.statistics() for feed, _ in self._followed.values()]

    def statistics_of(self, slot: int) -> KvReplicaStatistics | None:
        """Return what is known of one replica; None if it is not followed."""
        followed = self._followed.get(slot)
        return None if followed is None else followed[0].statistics()

    async def _keep(self, name: str, feed: ReplicaFeed) -> None:
        """Run a replica's feed for as long as it is followed."""
        while True:
            try:
                await feed.run()
            except Exception:  # noqa: BLE001  the top of a task
                # The events of one replica are no reason to stop serving; without them its index
                # is not believed, because the feed forgets its streams when it ends.
                _log.exception("KV events of %s: the feed failed and begins anew", name)
            await asyncio.sleep(self._config.retry_s)
