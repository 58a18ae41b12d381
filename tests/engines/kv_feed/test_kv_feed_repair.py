"""The feed keeps an index true to its publisher, whatever the network and the publisher do."""

import asyncio
import contextlib

import pytest
from kv_publishers import (
    Churn,
    eventually,
    names,
    store,
    wire_store,
)

from headstart.engines.kv_feed.config import KvFeedConfig
from headstart.prefix.stream import StreamFault, StreamStanding
from headstart.wire.kv_events import RemovedBlocks, encode_sequence
from severed_link import SeveredLink


async def test_what_is_published_is_applied_in_order(engine, sink, start_feed, publishers):
    """Stores, removals and clears leave exactly what the engine holds."""
    publisher, churn = publishers(), Churn()
    engine.sources = publisher.sources
    start_feed(engine.replica())
    await eventually(sink.is_complete)
    for _ in range(300):
        publisher.publish(churn.step())
    await eventually(lambda: sink.num_batches == 300)
    assert sink.holds(churn.names)


async def test_a_late_feed_learns_the_past_by_replay(engine, sink, start_feed, publishers):
    """A gateway that starts after its engines knows what they hold all the same."""
    publisher, churn = publishers(), Churn()
    for _ in range(200):
        publisher.publish(churn.step())
    engine.sources = publisher.sources
    start_feed(engine.replica())
    await eventually(lambda: sink.is_complete() and sink.num_batches == 200)
    assert sink.holds(churn.names)


async def test_a_past_that_is_no_longer_kept_makes_a_partial_index(
    engine, sink, start_feed, publishers
):
    """It may know too little, never too much."""
    publisher = publishers(buffer_steps=3)
    for number in range(10):
        publisher.publish([store(number)])
    engine.sources = publisher.sources
    start_feed(engine.replica())
    await eventually(lambda: sink.standings.get((0, 0)) is StreamStanding.PARTIAL)
    assert sink.holds(names(7, 8, 9))


async def test_a_gap_is_closed_by_replay(engine, sink, start_feed, scripted):
    """The batch after a lost one is held back until the lost one was replayed."""
    await scripted.send(0, wire_store(0))
    engine.sources = scripted.sources
    feed = start_feed(engine.replica())
    await scripted.subscribed()
    await eventually(sink.is_complete)
    await scripted.send(1, wire_store(1))
    scripted.keep(2, RemovedBlocks(tuple(names(0))))
    await scripted.send(3, wire_store(3))
    await eventually(lambda: sink.holds(names(1, 3)))
    assert sink.faults == [StreamFault.GAP]
    assert sink.is_complete()
    (replica,) = feed.statistics()
    assert (replica.streams[0].gaps, replica.streams[0].replays) == (1, 2)
    assert replica.streams[0].last_seq == 3


async def test_the_last_batches_before_a_pause_are_not_lost(engine, sink, start_feed, scripted):
    """No later number shows that they are missing, so the publisher is asked."""
    await scripted.send(0, wire_store(0))
    engine.sources = scripted.sources
    start_feed(engine.replica(), silence_s=0.02)
    await eventually(sink.is_complete)
    scripted.keep(1, wire_store(1))
    await eventually(lambda: sink.holds(names(0, 1)))
    assert sink.is_complete()


async def test_a_cut_is_noticed_and_repaired(engine, sink, start_feed, publishers):
    """What was published meanwhile comes by replay, without a reset."""
    publisher, churn = publishers(), Churn()
    async with severed(engine, publisher) as link:
        start_feed(engine.replica())
        await eventually(sink.is_complete)
        for _ in range(50):
            publisher.publish(churn.step())
        await eventually(lambda: sink.holds(churn.names))
        await link.cut()
        await eventually(lambda: sink.standings[0, 0] is StreamStanding.LOST)
        for _ in range(50):
            publisher.publish(churn.step())
        await link.mend()
        await eventually(lambda: sink.is_complete() and sink.holds(churn.names))
    assert sink.num_resets == 0
    assert sink.num_batches == 100


async def test_a_connection_that_falls_silent_is_cut(engine, sink, start_feed, publishers):
    """Nobody announces that a cable was pulled, so the connection has a heartbeat."""
    publisher = publishers()
    async with severed(engine, publisher) as link:
        start_feed(engine.replica(), heartbeat_s=0.05)
        await eventually(sink.is_complete)
        link.hold()
        await eventually(lambda: sink.standings[0, 0] is StreamStanding.LOST)
        link.release()
        await eventually(sink.is_complete)


def test_a_silent_connection_is_noticed_within_two_seconds():
    """A ping goes out after one interval, and two more without an answer end the connection."""
    assert 3 * KvFeedConfig().heartbeat_s < 2.0


async def test_a_restarted_publisher_is_read_from_its_beginning(
    engine, sink, start_feed, publishers
):
    """Its numbers begin anew, and nothing of the old cache is left."""
    old, churn = publishers(), Churn(seed=1)
    engine.sources = old.sources
    start_feed(engine.replica())
    for _ in range(20):
        old.publish([store(1000)])
    await eventually(lambda: sink.is_complete() and sink.num_batches == 20)
    ports = [engine.sources[0]["endpoint"], engine.sources[0]["replay_endpoint"]]
    old.close()
    await eventually(lambda: sink.standings[0, 0] is StreamStanding.LOST)
    new = publishers(*ports)
    for _ in range(100):
        new.publish(churn.step())
    await eventually(lambda: sink.is_complete() and sink.holds(churn.names))
    assert StreamFault.RESTART in sink.faults


async def test_a_publisher_that_moved_is_found_again(engine, sink, start_feed, publishers):
    """A restarted engine may publish elsewhere; it is asked when the connection is lost."""
    old, churn = publishers(), Churn(seed=2)
    engine.sources = old.sources
    start_feed(engine.replica())
    old.publish([store(1000)])
    await eventually(lambda: sink.holds(names(1000)))
    new = publishers()
    engine.sources = new.sources
    old.close()
    for _ in range(100):
        new.publish(churn.step())
    await eventually(lambda: sink.is_complete() and sink.holds(churn.names))


async def test_a_payload_that_cannot_be_read_resets_the_index(engine, sink, start_feed, scripted):
    """What it said is unknown, so nothing from before it is believed."""
    await scripted.send(0, wire_store(0))
    engine.sources = scripted.sources
    feed = start_feed(engine.replica())
    await scripted.subscribed()
    await eventually(sink.is_complete)
    await scripted.send_raw(b"kv", encode_sequence(1), b"\xc1 not msgpack")
    scripted.kept[1] = b"\xc1 not msgpack"
    await scripted.send(2, wire_store(2))
    await eventually(lambda: sink.holds(names(2)))
    assert not sink.is_complete()
    assert StreamFault.UNDECODABLE in sink.faults
    assert feed.statistics()[0].streams[0].decode_failures == 1


@pytest.mark.parametrize(
    "frames",
    [
        [b"kv"],
        [b"kv", b"short", b"x"],
        [b"kv", encode_sequence(1)],
        [b"kv", b"\xff" * 8, b""],
        [b"kv", encode_sequence(1), b"x", b"more"],
    ],
)
async def test_a_message_that_is_none_leads_to_a_question(
    engine, sink, start_feed, scripted, frames
):
    """Nobody knows which batch it was; the publisher says what we have not."""
    await scripted.send(0, wire_store(0))
    engine.sources = scripted.sources
    feed = start_feed(engine.replica())
    await scripted.subscribed()
    await eventually(sink.is_complete)
    scripted.keep(1, wire_store(1))
    await scripted.send_raw(*frames)
    await eventually(lambda: sink.holds(names(0, 1)) and sink.is_complete())
    assert feed.statistics()[0].streams[0].decode_failures == 1


async def test_a_replay_that_never_ends_is_given_up_and_tried_again(
    engine, sink, start_feed, scripted
):
    """Its socket may have dropped the end marker; until one comes, the index is not whole."""
    for seq in range(3):
        await scripted.send(seq, wire_store(seq))
    scripted.ends_replays = False
    engine.sources = scripted.sources
    feed = start_feed(engine.replica())
    await eventually(lambda: feed.statistics() and feed.statistics()[0].streams)
    await eventually(lambda: StreamFault.REPLAY_FAILED in sink.faults)
    scripted.ends_replays = True
    await eventually(lambda: sink.is_complete() and sink.holds(names(0, 1, 2)))


async def test_a_replay_endpoint_that_is_dead_leaves_the_live_stream(
    engine, sink, start_feed, scripted
):
    """Then the index knows what came since, and says that it is partial."""
    await scripted.send(0, wire_store(0))
    scripted.answers_replays = False
    engine.sources = scripted.sources
    start_feed(engine.replica())
    await scripted.subscribed()
    await eventually(lambda: StreamFault.REPLAY_FAILED in sink.faults)
    sent = 1
    while not sink.holds(names(*range(1, sent))) or sent == 1:
        await scripted.send(sent, wire_store(sent))
        sent += 1
        await asyncio.sleep(0.01)
    assert not sink.is_complete()


async def test_a_replay_is_continued_where_the_pipe_was_full(engine, sink, start_feed, scripted):
    """A publisher's socket drops what does not fit; what came is progress."""
    for seq in range(40):
        await scripted.send(seq, wire_store(seq))
    scripted.max_replayed = 7
    engine.sources = scripted.sources
    start_feed(engine.replica(), silence_s=0.02)
    await eventually(lambda: sink.holds(names(*range(40))))


async def test_replays_of_older_releases_have_no_topic(engine, sink, start_feed, scripted):
    """SGLang and vLLM before 0.32 send number and payload alone."""
    scripted.has_topic_frame = False
    for seq in range(3):
        await scripted.send(seq, wire_store(seq))
    engine.sources = scripted.sources
    start_feed(engine.replica())
    await eventually(lambda: sink.is_complete() and sink.holds(names(0, 1, 2)))


async def test_without_a_replay_endpoint_the_live_stream_is_read(
    engine, sink, start_feed, publishers
):
    """From the first batch that is heard on."""
    publisher = publishers(replay_endpoint=None)
    engine.sources = publisher.sources
    start_feed(engine.replica())
    number = 0
    while not sink.num_batches:
        publisher.publish([store(number)])
        number += 1
        await asyncio.sleep(0.01)
    await eventually(lambda: sink.num_batches and sink.held[0, 0] >= names(number - 1))


async def test_a_long_replay_lets_others_have_the_loop(engine, sink, start_feed, publishers):
    """With no time for a slice, every batch is followed by a turn of the loop."""
    publisher = publishers()
    # Fewer than a publisher's socket holds: what a slow reader lets it drop is asked for again.
    for number in range(800):
        publisher.publish([store(number)])
    engine.sources = publisher.sources
    most, turns = 0, 0

    async def count():
        nonlocal most, turns
        before = 0
        while True:
            await asyncio.sleep(0)
            turns += 1
            most, before = max(most, sink.num_batches - before), sink.num_batches

    counting = asyncio.create_task(count())
    start_feed(engine.replica(), slice_s=0.0)
    await eventually(lambda: sink.num_batches >= 800)
    counting.cancel()
    assert most <= 2


async def test_rebuilding_begins_with_an_empty_index(engine, sink, start_feed, publishers):
    """Whoever found the index wrong has it made anew."""
    publisher, churn = publishers(), Churn()
    engine.sources = publisher.sources
    feed = start_feed(engine.replica())
    for _ in range(50):
        publisher.publish(churn.step())
    await eventually(lambda: sink.is_complete() and sink.holds(churn.names))
    sink.held[0, 0].add(1)
    feed.rebuild(0)
    await eventually(lambda: sink.is_complete() and sink.holds(churn.names))


@contextlib.asynccontextmanager
async def severed(engine, publisher):
    """A link to `publisher`, which `engine` names instead of it."""
    (source,) = publisher.sources
    async with SeveredLink.to(source["endpoint"], source["replay_endpoint"]) as link:
        endpoint, replay_endpoint = link.endpoints
        engine.sources = [source | {"endpoint": endpoint, "replay_endpoint": replay_endpoint}]
        yield link
