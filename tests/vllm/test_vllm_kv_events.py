"""What a real vLLM publishes of its cache, and whether our index then says what it holds."""

import asyncio
import json
import os
import random
import time

import pytest
from vllm_replica import BLOCK_SIZE, MODEL_NAME, VllmReplica, free_port, running
from vllm_requests import ask

from headstart.engines.base import ReplicaConfig
from headstart.engines.kv_feed.config import KvEventsConfig
from headstart.engines.kv_feed.feed import KvFeed
from headstart.engines.kv_feed.replica_feed import FedReplica
from headstart.engines.origin import Origin
from headstart.prefix.trust_mode import TrustMode
from headstart.prefix.view import PrefixView
from headstart.prompt.fingerprint import NO_KEYS
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from severed_link import SeveredLink

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("long_run")]

NUM_BLOCKS = 140
"""Three prompts of 1,500 tokens fill them."""

NOTICED_S = 2.0
"""The longest that a cut stream may be believed."""


@pytest.fixture(scope="module")
def engine(long_run, vllm_home, tmp_path_factory):
    """One engine with a small cache, whose events are published."""
    ports = free_port(), free_port()
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports[0]}",
        "replay_endpoint": f"tcp://*:{ports[1]}",
        "topic": "kv@r0@smol",
    }
    core = max(os.sched_getaffinity(0))
    flags = ["--num-gpu-blocks-override", str(NUM_BLOCKS), "--kv-events-config", json.dumps(events)]
    engine = VllmReplica(vllm_home, tmp_path_factory.mktemp("vllm"), core, "events", *flags)
    engine.events = KvEventsConfig(
        f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}", "kv@r0@smol"
    )
    with running([engine]):
        yield engine


class Fed:
    """An index that one engine feeds, and requests whose hits it predicts."""

    def __init__(self, engine, session, events=None):
        self.view = PrefixView()
        self.view.add_replica(0, engine.name)
        self.view.tokens_agree(0, True, time.monotonic())
        self.feed = KvFeed(self.view)
        origin = Origin(ReplicaConfig(engine.name, engine.url, "vllm"), strips_credentials=True)
        self.feed.start([FedReplica(engine.name, 0, "vllm", origin, events)])
        self._engine = engine
        self._session = session

    async def __aenter__(self):
        await self.reaches(TrustMode.PRECISE)
        return self

    async def __aexit__(self, *_):
        await self.feed.close()
        self.view.check_integrity()

    async def reaches(self, mode, within_s=60.0):
        async with asyncio.timeout(within_s):
            while self.view.mode(0) is not mode:
                await asyncio.sleep(0.01)

    def predict(self, token_ids, salt=None):
        """Return how many of a prompt's tokens are held, as far as the index knows."""
        keys = block_keys(token_ids, BLOCK_SIZE, block_root("", salt or ""))
        tokens = TokenPrompt(len(token_ids), {BLOCK_SIZE: keys})
        (predicted,) = self.view.match(NO_KEYS, tokens, [0], time.monotonic())
        return predicted

    async def complete(self, token_ids, salt=None):
        """Return how many tokens were predicted, and how many were cached."""
        predicted = self.predict(token_ids, salt)
        return predicted, (await self.ask(token_ids, salt)).cached_tokens

    async def ask(self, token_ids, salt=None, **more):
        """Return the engine's answer to a prompt of token ids."""
        body = {"model": MODEL_NAME, "prompt": token_ids, "max_tokens": 3, **more}
        if salt is not None:
            body["cache_salt"] = salt
        answer = await ask(self._session, self._engine.url, body, "/v1/completions")
        assert answer.status == 200, answer.body
        return answer


@pytest.fixture
async def fed(engine, session):
    """Fed by what the engine itself says of its publisher."""
    async with Fed(engine, session) as fed:
        yield fed


def prompts(seed, count):
    """Prompts that share prefixes of all lengths, and together are larger than the cache."""
    rng = random.Random(seed)
    families = [[rng.randrange(1000, 40_000) for _ in range(900)] for _ in range(6)]
    for _ in range(count):
        family = rng.choice(families)
        tail = [rng.randrange(1000, 40_000) for _ in range(rng.randrange(1, 60))]
        yield family[: rng.randrange(100, 900)] + tail, rng.choice((None, None, "a", "b"))


async def test_the_engine_says_where_it_publishes_and_what_it_can_hold(engine, fed):
    """Nothing is configured but its URL."""
    (replica,) = fed.feed.statistics()
    (stream,) = replica.streams
    assert stream.endpoint == engine.events.endpoint
    assert stream.is_connected
    assert replica.capacity.block_size == BLOCK_SIZE
    assert replica.capacity.tokens == NUM_BLOCKS * BLOCK_SIZE


async def test_predictions_are_within_a_block_while_it_evicts(fed):
    """At least 99 of 100 requests, one after the other, with and without salts."""
    off = []
    for token_ids, salt in prompts(seed=1, count=100):
        predicted, cached = await fed.complete(token_ids, salt)
        if abs(predicted - cached) > BLOCK_SIZE:
            off.append((len(token_ids), predicted, cached))
    assert len(off) <= 1, off
    statistics = fed.view.statistics(0).precise
    assert statistics.num_removed > 100
    assert statistics.num_unknown_removals == statistics.num_unplaced == 0


async def test_what_it_generated_is_predicted_too(fed):
    """Blocks that decoding filled are cached like others."""
    (token_ids, _) = next(prompts(seed=2, count=1))
    token_ids = token_ids[:100]
    answer = await fed.ask(token_ids, max_tokens=70, ignore_eos=True, return_token_ids=True)
    (choice,) = answer.json()["choices"]
    whole = token_ids + choice["token_ids"]
    assert len(whole) == 170
    predicted, cached = await fed.complete([*whole, 1])
    assert predicted == cached
    assert cached > len(token_ids)


async def test_a_late_gateway_knows_the_past(engine, fed, session):
    """The replay of a real publisher gives the same index as its live stream."""
    wanted = list(prompts(seed=3, count=12))
    for token_ids, salt in wanted:
        await fed.complete(token_ids, salt)
    async with Fed(engine, session) as late:
        for token_ids, salt in wanted[:4]:
            predicted, cached = await late.complete(token_ids, salt)
            assert abs(predicted - cached) <= BLOCK_SIZE


async def test_a_reset_while_idle_costs_one_wrong_prediction(engine, fed, session):
    """The engine tells of it with its next step, and that is in time for the next request."""
    (token_ids, _) = next(prompts(seed=4, count=1))
    await fed.complete(token_ids)
    assert await fed.complete(token_ids) == (len(token_ids) // BLOCK_SIZE * BLOCK_SIZE,) * 2
    async with session.post(f"{engine.url}/reset_prefix_cache") as response:
        assert response.status == 200
    predicted, cached = await fed.complete(token_ids)
    assert predicted > cached == 0
    other = [each + 1 for each in token_ids]
    assert await fed.complete(other) == (0, 0)
    predicted, cached = await fed.complete(token_ids)
    assert abs(predicted - cached) <= BLOCK_SIZE


async def test_a_cut_stream_is_not_believed_and_recovers_by_replay(engine, session):
    """Within two seconds; what happened meanwhile is known afterwards."""
    events = engine.events
    async with SeveredLink.to(events.endpoint, events.replay_endpoint) as link:
        endpoint, replay_endpoint = link.endpoints
        through = KvEventsConfig(endpoint, replay_endpoint, events.topic)
        async with Fed(engine, session, through) as fed:
            await link.cut()
            await fed.reaches(TrustMode.APPROXIMATE, NOTICED_S)
            wanted = list(prompts(seed=5, count=6))
            for token_ids, salt in wanted:
                await fed.complete(token_ids, salt)
            await link.mend()
            await fed.reaches(TrustMode.PRECISE)
            for token_ids, salt in wanted:
                predicted, cached = await fed.complete(token_ids, salt)
                assert abs(predicted - cached) <= BLOCK_SIZE


async def test_a_restarted_engine_is_known_to_be_cold(engine, fed):
    """Its numbers begin anew, and nothing of the old cache is predicted."""
    (token_ids, salt) = next(prompts(seed=6, count=1))
    for _ in range(2):
        predicted, cached = await fed.complete(token_ids, salt)
    assert predicted == cached > 0
    engine.stop()
    await fed.reaches(TrustMode.APPROXIMATE, NOTICED_S)
    engine.start()
    await engine.wait_healthy()
    await fed.reaches(TrustMode.PRECISE)
    assert await fed.complete(token_ids, salt) == (0, 0)
    predicted, cached = await fed.complete(token_ids, salt)
    assert predicted == cached > 0
