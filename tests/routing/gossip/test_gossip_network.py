"""Several processes over a network that loses, doubles and overtakes, without a socket."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip_sides import HeardIndex, Requests, own, prompt_of, remote
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from headstart.routing.gossip.index import RemoteIndex
from headstart.routing.gossip.ledger import RemoteLedger
from headstart.routing.gossip.outbox import Outbox
from headstart.routing.gossip.roster import Roster
from headstart.routing.load import RemoteLoad
from headstart.routing.replica import Replica
from headstart.wire.gossip import decode_gossip, encode_gossip

SILENCE_S = 2.0
IDS = (b"replica0", b"replica1", b"replica2")


class Process:
    """One gateway process: its replicas, what it tells and what it has heard."""

    def __init__(self, name, epoch=1):
        self.name, self.epoch = name, epoch
        # Slots differ from process to process.
        shift = len(name)
        self.replicas = [Replica(f"r{i}", slot=(i + shift) % 7) for i in range(len(IDS))]
        self.roster = Roster()
        for replica, its_id in zip(self.replicas, IDS, strict=True):
            self.roster.add(replica, its_id)
        self.index = HeardIndex()
        self.ledger = RemoteLedger(name, SILENCE_S)
        self.remote_index = RemoteIndex(self.index, self.slot_of)
        self.outbox = Outbox(name, epoch, self.roster, lambda: None)
        self.requests = Requests(self.outbox)
        self.open = []

    def slot_of(self, its_id):
        replica = self.roster.replica_of(its_id)
        return None if replica is None else replica.slot

    def hear(self, message, now):
        batch = decode_gossip(message)
        if self.ledger.hear(batch, now):
            for prompt in batch.sent:
                self.remote_index.sent(batch, prompt, now)
            for number in batch.computed:
                self.remote_index.computed(batch, number, now)
            for outcome in batch.outcomes:
                self.remote_index.came_back(batch, outcome, now)
        self.settle(now)

    def settle(self, now):
        self.ledger.expire(now)
        for its_id in self.ledger.take_changed():
            replica = self.roster.replica_of(its_id)
            replica.load.set_remote("peers", self.ledger.load(its_id), now)

    def check(self):
        self.ledger.check_integrity()
        self.outbox.check_integrity()
        self.remote_index.check_integrity()
        for replica in self.replicas:
            assert min(replica.load.in_flight, replica.load.pending_tokens) >= 0


def others_own(processes, process, index):
    """What the others really have open on a replica."""
    return own(*(other.replicas[index] for other in processes if other is not process))


def live_a_little(process, rng):
    """One thing happens to one request of `process`."""
    if rng.random() < 0.5 or not process.open:
        replica = rng.choice(process.replicas)
        prompt = prompt_of(f"{process.name}{rng.random()}", rng.randrange(4))
        process.open.append(process.requests.send(replica, prompt, uncached=1 + rng.randrange(100)))
        return
    dispatch = rng.choice(process.open)
    if dispatch.first_at is None and rng.random() < 0.5:
        process.requests.first_token(dispatch)
        return
    process.open.remove(dispatch)
    if rng.random() < 0.7:
        process.requests.answer(dispatch, (100, 50, 10))
    else:
        process.requests.end(dispatch)


def tell(process, rng, network):
    batch = process.outbox.take_snapshot() if rng.random() < 0.2 else process.outbox.take_changes()
    if batch is not None:
        network.append(encode_gossip(batch))


def transmit(processes, network, rng, now):
    """Each message reaches each process not at all, once or twice, in any order."""
    for process in processes:
        heard = [message for message in network for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        rng.shuffle(heard)
        for message in heard:
            process.hear(message, now)
            process.check()
    network.clear()


@given(st.integers(0, 2**32))
def test_after_any_trouble_one_snapshot_each_makes_loads_exact(seed):
    """Loss, doubling, reordering and restarts leave nothing behind, and nothing is missing."""
    rng = random.Random(seed)
    processes = [Process(f"host/{index}") for index in range(3)]
    network, now = [], 0.0
    for _ in range(rng.randrange(80)):
        index = rng.randrange(3)
        live_a_little(processes[index], rng)
        if rng.random() < 0.5:
            tell(processes[index], rng, network)
        if rng.random() < 0.2:
            transmit(processes, network, rng, now)
        if rng.random() < 0.05:
            died = processes[index]
            processes[index] = Process(died.name, died.epoch + 1)
        now += rng.random() * 0.1
    network.clear()
    snapshots = [encode_gossip(process.outbox.take_snapshot()) for process in processes]
    for process in processes:
        for message in snapshots:
            process.hear(message, now)
        process.check()
        for index, replica in enumerate(process.replicas):
            assert remote(replica) == others_own(processes, process, index)


@given(st.integers(0, 2**32))
def test_without_loss_every_change_is_exact_at_once(seed):
    """No snapshot is needed for it."""
    rng = random.Random(seed)
    processes = [Process(f"host/{index}") for index in range(2)]
    for _ in range(60):
        live_a_little(rng.choice(processes), rng)
        for process in processes:
            batch = process.outbox.take_changes()
            if batch is not None:
                for other in processes:
                    other.hear(encode_gossip(batch), 0.0)
        for process in processes:
            process.check()
            for index, replica in enumerate(process.replicas):
                assert remote(replica) == others_own(processes, process, index)


@pytest.mark.parametrize("usage", [(300, 128, 5), (None, None, None)])
def test_a_prompt_and_its_answer_reach_the_others_index(usage):
    """With the slot that the replica has there, and what the engine reported."""
    a, b = Process("a/0"), Process("host-b/0")
    prompt = prompt_of("hello")
    dispatch = a.requests.send(a.replicas[1], prompt, matched=64)
    b.hear(encode_gossip(a.outbox.take_changes()), 0.0)
    a.requests.first_token(dispatch)
    a.requests.answer(dispatch, usage)
    b.hear(encode_gossip(a.outbox.take_changes()), 0.0)
    slot = b.replicas[1].slot
    assert slot != a.replicas[1].slot
    assert b.index.heard == [
        ("dispatched", slot, prompt),
        ("computed", slot, prompt),
        ("answered", slot, prompt, 64, *usage),
    ]


def test_a_request_that_is_over_within_one_batch_is_told_whole():
    """Dispatch and outcome travel together."""
    a, b = Process("a/0"), Process("b/0")
    dispatch = a.requests.send(a.replicas[0], prompt_of("hello"))
    a.requests.answer(dispatch)
    b.hear(encode_gossip(a.outbox.take_changes()), 0.0)
    assert [what for what, *_ in b.index.heard] == ["dispatched", "answered"]
    assert remote(b.replicas[0]) == RemoteLoad()


@pytest.mark.parametrize(
    ("token_came", "what"), [(False, ["failed"]), (True, ["computed", "answered"])]
)
def test_a_request_that_broke_off_is_told_as_what_it_was(token_came, what):
    """Once a token was seen the prompt has been computed."""
    a, b = Process("a/0"), Process("b/0")
    dispatch = a.requests.send(a.replicas[0], prompt_of("hello"))
    if token_came:
        a.requests.first_token(dispatch)
    a.requests.end(dispatch)
    b.hear(encode_gossip(a.outbox.take_changes()), 0.0)
    assert [heard[0] for heard in b.index.heard] == ["dispatched", *what]


def test_an_outcome_without_its_prompt_teaches_nothing():
    """As when the message that had the prompt was lost."""
    a, b = Process("a/0"), Process("b/0")
    dispatch = a.requests.send(a.replicas[0], prompt_of("hello"))
    a.outbox.take_changes()
    a.requests.answer(dispatch)
    b.hear(encode_gossip(a.outbox.take_changes()), 0.0)
    assert b.index.heard == []
    assert b.remote_index.num_forgotten == 1


def test_an_outcome_of_an_earlier_life_is_not_taken_for_one_of_this():
    """Numbers begin anew, and prompts of both lives may wait."""
    b = Process("b/0")
    old, new = Process("a/0", epoch=1), Process("a/0", epoch=2)
    old.requests.send(old.replicas[0], prompt_of("old"))
    b.hear(encode_gossip(old.outbox.take_changes()), 0.0)
    dispatch = new.requests.send(new.replicas[0], prompt_of("new"))
    new.outbox.take_changes()  # lost
    new.requests.answer(dispatch)
    b.hear(encode_gossip(new.outbox.take_changes()), 0.0)
    assert [heard[0] for heard in b.index.heard] == ["dispatched"]


def test_a_replica_that_only_one_of_them_knows_is_left_out():
    """Gateways of different configurations may be peers; what they share is told."""
    a, b = Process("a/0"), Process("b/0")
    b.roster.remove(b.replicas[0])
    known = [a.requests.send(replica, prompt_of("x")) for replica in a.replicas[:2]]
    b.roster.add(Replica("r0"), b"replicaX")
    batch = a.outbox.take_changes()
    assert b.ledger.hear(decode_gossip(encode_gossip(batch)), 0.0)
    for prompt in batch.sent:
        b.remote_index.sent(batch, prompt, 0.0)
    assert [heard[1] for heard in b.index.heard] == [b.replicas[1].slot]
    assert b.remote_index.num_strange == 1
    assert len(known) == 2


def test_a_slot_that_was_given_away_is_not_taught_the_old_replicas_answer():
    """The replica is asked for again when the outcome comes."""
    a, b = Process("a/0"), Process("b/0")
    dispatch = a.requests.send(a.replicas[0], prompt_of("x"))
    b.hear(encode_gossip(a.outbox.take_changes()), 0.0)
    b.roster.remove(b.replicas[0])
    b.roster.add(Replica("new", slot=b.replicas[0].slot), b"replicaN")
    a.requests.answer(dispatch)
    batch = a.outbox.take_changes()
    b.remote_index.came_back(batch, batch.outcomes[0], 0.0)
    assert [heard[0] for heard in b.index.heard] == ["dispatched"]


def test_of_tokens_those_that_the_replica_must_compute_are_told():
    """What it holds is in everybody's index; answer and dispatch come with the same object."""
    a, b = Process("a/0"), Process("b/0")
    keys = block_keys(range(100), 16, block_root("", ""))
    tokens = TokenPrompt(100, {16: keys, 32: keys[1::2]})
    dispatch = a.requests.send(a.replicas[0], matched=40, tokens=tokens)
    b.hear(encode_gossip(a.outbox.take_changes()), 0.0)
    assert b.index.tokens == [TokenPrompt(100, {16: keys[2:], 32: keys[3::2]})]
    a.requests.answer(dispatch)
    b.hear(encode_gossip(a.outbox.take_changes()), 0.0)
    assert [what for what, *_ in b.index.heard] == ["dispatched", "answered"]
