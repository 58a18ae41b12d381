"""`RemoteLedger` against a naive twin, whatever the network does to the messages."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headstart.routing.gossip.ledger import MAX_SENDERS, NO_LOAD, RemoteLedger
from headstart.routing.load import RemoteLoad
from headstart.wire.gossip import GossipBatch, Kind, LoadReport

SILENCE_S = 2.0
R0, R1 = b"replica0", b"replica1"
REPLICAS = (R0, R1)
SENDERS = ("a/0", "b/0", "c/0")


def says(sender="a/0", number=0, *loads, epoch=1, kind=Kind.CHANGES) -> GossipBatch:
    return GossipBatch(sender, epoch, number, kind, [LoadReport(*load) for load in loads])


def heard(*batches, at=0.0) -> RemoteLedger:
    ledger = RemoteLedger("me/0", SILENCE_S)
    for batch in batches:
        ledger.hear(batch, at)
        ledger.check_integrity()
    return ledger


def test_loads_of_several_senders_are_summed():
    """Per replica."""
    ledger = heard(says("a/0", 0, (R0, 2, 1, 10, 20)), says("b/0", 0, (R0, 3, 0, 0, 5)))
    assert ledger.load(R0) == RemoteLoad(5, 1, 10, 25)
    assert ledger.load(R1) == NO_LOAD


def test_a_report_replaces_the_one_before():
    """So what was lost in between does not matter."""
    ledger = heard(says("a/0", 0, (R0, 9, 9, 9, 9)), says("a/0", 7, (R0, 1, 0, 0, 3)))
    assert ledger.load(R0) == RemoteLoad(1, 0, 0, 3)
    assert ledger.statistics().num_lost == 6


def test_changes_leave_other_replicas_alone_and_a_snapshot_does_not():
    """A snapshot is everything."""
    ledger = heard(says("a/0", 0, (R0, 1, 0, 0, 1), (R1, 1, 0, 0, 1)))
    ledger.hear(says("a/0", 1, (R1, 2, 0, 0, 2)), 0.0)
    assert ledger.load(R0) == RemoteLoad(1, 0, 0, 1)
    ledger.hear(says("a/0", 2, (R1, 2, 0, 0, 2), kind=Kind.SNAPSHOT), 0.0)
    assert ledger.load(R0) == NO_LOAD
    assert ledger.load(R1) == RemoteLoad(2, 0, 0, 2)


def test_what_comes_late_or_twice_is_left_alone():
    """Its load is not the newest, and its prompts are known."""
    first, second = says("a/0", 0, (R0, 1, 0, 0, 1)), says("a/0", 1, (R0, 2, 0, 0, 2))
    ledger = heard(second)
    assert not ledger.hear(second, 0.0)
    assert not ledger.hear(first, 0.0)
    assert ledger.load(R0) == RemoteLoad(2, 0, 0, 2)
    assert ledger.statistics().num_late == 2


def test_a_restart_takes_the_old_load_away_at_once():
    """And what the old life still says is left alone."""
    ledger = heard(says("a/0", 5, (R0, 4, 0, 0, 4), epoch=1), says("a/0", 0, epoch=2))
    assert ledger.load(R0) == NO_LOAD
    assert not ledger.hear(says("a/0", 6, (R0, 4, 0, 0, 4), epoch=1), 0.0)
    assert ledger.load(R0) == NO_LOAD


def test_a_farewell_takes_the_load_away_at_once():
    """And a message that it overtook does not bring it back."""
    ledger = heard(says("a/0", 0, (R0, 4, 0, 0, 4)), says("a/0", 2, kind=Kind.FAREWELL))
    assert ledger.load(R0) == NO_LOAD
    assert not ledger.hear(says("a/0", 1, (R0, 4, 0, 0, 4)), 0.0)
    assert ledger.load(R0) == NO_LOAD


def test_a_silent_sender_is_forgotten():
    """After `silence_s`, and said so once."""
    ledger = heard(says("a/0", 0, (R0, 4, 0, 0, 4)), at=10.0)
    assert ledger.expire(12.0) == []
    assert ledger.load(R0) == RemoteLoad(4, 0, 0, 4)
    assert ledger.expire(12.01) == ["a/0"]
    assert ledger.load(R0) == NO_LOAD
    assert ledger.expire(12.02) == []


def test_an_old_report_counts_no_more_though_its_sender_speaks():
    """As when the message that took it back, and every snapshot since, were lost."""
    ledger = heard(says("a/0", 0, (R0, 4, 0, 0, 4)), at=10.0)
    ledger.hear(says("a/0", 9, (R1, 1, 0, 0, 1)), 11.5)
    assert ledger.expire(12.5) == []
    assert ledger.load(R0) == NO_LOAD
    assert ledger.load(R1) == RemoteLoad(1, 0, 0, 1)


def test_own_messages_are_left_alone():
    """A peer list may name this gateway too."""
    ledger = heard(says("me/0", 0, (R0, 4, 0, 0, 4)))
    assert ledger.load(R0) == NO_LOAD
    assert ledger.statistics().num_own == 1


def test_senders_are_bounded():
    """Whoever holds the key may still be broken."""
    ledger = heard()
    for index in range(MAX_SENDERS + 3):
        ledger.hear(says(f"a/{index}", 0, (R0, 1, 0, 0, 1)), 0.0)
    assert ledger.load(R0).in_flight == MAX_SENDERS
    assert ledger.statistics().num_refused == 3
    assert not ledger.hear(says("another/0", 0, (R0, 1, 0, 0, 1)), 0.0)
    ledger.expire(10.0)
    assert ledger.hear(says("another/0", 0, (R0, 1, 0, 0, 1)), 10.0)


def test_only_replicas_that_changed_are_named():
    """Applying the rest would be for nothing."""
    ledger = heard(says("a/0", 0, (R0, 1, 0, 0, 1)))
    assert ledger.take_changed() == {R0}
    assert ledger.take_changed() == set()
    ledger.expire(10.0)
    assert ledger.take_changed() == {R0}


class NaiveLedger:
    """All facts in one list; whoever asks looks through all of them."""

    def __init__(self):
        self.heads = {}  # sender -> (epoch, number, heard_at)
        self.facts = []  # (sender, replica, told_at, counts)

    def hear(self, batch, now):
        if batch.sender == "me/0":
            return False
        epoch, number, _ = self.heads.get(batch.sender, (-1, -1, 0.0))
        if (batch.epoch, batch.number) <= (epoch, number):
            return False
        if batch.epoch > epoch or batch.kind is not Kind.CHANGES:
            self.facts = [fact for fact in self.facts if fact[0] != batch.sender]
        self.heads[batch.sender] = (batch.epoch, batch.number, now)
        for report in batch.loads:
            counts = (
                report.in_flight,
                report.num_pending,
                report.pending_tokens,
                report.active_tokens,
            )
            self.facts = [fact for fact in self.facts if fact[:2] != (batch.sender, report.replica)]
            self.facts.append((batch.sender, report.replica, now, counts))
        return True

    def expire(self, now):
        silent = {name for name, head in self.heads.items() if head[2] < now - SILENCE_S}
        self.heads = {name: head for name, head in self.heads.items() if name not in silent}
        self.facts = [fact for fact in self.facts if fact[2] >= now - SILENCE_S]
        return silent

    def load(self, replica):
        rows = [fact[3] for fact in self.facts if fact[1] == replica]
        return RemoteLoad(*map(sum, zip(*rows, strict=True))) if rows else NO_LOAD


class LedgerMachine(RuleBasedStateMachine):
    """Messages are lost, doubled, overtaken and held back; senders restart, leave and vanish."""

    @initialize()
    def start(self):
        self.ledger = RemoteLedger("me/0", SILENCE_S)
        self.naive = NaiveLedger()
        self.now = 100.0
        self.lives = dict.fromkeys((*SENDERS, "me/0"), (1, 0))
        self.on_the_way = []

    def say(self, sender, loads, kind):
        epoch, number = self.lives[sender]
        self.lives[sender] = (epoch, number + 1)
        batch = says(sender, number, *loads, epoch=epoch, kind=kind)
        self.on_the_way.append(batch)

    @rule(
        sender=st.sampled_from((*SENDERS, "me/0")),
        loads=st.dictionaries(
            st.sampled_from(REPLICAS),
            st.tuples(*[st.integers(0, 3)] * 4),
        ),
        kind=st.sampled_from([Kind.CHANGES, Kind.CHANGES, Kind.SNAPSHOT]),
    )
    def speak(self, sender, loads, kind):
        self.say(sender, [(replica, *counts) for replica, counts in loads.items()], kind)

    @rule(sender=st.sampled_from(SENDERS))
    def leave(self, sender):
        self.say(sender, [], Kind.FAREWELL)

    @rule(sender=st.sampled_from(SENDERS))
    def restart(self, sender):
        self.lives[sender] = (self.lives[sender][0] + 1, 0)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data(), stays=st.booleans())
    def deliver(self, data, stays):
        at = data.draw(st.integers(0, len(self.on_the_way) - 1))
        batch = self.on_the_way[at] if stays else self.on_the_way.pop(at)
        assert self.ledger.hear(batch, self.now) == self.naive.hear(batch, self.now)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def lose(self, data):
        del self.on_the_way[data.draw(st.integers(0, len(self.on_the_way) - 1))]

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.5]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        assert set(self.ledger.expire(self.now)) == self.naive.expire(self.now)

    @rule()
    def all_fall_silent(self):
        """Nothing is left behind, whatever went before."""
        self.now += SILENCE_S + 0.01
        self.expire()
        assert all(self.ledger.load(replica) == NO_LOAD for replica in REPLICAS)
        assert self.ledger.senders == ()

    @invariant()
    def agrees(self):
        if not hasattr(self, "ledger"):
            return
        self.ledger.check_integrity()
        assert set(self.ledger.senders) == set(self.naive.heads)
        for replica in REPLICAS:
            load = self.ledger.load(replica)
            assert load == self.naive.load(replica)
            assert min(load.in_flight, load.num_pending, load.pending_tokens) >= 0


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=60, stateful_step_count=40)
