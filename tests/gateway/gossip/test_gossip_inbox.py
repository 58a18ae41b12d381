"""`Inbox`: bounded under a flood, and never long at a time."""

from gossip_sides import HeardIndex, prompt_of
from headstart.clock import VirtualClock
from headstart.gateway.gossip import inbox as inbox_module
from headstart.gateway.gossip.inbox import Inbox
from headstart.routing.gossip.index import RemoteIndex
from headstart.routing.gossip.ledger import RemoteLedger
from headstart.routing.gossip.roster import Roster
from headstart.routing.replica import Replica
from headstart.wire.gossip import (
    GossipBatch,
    Kind,
    LoadReport,
    SentPrompt,
    encode_gossip,
    pack_ends,
    pack_keys,
)
from loopback import eventually

ID = b"replica0"


def message(number, num_prompts=20, num_blocks=8, in_flight=1):
    prompt = prompt_of("x", num_blocks)
    keys, ends = pack_keys(prompt.keys), pack_ends(prompt.ends)
    sent = [
        SentPrompt(number * 1000 + i, ID, keys, ends, prompt.num_bytes, None)
        for i in range(num_prompts)
    ]
    loads = [LoadReport(ID, in_flight, 0, 0, 0)]
    return encode_gossip(GossipBatch("a/0", 1, number, Kind.CHANGES, loads, sent))


class Side:
    def __init__(self):
        self.heard = HeardIndex()
        self.replica = Replica("r0")
        roster = Roster()
        roster.add(self.replica, ID)
        ledger = RemoteLedger("me/0")
        self.inbox = Inbox(ledger, RemoteIndex(self.heard, lambda _: 0), roster, VirtualClock())


async def test_a_flood_is_bounded_and_what_is_dropped_is_counted(monkeypatch):
    """Load is taken in all the same, and at once."""
    monkeypatch.setattr(inbox_module, "MAX_QUEUED_KEYS", 1000)
    side = Side()
    for number in range(100):
        side.inbox.take(message(number, in_flight=number))
        assert side.inbox._num_keys <= 1000
    assert side.replica.load.in_flight == 99
    assert side.inbox.num_dropped == 2000 - 1000 // 9
    await eventually(lambda: len(side.heard.heard) == 1000 // 9)
    assert side.inbox._num_keys == 0


async def test_prompts_are_taken_in_a_few_at_a_time():
    """Between two turns of the loop, requests have theirs."""
    side = Side()
    side.inbox.take(message(0, num_prompts=200))
    assert side.heard.heard == []
    turns = 0

    def is_done():
        nonlocal turns
        turns += 1
        return len(side.heard.heard) == 200

    await eventually(is_done)
    assert turns > 1
    most = inbox_module._KEYS_PER_TURN // 9 + 1
    side.inbox.take(message(1, num_prompts=200))
    side.inbox._work()
    assert len(side.heard.heard) - 200 <= most
    side.inbox.stop()


async def test_after_its_end_nothing_more_is_taken_in():
    """What was queued is dropped."""
    side = Side()
    side.inbox.take(message(0))
    side.inbox.stop()
    assert side.inbox._num_keys == 0
    assert side.heard.heard == []
