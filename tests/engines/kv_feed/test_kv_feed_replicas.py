"""Which replicas are fed, from where, and what they can hold."""

import asyncio
import json

from kv_publishers import BLOCK_SIZE, FedEngine, ScriptedPublisher, eventually, names, store
from kv_publishers import wire_store as stored

from headstart.engines.kv_feed.config import KvEventsConfig
from headstart.engines.kv_feed.feed import KvFeed
from headstart.prefix.stream import StreamStanding
from headstart.wire.kv_events import StoredBlocks


def only(feed):
    (replica,) = feed.statistics()
    return replica


async def test_the_metrics_page_says_what_a_replica_can_hold(engine, sink, start_feed):
    """Also one that publishes no events: the approximate index is bounded by it."""
    engine.sources = None
    feed = start_feed(engine.replica())
    await eventually(lambda: sink.capacities.get(0) == [(20 * BLOCK_SIZE, BLOCK_SIZE)])
    await eventually(lambda: only(feed).trouble == "it publishes no KV events")
    assert only(feed).streams == ()


async def test_a_page_without_figures_means_unknown(engine, sink, start_feed):
    """Unknown is told as such, and asked for again only as often as anything else."""
    engine.metrics = b"# nothing\n"
    feed = start_feed(engine.replica())
    await eventually(lambda: only(feed).capacity is not None)
    assert sink.capacities[0] == [(None, None)]


async def test_an_engine_that_does_not_answer_is_asked_until_it_does(
    engine, sink, start_feed, publishers
):
    """A replica may start after the gateway."""
    engine.is_up = False
    engine.sources = publishers().sources
    feed = start_feed(engine.replica())
    await eventually(lambda: engine.asked.count("/metrics") > 1)
    await eventually(lambda: "does not answer" in only(feed).trouble)
    engine.is_up = True
    await eventually(sink.is_complete)
    await eventually(lambda: 0 in sink.capacities)
    assert only(feed).trouble == ""


async def test_a_replica_that_came_back_is_asked_anew(engine, sink, start_feed):
    """It may have been started with another cache."""
    feed = start_feed(engine.replica())
    await eventually(lambda: 0 in sink.capacities)
    engine.metrics = engine.metrics.replace(b'num_gpu_blocks="20"', b'num_gpu_blocks="30"')
    feed.came_back(0)
    await eventually(lambda: sink.capacities[0][-1] == (30 * BLOCK_SIZE, BLOCK_SIZE))


async def test_an_engine_cannot_send_us_elsewhere(engine, sink, start_feed):
    """A publisher on another host is refused, and the reason shown."""
    source = {"data_parallel_rank": 0, "endpoint": "tcp://192.0.2.1:5557", "topic": ""}
    engine.sources = [source]
    feed = start_feed(engine.replica())
    await eventually(lambda: "not on the replica's own host" in only(feed).trouble)
    assert sink.standings == {}


async def test_the_operators_word_is_not_checked_with_the_engine(
    engine, sink, start_feed, publishers
):
    """Publishers that were configured are read although the engine knows of none."""
    source = publishers().sources[0]
    engine.sources = None
    events = KvEventsConfig(source["endpoint"], source["replay_endpoint"])
    start_feed(engine.replica(kind="openai-compatible", events=events))
    await eventually(sink.is_complete)
    assert "/kv_event_sources" not in engine.asked


async def test_a_provider_is_asked_nothing(engine, sink, start_feed):
    """Its cache is not ours to look into."""
    feed = start_feed(engine.replica(kind="openai"))
    assert feed.statistics() == []


async def test_sglang_is_read_by_its_own_description(engine, sink, start_feed, scripted):
    """Base ports, a replay endpoint in its arguments, signed hashes, replays without topic."""
    scripted.has_topic_frame = False
    signed = StoredBlocks((-5,), None, (1, 2, 3, 4), BLOCK_SIZE, medium="GPU")
    await scripted.send(0, signed)
    source = scripted.sources[0]
    engine.server_info = {
        "kv_events": {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": int(source["endpoint"].rpartition(":")[2]),
            "topic": "kv",
            "block_size": BLOCK_SIZE,
            "dp_size": 1,
        },
        "kv_events_config": json.dumps(
            {"publisher": "zmq", "replay_endpoint": source["replay_endpoint"]}
        ),
    }
    engine.metrics = b"sglang:max_total_num_tokens 80.0\nsglang:page_size 4.0\n"
    start_feed(engine.replica(kind="sglang"))
    await eventually(lambda: sink.is_complete() and sink.holds({-5}))
    await eventually(lambda: sink.capacities.get(0) == [(80, 4)])


async def test_every_rank_has_a_stream_of_its_own(engine, sink, start_feed, publishers):
    """One that is not heard of yet is known all the same."""
    ranks = [publishers().sources[0] | {"data_parallel_rank": rank} for rank in range(2)]
    nobody = {"data_parallel_rank": 2, "endpoint": "tcp://127.0.0.1:9", "topic": ""}
    engine.sources = [*ranks, nobody]
    feed = start_feed(engine.replica(slot=3))
    await eventually(lambda: sink.is_complete(3, 0) and sink.is_complete(3, 1))
    assert sink.standings[3, 2] is StreamStanding.WAITING
    streams = only(feed).streams
    assert [each.rank for each in streams] == [0, 1, 2]
    assert [each.is_connected for each in streams] == [True, True, False]


async def test_replicas_come_and_go(engine, sink, start_feed, publishers):
    """The index of one that leaves is forgotten, and the others are not disturbed."""
    publisher = publishers()
    engine.sources = publisher.sources
    feed = start_feed(engine.replica())
    await eventually(sink.is_complete)
    other, other_publisher = FedEngine(), publishers()
    await other.start()
    other.sources = other_publisher.sources
    feed.add(other.replica("r1", slot=1))
    other_publisher.publish([store(1)])
    await eventually(lambda: sink.is_complete(1) and sink.holds(names(1), slot=1))
    feed.remove(1)
    assert (1, 0) not in sink.standings
    feed.remove(99)
    publisher.publish([store(2)])
    await eventually(lambda: sink.holds(names(2)))
    assert sink.num_resets == 0
    await other.stop()


async def test_a_publisher_that_is_no_longer_named_is_left(engine, sink, start_feed, publishers):
    """An engine may come back without events."""
    engine.sources = publishers().sources
    feed = start_feed(engine.replica())
    await eventually(sink.is_complete)
    engine.sources = []
    feed.came_back(3)
    await eventually(lambda: sink.standings == {})
    assert only(feed).streams == ()


async def test_a_fault_of_the_sink_does_not_end_the_feed(engine, sink, start_feed, publishers):
    """It begins anew with an empty stream; the gateway goes on serving."""
    publisher = publishers()
    publisher.publish([store(1)])
    engine.sources = publisher.sources
    apply, faults = sink.stream_batches, iter([ZeroDivisionError()])

    def fail_once(*args):
        for error in faults:
            raise error
        apply(*args)

    sink.stream_batches = fail_once
    start_feed(engine.replica())
    await eventually(lambda: sink.is_complete() and sink.holds(names(1)))


async def test_statistics_count_batches_and_blocks(engine, sink, start_feed):
    """What was applied, how far it is, and how long it took to come."""
    publisher = ScriptedPublisher()
    await publisher.send(0, stored(1, 2, 3))
    engine.sources = publisher.sources
    feed = start_feed(engine.replica())
    await publisher.subscribed()
    await eventually(sink.is_complete)
    await publisher.send(1, stored(4))
    await eventually(lambda: only(feed).streams[0].last_seq == 1)
    stream = only(feed).streams[0]
    assert (stream.batches, stream.blocks, stream.replays) == (2, 4, 1)
    assert stream.lag_s > 0
    assert stream.standing is StreamStanding.COMPLETE
    await publisher.close()


async def test_closing_leaves_nothing_open(engine, sink, publishers):
    """No task, no descriptor watched, also while an engine is being asked."""
    engine.sources = publishers().sources
    before = asyncio.all_tasks()
    for _ in range(3):
        feed = KvFeed(sink)
        feed.start([engine.replica()])
        await eventually(sink.is_complete)
        await feed.close()
        assert sink.standings == {}
        hasty = KvFeed(sink)
        hasty.start([engine.replica()])
        await hasty.close()
    assert not {task for task in asyncio.all_tasks() - before if "kv " in task.get_name()}
