"""`Outbox`, `RemoteIndex` and `Roster`: what is told, when, and how much at most."""

import pytest

from gossip_sides import HeardIndex, Requests, prompt_of
from headstart.prompt.fingerprint import PromptKeys
from headstart.routing.gossip import index as index_module
from headstart.routing.gossip.index import RemoteIndex
from headstart.routing.gossip.outbox import Outbox
from headstart.routing.gossip.roster import Roster, replica_id
from headstart.routing.replica import Replica
from headstart.wire.gossip import (
    MAX_BATCH_KEYS,
    MAX_BATCH_PROMPTS,
    MAX_PROMPT_KEYS,
    GossipBatch,
    Kind,
    LoadReport,
    encode_gossip,
)

ID = b"replica0"


class Side:
    """An outbox with one replica, and how often it woke its carrier."""

    def __init__(self, **options):
        self.replica = Replica("r0")
        self.roster = Roster()
        self.roster.add(self.replica, ID)
        self.num_woken = 0
        self.outbox = Outbox("a/0", 1, self.roster, self.wake, **options)
        self.requests = Requests(self.outbox)

    def wake(self):
        self.num_woken += 1

    def report(self) -> LoadReport:
        load = self.replica.load.own()
        counts = load.in_flight, load.num_pending, load.pending_tokens, load.active_tokens
        return LoadReport(ID, *counts)

    def take(self) -> GossipBatch:
        batch = self.outbox.take_changes()
        self.outbox.check_integrity()
        encode_gossip(batch)
        return batch


def many_keys(num: int) -> PromptKeys:
    keys = [index.to_bytes(16, "little") for index in range(num)]
    return PromptKeys(keys, list(range(1, num + 1)), num)


def test_the_carrier_is_woken_once_for_each_batch():
    """By the first thing to tell, and not again before that was taken."""
    side = Side()
    assert side.outbox.take_changes() is None
    dispatch = side.requests.send(side.replica)
    side.requests.first_token(dispatch)
    side.requests.answer(dispatch)
    assert side.num_woken == 1
    side.take()
    side.requests.send(side.replica)
    assert side.num_woken == 2


def test_a_batch_tells_the_load_as_it_is_when_it_is_made():
    """Not as it was when the request was sent."""
    side = Side()
    first = side.requests.send(side.replica, uncached=10)
    side.requests.send(side.replica, uncached=20)
    assert side.take().loads == [side.report()]
    assert (side.report().in_flight, side.report().pending_tokens) == (2, 30)
    side.requests.first_token(first)
    assert side.take().loads == [side.report()]
    assert (side.report().in_flight, side.report().pending_tokens) == (2, 20)
    side.requests.answer(first)
    assert side.take().loads == [side.report()]
    assert (side.report().in_flight, side.report().pending_tokens) == (1, 20)


def test_the_end_of_the_last_request_is_told():
    """An empty load is news; a snapshot leaves it out."""
    side = Side()
    dispatch = side.requests.send(side.replica)
    side.take()
    side.requests.answer(dispatch)
    assert side.take().loads == [LoadReport(ID, 0, 0, 0, 0)]
    assert side.outbox.take_snapshot().loads == []


def test_a_snapshot_tells_what_is_new_as_well():
    """It takes the place of the batch that was to come."""
    side = Side()
    side.requests.send(side.replica, prompt_of("hello"))
    snapshot = side.outbox.take_snapshot()
    assert snapshot.kind is Kind.SNAPSHOT
    assert len(snapshot.sent) == 1
    assert side.outbox.take_changes() is None


def test_messages_are_numbered_without_gaps():
    """Of every kind together: a gap is a loss."""
    side = Side()
    batches = [side.outbox.take_snapshot()]
    side.requests.send(side.replica)
    batches += [side.take(), side.outbox.take_snapshot(), side.outbox.take_farewell()]
    assert [batch.number for batch in batches] == [0, 1, 2, 3]
    assert batches[-1].kind is Kind.FAREWELL


def test_prompts_without_a_block_are_load_only():
    """There is nothing to learn of them."""
    side = Side()
    dispatch = side.requests.send(side.replica)
    side.requests.answer(dispatch)
    batch = side.take()
    assert (batch.sent, batch.outcomes) == ([], [])
    assert len(batch.loads) == 1


def test_without_an_index_load_is_all_that_is_told():
    """Nobody would read the rest."""
    side = Side(tells_prompts=False)
    dispatch = side.requests.send(side.replica, prompt_of("hello"))
    side.requests.answer(dispatch)
    batch = side.take()
    assert (batch.sent, batch.outcomes) == ([], [])
    assert len(batch.loads) == 1


def test_more_prompts_than_a_batch_holds_are_dropped_and_counted():
    """Their load is told all the same, and their outcomes are not."""
    side = Side()
    num = MAX_BATCH_PROMPTS + 10
    dispatches = [side.requests.send(side.replica, prompt_of(str(i), 1)) for i in range(num)]
    batch = side.take()
    assert len(batch.sent) == MAX_BATCH_PROMPTS
    assert batch.loads[0].in_flight == num
    assert side.outbox.num_dropped == 10
    for dispatch in dispatches:
        side.requests.answer(dispatch)
    assert len(side.take().outcomes) == MAX_BATCH_PROMPTS


def test_more_keys_than_a_batch_holds_are_dropped_and_counted():
    """A prompt is told whole up to its own bound, or not at all."""
    side = Side()
    for _ in range(3):
        side.requests.send(side.replica, many_keys(MAX_PROMPT_KEYS + 7))
    side.requests.send(side.replica, many_keys(5))
    batch = side.take()
    assert sum(prompt.num_keys for prompt in batch.sent) <= MAX_BATCH_KEYS
    assert [prompt.num_keys for prompt in batch.sent] == [MAX_PROMPT_KEYS] * 2
    assert side.outbox.num_dropped == 2


def test_a_replica_that_was_taken_out_is_told_of_no_more():
    """Its last requests go on, and concern nobody."""
    side = Side()
    dispatch = side.requests.send(side.replica, prompt_of("x"))
    side.roster.remove(side.replica)
    side.requests.answer(dispatch)
    batch = side.take()
    assert (batch.loads, batch.sent, batch.outcomes) == ([], [], [])


def test_a_name_means_the_newest_replica_that_has_it():
    """One that is put in again while the one before still ends its requests."""
    roster, old, new = Roster(), Replica("r0"), Replica("r0")
    roster.add(old, ID)
    roster.add(new, ID)
    assert roster.replica_of(ID) is new
    assert roster.id_of(old) is None
    roster.remove(old)
    assert roster.replica_of(ID) is new


def test_replicas_are_told_apart_by_name_address_and_host():
    """And by nothing else, in any process."""
    ids = {
        replica_id("a", "http://x:1", ""),
        replica_id("b", "http://x:1", ""),
        replica_id("a", "http://x:2", ""),
        replica_id("a", "http://x:1", "host"),
        replica_id("ah", "ttp://x:1", ""),
    }
    assert len(ids) == 5
    assert replica_id("a", "http://x:1", "").hex() == "e8b2dedbcab11d38"


def test_prompts_without_an_outcome_are_bounded(monkeypatch):
    """The oldest are forgotten."""
    monkeypatch.setattr(index_module, "MAX_REMEMBERED_KEYS", 50)
    side, heard = Side(), HeardIndex()
    index = RemoteIndex(heard, lambda _: 3)
    dispatches = [side.requests.send(side.replica, prompt_of(str(i), 4)) for i in range(30)]
    batch = side.take()
    for prompt in batch.sent:
        index.sent(batch, prompt, 0.0)
        index.check_integrity()
    for dispatch in dispatches:
        side.requests.answer(dispatch)
    batch = side.take()
    for outcome in batch.outcomes:
        index.came_back(batch, outcome, 0.0)
    index.check_integrity()
    assert [what for what, *_ in heard.heard].count("answered") == 10
    assert index.num_forgotten == 20


@pytest.mark.parametrize("ends", [b"", b"\x01\x00\x00\x00"])
def test_a_malformed_prompt_is_counted_and_left_out(ends):
    """The rest of its message counts."""
    side, heard = Side(), HeardIndex()
    side.requests.send(side.replica, prompt_of("x", 2))
    batch = side.take()
    prompt = batch.sent[0]
    bad = type(prompt)(prompt.number, prompt.replica, prompt.keys, ends, prompt.num_bytes, None)
    index = RemoteIndex(heard, lambda _: 3)
    index.sent(batch, bad, 0.0)
    assert heard.heard == []
    assert index.num_malformed == 1
