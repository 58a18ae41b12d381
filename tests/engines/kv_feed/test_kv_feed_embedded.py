"""A whole embedded engine, and what the feed makes of it."""

import asyncio

import aiohttp
import pytest
from kv_publishers import ANY, eventually

from headstart.clock import SystemClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.embedded.kv_publisher import KvEventsConfig
from headstart.engines.embedded.server import EngineServer
from headstart.engines.embedded.settings import EngineSettings
from headstart.engines.kv_feed.replica_feed import FedReplica
from headstart.engines.origin import Origin
from headstart.prefix.trust_mode import TrustMode
from headstart.prefix.view import PrefixView
from headstart.prompt.fingerprint import NO_KEYS
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root

BLOCK_SIZE = 4
NUM_BLOCKS = 24


@pytest.fixture
async def server(tiny_gguf):
    """An engine with so few blocks that it evicts."""
    settings = EngineSettings(
        model_path=tiny_gguf,
        model_name="tiny",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        kv_events=KvEventsConfig(ANY, ANY, topic="kv"),
    )
    server = EngineServer(settings, SystemClock())
    await server.start()
    yield server
    hurry = asyncio.Event()
    hurry.set()
    await server.stop(hurry)


@pytest.fixture
def replica(server):
    config = ReplicaConfig("r0", server.url, "embedded")
    return FedReplica("r0", 0, "embedded", Origin(config, strips_credentials=False))


@pytest.fixture
async def complete(server):
    """Have a prompt of token ids answered; returns how many of them were cached."""
    async with aiohttp.ClientSession() as session:

        async def ask(token_ids):
            body = {"model": "tiny", "prompt": token_ids, "max_tokens": 4}
            async with session.post(f"{server.url}/v1/completions", json=body) as response:
                usage = (await response.json())["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        yield ask


async def test_the_feeds_index_is_what_the_engine_holds(
    server, replica, complete, sink, start_feed
):
    """Block by block, with evictions, for answers before and after the feed came."""
    for number in range(4):
        await complete(list(range(number, number + 30)))
    start_feed(replica)
    await eventually(sink.is_complete)
    for number in range(4, 10):
        await complete(list(range(number, number + 30)))
    held = server.engine.statistics().num_cached_blocks
    await eventually(lambda: len(sink.held[0, 0]) == held)
    assert 0 < held <= NUM_BLOCKS
    assert server.engine.statistics().evicted_blocks > 0
    await eventually(lambda: sink.capacities.get(0) == [(NUM_BLOCKS * BLOCK_SIZE, BLOCK_SIZE)])


async def test_what_the_view_predicts_is_what_the_engine_finds(
    server, replica, complete, start_feed
):
    """To the token, once the events of the answer before have come."""
    view = PrefixView()
    view.add_replica(0, "r0")
    view.tokens_agree(0, True, 0.0)
    feed = start_feed(replica, to=view)
    await eventually(lambda: view.mode(0) is TrustMode.PRECISE)
    now = SystemClock().monotonic
    hits = 0
    for number in range(40):
        begin = number // 3 % 4  # Prefixes come back, some of them after they were evicted.
        token_ids = [begin] * 13 + list(range(number % 3, number % 3 + 20))
        keys = block_keys(token_ids, BLOCK_SIZE, block_root("", ""))
        tokens = TokenPrompt(len(token_ids), {BLOCK_SIZE: keys})
        await eventually(lambda: is_level(feed, server))
        (predicted,) = view.match(NO_KEYS, tokens, [0], now())
        assert predicted == await complete(token_ids)
        hits += predicted > 0
    assert hits > 10
    assert server.engine.statistics().evicted_blocks > 0
    view.check_integrity()


def is_level(feed, server):
    """Nothing is left to be published, and what was published was applied."""
    if server.engine._pool._events:
        return False
    num_published = server._publisher._next_seq
    return feed.statistics()[0].streams[0].batches == num_published
