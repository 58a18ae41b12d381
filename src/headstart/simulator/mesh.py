"""Gateways that tell each other what they dispatched, in virtual time: the gateway's own gossip.

Each has an outbox, a ledger of the others' loads and an index of their prompts (`routing.gossip`);
only the carrier is simulated. What a gateway has to tell is sent `delay_s` after the first thing of
it happened, and heard at once by all others; nothing is lost.
"""

from collections.abc import Callable, Sequence
from typing import Final

from headstart.routing.gossip.index import RemoteIndex, SharedKnowledge
from headstart.routing.gossip.ledger import RemoteLedger
from headstart.routing.gossip.outbox import Outbox
from headstart.routing.gossip.roster import Roster
from headstart.routing.replica import Replica
from headstart.routing.router import Router
from headstart.wire.gossip import GossipBatch

_SOURCE: Final = "gossip"


class Peer:
    """One gateway's ends of the mesh.

    Args:
        number: of the gateway.
        router: its router, whose dispatches are told.
        replicas: as it sees them.
        view: what it knows of their caches; None where it asks no index.
        wake: called when there is something to tell.
    """

    __slots__ = ("_index", "_ledger", "_roster", "outbox")

    def __init__(
        self,
        number: int,
        router: Router,
        replicas: Sequence[Replica],
        view: SharedKnowledge | None,
        wake: Callable[[], None],
    ) -> None:
        name = f"gateway-{number}"
        self._roster = Roster()
        for replica in replicas:
            self._roster.add(replica, replica.slot.to_bytes(16, "big"))
        self._ledger = RemoteLedger(name, silence_s=1e9)
        self._index = RemoteIndex(view, self._slot_of) if view is not None else None
        self.outbox = Outbox(
            name, number + 1, self._roster, wake, tells_prompts=self._index is not None
        )
        router.observer = self.outbox

    def hear(self, batch: GossipBatch, now: float) -> None:
        """Take in what another gateway tells."""
        if not self._ledger.hear(batch, now):
            return
        for replica_id in self._ledger.take_changed():
            replica = self._roster.replica_of(replica_id)
            if replica is not None:
                replica.load.set_remote(_SOURCE, self._ledger.load(replica_id), now)
        index = self._index
        if index is None:
            return
        for prompt in batch.sent:
            index.sent(batch, prompt, now)
        for number in batch.computed:
            index.computed(batch, number, now)
        for outcome in batch.outcomes:
            index.came_back(batch, outcome, now)

    def _slot_of(self, replica_id: bytes) -> int | None:
        replica = self._roster.replica_of(replica_id)
        return None if replica is None else replica.slot


class Mesh:
    """All peers; `wake_at` is told when one has something to say.

    Args:
        delay_s: from the first thing to tell to the others' hearing of it, > 0.
        wake_at: notes that `tell` is to be called for a gateway at some time.
    """

    __slots__ = ("_delay_s", "_now", "_peers", "_wake_at")

    def __init__(self, delay_s: float, wake_at: Callable[[float, int], None]) -> None:
        assert delay_s > 0
        self._delay_s = delay_s
        self._wake_at = wake_at
        self._now = 0.0
        self._peers: list[Peer] = []

    def add(
        self, router: Router, replicas: Sequence[Replica], view: SharedKnowledge | None
    ) -> None:
        """Take a gateway in; all of them before the first request."""
        number = len(self._peers)

        def wake() -> None:
            self._wake_at(self._now + self._delay_s, number)

        self._peers.append(Peer(number, router, replicas, view, wake))

    def start(self) -> None:
        """Let everybody know of everybody."""
        for number, peer in enumerate(self._peers):
            self._deliver(number, peer.outbox.take_snapshot())

    def pass_to(self, now: float) -> None:
        """Note the time at which the next thing happens."""
        self._now = now

    def tell(self, number: int) -> None:
        """Let the others hear what gateway `number` has to tell."""
        batch = self._peers[number].outbox.take_changes()
        if batch is not None:
            self._deliver(number, batch)

    def _deliver(self, number: int, batch: GossipBatch) -> None:
        for other, peer in enumerate(self._peers):
            if other != number:
                peer.hear(batch, self._now)
