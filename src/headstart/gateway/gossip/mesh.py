"""One process's part in the gossip: its timers, its sockets, its figures.

Theory of operation: the router's calls note what happens (`routing.gossip.outbox`). The first of
them arms a timer, and `batch_s` later one message tells all of them; where nothing happens no timer
runs but the one that tells the whole load once a second, by which peers know that this process
lives. What comes is read by the loop and taken in at once. There is no task, and nothing waits.
"""

import asyncio
from typing import Final

from headstart.clock import Clock, SystemClock
from headstart.gateway.gossip.inbox import SOURCE, Inbox
from headstart.gateway.gossip.links import identify
from headstart.gateway.gossip.plan import GossipPlan
from headstart.gateway.gossip.sockets import Hub
from headstart.gateway.gossip.statistics import GossipStatistics
from headstart.routing.gossip.index import RemoteIndex, SharedKnowledge
from headstart.routing.gossip.ledger import NO_LOAD, RemoteLedger
from headstart.routing.gossip.outbox import Outbox
from headstart.routing.gossip.roster import Roster
from headstart.routing.observer import DispatchObserver
from headstart.routing.replica import Replica
from headstart.wire.gossip import GossipBatch, encode_gossip

SNAPSHOT_S: Final = 1.0
_TICKS_PER_SNAPSHOT: Final = 4

_SYSTEM_CLOCK: Final = SystemClock()


class Gossip:
    """Tells what this process dispatches, and hears what others do.

    Args:
        plan: its name, and whom it hears.
        view: the prefix index, which learns from peers; None if the policy asks none.
        clock: monotonic readings; wall clock for the epoch.
    """

    def __init__(
        self,
        plan: GossipPlan,
        view: SharedKnowledge | None,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._roster = Roster()
        self._ledger = RemoteLedger(plan.sender, plan.silence_s)
        self._index = None if view is None else RemoteIndex(view, self._slot_of)
        self._inbox = Inbox(self._ledger, self._index, self._roster, clock)
        self._outbox = Outbox(
            plan.sender,
            int(clock.time() * 1e9),
            self._roster,
            self._arm,
            tells_prompts=view is not None,
        )
        self._hub: Hub | None = None
        self._refused_before = 0
        self._flushing: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_number = 0
        self._num_sent = self._num_sent_bytes = 0

    @property
    def observer(self) -> DispatchObserver:
        """What the router is to call."""
        return self._outbox

    def add_replica(self, replica: Replica, url: str) -> None:
        """Tell and hear of a replica from now on; `url` as configured."""
        its_id = identify(replica.name, url)
        self._roster.add(replica, its_id)
        load = self._ledger.load(its_id)
        if load != NO_LOAD:
            replica.load.set_remote(SOURCE, load, self._clock.monotonic())

    def remove_replica(self, replica: Replica) -> None:
        """Tell and hear of it no longer."""
        self._roster.remove(replica)

    def start(self) -> None:
        """Begin, within the loop.

        Raises:
            ConfigError: an address cannot be bound.
        """
        assert self._hub is None
        self._hub = Hub(self._inbox.take)
        self._hub.start(self._plan.links)
        self._tick()

    async def close(self) -> None:
        """Say farewell and end."""
        for timer in (self._flushing, self._ticking):
            if timer is not None:
                timer.cancel()
        self._flushing = self._ticking = None
        if self._hub is None:
            return
        self._send(self._outbox.take_farewell())
        self._inbox.stop()
        self._refused_before += self._hub.num_refused
        context, self._hub = self._hub.close(), None
        await asyncio.to_thread(context.term)

    def statistics(self) -> GossipStatistics:
        """Return what was told and heard."""
        ledger, index = self._ledger.statistics(), self._index
        num_malformed = 0 if index is None else index.num_malformed
        return GossipStatistics(
            num_peers=ledger.num_senders,
            num_sent=self._num_sent,
            num_sent_bytes=self._num_sent_bytes,
            num_received=ledger.num_taken,
            num_lost=ledger.num_lost,
            num_late=ledger.num_late,
            num_unreadable=self._inbox.num_unreadable + num_malformed,
            num_refused=self._refused_before + (self._hub.num_refused if self._hub else 0),
            num_dropped=self._outbox.num_dropped + self._inbox.num_dropped,
            num_strange=0 if index is None else index.num_strange,
        )

    def _slot_of(self, replica_id: bytes) -> int | None:
        replica = self._roster.replica_of(replica_id)
        return None if replica is None else replica.slot

    def _arm(self) -> None:
        if self._flushing is None and self._hub is not None:
            self._flushing = asyncio.get_running_loop().call_later(self._plan.batch_s, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        batch = self._outbox.take_changes()
        if batch is not None:
            self._send(batch)

    def _tick(self) -> None:
        assert self._hub is not None
        self._ticking = asyncio.get_running_loop().call_later(
            SNAPSHOT_S / _TICKS_PER_SNAPSHOT, self._tick
        )
        # Read first: after a pause of this process it is not the peers that were silent.
        self._hub.read()
        self._inbox.expire()
        # In the first second at each tick: that is when peers find this process.
        is_first = self._tick_number < _TICKS_PER_SNAPSHOT
        if is_first or self._tick_number % _TICKS_PER_SNAPSHOT == 0:
            self._send(self._outbox.take_snapshot())
        self._tick_number += 1

    def _send(self, batch: GossipBatch) -> None:
        assert self._hub is not None
        message = encode_gossip(batch)
        self._num_sent += 1
        self._num_sent_bytes += len(message)
        self._hub.send(message)
