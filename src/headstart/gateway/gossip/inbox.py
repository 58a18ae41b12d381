"""What peers tell, taken in: load at once, prompts a few in each turn of the loop."""

import asyncio
import logging
from collections import deque
from typing import Final

from headstart.clock import Clock
from headstart.routing.gossip.index import RemoteIndex
from headstart.routing.gossip.ledger import RemoteLedger
from headstart.routing.gossip.roster import Roster
from headstart.wire.gossip import (
    GossipBatch,
    GossipDecodeError,
    Outcome,
    SentPrompt,
    decode_gossip,
)

_log = logging.getLogger(__name__)

SOURCE: Final = "gossip"
"""As which the peers' load, all of them together, stands beside our own."""

MAX_QUEUED_KEYS: Final = 1 << 18
"""Of prompts not yet taken in, each of which counts as one key more: about 6 MB."""

_KEYS_PER_TURN: Final = 128
"""A prompt of 8 keys takes about 40 us in all, so requests of this process wait for 0.5 ms."""

_OUTCOME_KEYS: Final = 16  # the prompt that an outcome refers to is not looked up to know


_Item = SentPrompt | Outcome | int
"""A prompt, what came of one, or the number of one whose answer has begun."""


class Inbox:
    """Decodes, and passes on to ledger and index.

    Args:
        ledger: takes the load.
        index: takes the prompts; None leaves them.
        roster: our replicas.
        clock: for when it was heard.

    Attributes:
        num_unreadable: messages that this version cannot read.
        num_dropped: prompts, and what became of them, that found the queue full.
    """

    def __init__(
        self, ledger: RemoteLedger, index: RemoteIndex | None, roster: Roster, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._roster = roster
        self._clock = clock
        self._queue: deque[tuple[GossipBatch, _Item]] = deque()
        self._num_keys = 0
        self._later: asyncio.Handle | None = None
        self._heard: set[str] = set()
        self.num_unreadable = 0
        self.num_dropped = 0

    def take(self, message: bytes) -> None:
        """Take a message in.

        Cost: O(reports in it); its prompts follow later.
        """
        try:
            batch = decode_gossip(message)
        except GossipDecodeError as error:
            if not self.num_unreadable:
                _log.warning("gossip: a peer is not understood: %s", error)
            self.num_unreadable += 1
            return
        now = self._clock.monotonic()
        if not self._ledger.hear(batch, now):
            return
        if batch.sender not in self._heard:
            self._heard.add(batch.sender)
            _log.info("gossip: %s is heard", batch.sender)
        self._settle(now)
        if self._index is not None:
            self._enqueue(batch)

    def expire(self) -> None:
        """Forget the load of those that are silent."""
        now = self._clock.monotonic()
        for name in self._ledger.expire(now):
            self._heard.discard(name)
            _log.info("gossip: %s is silent, and its load counts no more", name)
        self._settle(now)

    def stop(self) -> None:
        """Take nothing in any more."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._queue.clear()
        self._num_keys = 0

    def _settle(self, now: float) -> None:
        for replica_id in self._ledger.take_changed():
            replica = self._roster.replica_of(replica_id)
            if replica is not None:
                replica.load.set_remote(SOURCE, self._ledger.load(replica_id), now)

    def _enqueue(self, batch: GossipBatch) -> None:
        items: list[_Item] = [*batch.sent, *batch.computed, *batch.outcomes]
        for item in items:
            weight = _weight(item)
            if self._num_keys + weight > MAX_QUEUED_KEYS:
                self.num_dropped += 1
                continue
            self._num_keys += weight
            self._queue.append((batch, item))
        if self._queue and self._later is None:
            self._later = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._later = None
        queue, index, left = self._queue, self._index, _KEYS_PER_TURN
        assert index is not None
        now = self._clock.monotonic()
        while queue and left > 0:
            batch, item = queue.popleft()
            weight = _weight(item)
            self._num_keys -= weight
            left -= weight
            if isinstance(item, SentPrompt):
                index.sent(batch, item, now)
            elif isinstance(item, Outcome):
                index.came_back(batch, item, now)
            else:
                index.computed(batch, item, now)
        if queue:
            self._later = asyncio.get_running_loop().call_soon(self._work)


def _weight(item: _Item) -> int:
    return item.num_keys + 1 if isinstance(item, SentPrompt) else _OUTCOME_KEYS
