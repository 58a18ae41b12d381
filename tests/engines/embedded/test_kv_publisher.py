"""The publisher's stream and replay, read by real ZMQ sockets as vLLM's subscribers read them."""

import hashlib

import pytest
import zmq

from headstart.clock import VirtualClock
from headstart.engines.embedded.kv_publisher import KvEventPublisher, KvEventsConfig, to_wire
from headstart.errors import ConfigError
from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored
from headstart.types import BlockHash, TokenId
from headstart.wire.kv_events import (
    ClearedBlocks,
    RemovedBlocks,
    StoredBlocks,
    decode_batch,
    decode_sequence,
    encode_sequence,
    integer_block_hash,
)

ANY = "tcp://127.0.0.1:*"


def digest(number: int) -> BlockHash:
    return BlockHash(hashlib.sha256(bytes([number])).digest()[:16])


def stored(number: int, parent: int | None = None, salt: str | None = None) -> BlockStored:
    return BlockStored(
        (digest(number),),
        None if parent is None else digest(parent),
        (TokenId(number), TokenId(number + 1)),
        2,
        salt,
    )


@pytest.fixture
def make_publisher():
    publishers = []

    def make(**overrides):
        config = KvEventsConfig(**{"endpoint": ANY, "replay_endpoint": ANY, **overrides})
        publisher = KvEventPublisher(config, VirtualClock(epoch_s=100.0))
        publisher.start()
        publishers.append(publisher)
        return publisher

    yield make
    for publisher in publishers:
        publisher.close()


@pytest.fixture
def open_socket():
    context = zmq.Context()
    sockets = []

    def open_one(kind):
        sockets.append(context.socket(kind))
        return sockets[-1]

    yield open_one
    for peer in sockets:
        peer.close(linger=0)
    context.term()


def subscribe(open_socket, publisher, topic=""):
    subscriber = open_socket(zmq.SUB)
    subscriber.setsockopt(zmq.RCVTIMEO, 10_000)
    subscriber.setsockopt_string(zmq.SUBSCRIBE, topic)
    subscriber.connect(publisher.sources[0]["endpoint"])
    return subscriber


def first_message(subscriber, publisher, event):
    """Publish until the subscription has reached the publisher; return the first message."""
    while not subscriber.poll(20):
        publisher.publish([event])
    return subscriber.recv_multipart()


def ask_replay(open_socket, publisher, start):
    dealer = open_socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, 10_000)
    dealer.connect(publisher.sources[0]["replay_endpoint"])
    dealer.send_multipart([b"", encode_sequence(start)])
    messages = []
    while True:
        empty, topic, seq, payload = dealer.recv_multipart()
        assert empty == b""
        if decode_sequence(seq) == -1:
            return messages
        messages.append((topic, decode_sequence(seq), decode_batch(payload)))


def test_a_subscriber_reads_topic_sequence_and_batch(make_publisher, open_socket):
    publisher = make_publisher(topic="kv@r1@smol")
    subscriber = subscribe(open_socket, publisher, "kv@r1")
    topic, seq, payload = first_message(subscriber, publisher, stored(1))
    assert topic == b"kv@r1@smol"
    batch = decode_batch(payload)
    assert (batch.ts, batch.data_parallel_rank) == (100.0, 0)
    assert batch.events[0].block_hashes == (integer_block_hash(digest(1)),)
    assert len(seq) == 8


def test_sequence_numbers_follow_each_other(make_publisher, open_socket):
    publisher = make_publisher()
    subscriber = subscribe(open_socket, publisher)
    _, seq, _ = first_message(subscriber, publisher, stored(1))
    seen = [decode_sequence(seq)]
    for number in range(20):
        publisher.publish([stored(number)])
    while len(seen) < 20:
        seen.append(decode_sequence(subscriber.recv_multipart()[1]))
    assert seen == list(range(seen[0], seen[0] + 20))


def test_replay_gives_everything_from_a_number_on_and_then_the_end(make_publisher, open_socket):
    publisher = make_publisher()
    for number in range(10):
        publisher.publish([stored(number)])
    messages = ask_replay(open_socket, publisher, 4)
    assert [seq for _, seq, _ in messages] == [4, 5, 6, 7, 8, 9]
    assert messages[0][2].events[0].token_ids == (4, 5)


def test_a_late_subscriber_closes_its_gap_by_replay(make_publisher, open_socket):
    publisher = make_publisher()
    for number in range(5):
        publisher.publish([stored(number)])
    # Whoever has had a replay knows that what was published before has been sent.
    assert len(ask_replay(open_socket, publisher, 0)) == 5
    subscriber = subscribe(open_socket, publisher)
    _, seq, _ = first_message(subscriber, publisher, AllBlocksCleared())
    first_live = decode_sequence(seq)
    assert first_live >= 5
    replayed = {seq: batch for _, seq, batch in ask_replay(open_socket, publisher, 0)}
    assert list(replayed)[:first_live] == list(range(first_live))
    assert [replayed[seq].events[0].token_ids[0] for seq in range(5)] == [0, 1, 2, 3, 4]


def test_only_the_last_buffer_steps_are_kept(make_publisher, open_socket):
    publisher = make_publisher(buffer_steps=3)
    for number in range(10):
        publisher.publish([stored(number)])
    assert [seq for _, seq, _ in ask_replay(open_socket, publisher, 0)] == [7, 8, 9]


def test_a_malformed_replay_request_is_ignored_and_harms_nobody(make_publisher, open_socket):
    publisher = make_publisher()
    publisher.publish([stored(1)])
    stranger = open_socket(zmq.DEALER)
    stranger.connect(publisher.sources[0]["replay_endpoint"])
    stranger.send_multipart([b"hello"])
    stranger.send_multipart([b"", b"short"])
    assert [seq for _, seq, _ in ask_replay(open_socket, publisher, 0)] == [0]


def test_a_subscriber_that_does_not_read_never_blocks_publishing(make_publisher, open_socket):
    publisher = make_publisher(high_water_mark=2)
    lazy = open_socket(zmq.SUB)
    lazy.set_hwm(1)
    lazy.setsockopt_string(zmq.SUBSCRIBE, "")
    lazy.connect(publisher.sources[0]["endpoint"])
    for number in range(3000):
        publisher.publish([stored(number % 200)])
    seqs = [seq for _, seq, _ in ask_replay(open_socket, publisher, 2990)]
    assert seqs == list(range(2990, 3000))


def test_a_full_queue_drops_the_batch_and_leaves_a_gap_in_the_numbers(open_socket):
    publisher = KvEventPublisher(
        KvEventsConfig(endpoint=ANY, replay_endpoint=ANY, queue_steps=2), VirtualClock()
    )
    for number in range(5):
        publisher.publish([stored(number)])
    assert publisher.num_dropped == 3
    publisher.start()
    try:
        assert [seq for _, seq, _ in ask_replay(open_socket, publisher, 0)] == [0, 1]
        publisher.publish([stored(9)])
        assert [seq for _, seq, _ in ask_replay(open_socket, publisher, 0)] == [0, 1, 5]
    finally:
        publisher.close()


def test_a_step_without_events_takes_no_number(make_publisher, open_socket):
    publisher = make_publisher()
    publisher.publish([])
    publisher.publish([stored(1)])
    assert [seq for _, seq, _ in ask_replay(open_socket, publisher, 0)] == [0]


def test_a_taken_address_is_a_clear_error(make_publisher):
    publisher = make_publisher()
    taken = publisher.sources[0]["endpoint"]
    with pytest.raises(ConfigError, match="cannot be published at"):
        KvEventPublisher(KvEventsConfig(endpoint=taken), VirtualClock()).start()


def test_without_a_replay_endpoint_the_stream_still_works(make_publisher, open_socket):
    publisher = make_publisher(replay_endpoint=None)
    subscriber = subscribe(open_socket, publisher)
    assert first_message(subscriber, publisher, AllBlocksCleared())
    assert publisher.sources[0]["replay_endpoint"] is None


def test_the_salt_stands_on_a_prompts_first_block_only():
    first = to_wire(BlockStored((digest(1), digest(2)), None, (1, 2, 3, 4), 2, "tenant-7"))
    later = to_wire(stored(3, parent=2, salt="tenant-7"))
    assert isinstance(first, StoredBlocks)
    assert isinstance(later, StoredBlocks)
    assert first.extra_keys == (("tenant-7",), None)
    assert later.extra_keys == (None,)
    assert later.parent_block_hash == integer_block_hash(digest(2))


def test_removals_and_clears_have_vllms_shape():
    assert to_wire(BlockRemoved((digest(1),))) == RemovedBlocks(
        (integer_block_hash(digest(1)),), medium="GPU", group_idx=0
    )
    assert to_wire(AllBlocksCleared()) == ClearedBlocks()
