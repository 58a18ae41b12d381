"""Engines as child processes: flags, readiness, several at once, failure, end."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp
import openai
import pytest
import zmq
from typer.testing import CliRunner

from headstart.cli import engine as engine_command
from headstart.cli.main import app
from headstart.engines.embedded.kv_publisher import KvEventsConfig
from headstart.engines.embedded.process import spawn_engine
from headstart.engines.embedded.settings import EngineSettings, thread_environment
from headstart.errors import UpstreamUnavailable
from headstart.wire.kv_events import (
    ClearedBlocks,
    StoredBlocks,
    decode_batch,
    decode_sequence,
    encode_sequence,
)

ANY = "tcp://127.0.0.1:*"
START_S = 60


@pytest.fixture
def settings(tiny_gguf):
    def make(**overrides):
        return EngineSettings(tiny_gguf, **{"model_name": "tiny", "num_blocks": 64, **overrides})

    return make


async def ask(url, prompt="the user is sent another word", **extra):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        return await client.completions.create(
            model="tiny", prompt=prompt, max_tokens=20, temperature=0, extra_body=extra
        )


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"host": "127.0.0.2", "port": 12345, "block_size": 8, "num_blocks": 100},
        {"enable_prefix_caching": False, "max_num_batched_tokens": 64, "max_num_seqs": 2},
        {"kv_events": KvEventsConfig("tcp://127.0.0.1:5", None, "kv@a"), "drain_s": 1.5},
        {"kv_events": KvEventsConfig("tcp://127.0.0.1:5", "tcp://127.0.0.1:6")},
    ],
)
def test_the_flags_say_what_the_settings_say(settings, monkeypatch, overrides):
    seen = []
    monkeypatch.setattr(engine_command, "_serve", lambda settings, **_: seen.append(settings))
    expected = settings(**overrides)
    result = CliRunner().invoke(app, ["engine", *expected.arguments()])
    assert result.exit_code == 0, result.output
    assert seen == [expected]


async def test_a_child_serves_until_it_is_stopped(settings):
    child = await spawn_engine(settings(), timeout_s=START_S)
    try:
        answer = await ask(child.url)
        assert answer.usage.completion_tokens > 0
        assert child.returncode is None
        assert any(f"{child.url} serves tiny" in line for line in child.last_lines())
    finally:
        assert await child.stop() == 0
    assert child.returncode == 0


async def test_several_run_side_by_side_with_caches_of_their_own(settings):
    first, second = await asyncio.gather(
        spawn_engine(settings(), timeout_s=START_S), spawn_engine(settings(), timeout_s=START_S)
    )
    try:
        assert first.url != second.url
        prompt = "the user is sent another word " * 5
        cold, other = await ask(first.url, prompt), await ask(second.url, prompt)
        warm = await ask(first.url, prompt)
        assert cold.usage.prompt_tokens_details.cached_tokens == 0
        assert other.usage.prompt_tokens_details.cached_tokens == 0
        assert warm.usage.prompt_tokens_details.cached_tokens > 0
        assert warm.choices[0].text == cold.choices[0].text == other.choices[0].text
    finally:
        await asyncio.gather(first.stop(), second.stop())


async def test_a_child_that_cannot_start_says_why(settings, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    with pytest.raises(
        UpstreamUnavailable, match=r"ended with status 1 before it served: .*broken"
    ):
        await spawn_engine(EngineSettings(model_path=broken, model_name="tiny"), timeout_s=START_S)


async def test_a_child_that_is_silent_is_killed(settings, monkeypatch, tmp_path):
    hang = tmp_path / "hang"
    hang.write_text("#!/bin/sh\necho still loading\nexec sleep 600\n")
    hang.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hang))
    with pytest.raises(UpstreamUnavailable, match=r"did not listen within 0\.5 s"):
        await spawn_engine(settings(), timeout_s=0.5)


async def test_a_child_ends_when_its_parent_does(settings):
    child = await spawn_engine(settings(), timeout_s=START_S)
    child._child.process.stdin.close()  # what the end of the parent does
    assert await child.wait() == 0
    await child.stop()


async def test_the_threads_are_bounded_in_the_child(settings):
    child = await spawn_engine(settings(threads=1), timeout_s=START_S)
    try:
        lines = Path(f"/proc/{child.pid}/environ").read_text().split("\0")
    except FileNotFoundError:
        pytest.skip("no /proc here")
    finally:
        await child.stop()
    assert {f"{name}={value}" for name, value in thread_environment(1).items()} <= set(lines)


async def test_sigterm_lets_an_open_stream_finish(settings):
    child = await spawn_engine(settings(), timeout_s=START_S)
    body = {"prompt": "the", "max_tokens": 300, "stream": True, "ignore_eos": True}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{child.url}/v1/completions", json=body) as response,
    ):
        os.kill(child.pid, signal.SIGTERM)
        text = await response.text()
    assert text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in text
    assert await child.wait() == 0
    await child.stop()


async def test_a_second_signal_ends_open_streams_at_once(settings):
    child = await spawn_engine(settings(num_blocks=2048, drain_s=600.0), timeout_s=START_S)
    body = {"prompt": "the", "max_tokens": 1000, "stream": True, "ignore_eos": True}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{child.url}/v1/completions", json=body) as response,
    ):
        os.kill(child.pid, signal.SIGINT)
        os.kill(child.pid, signal.SIGTERM)
        text = await response.text()
    assert '"error"' in text
    assert await child.wait() == 0
    await child.stop()


async def test_a_running_engines_events_have_salt_replay_and_the_reset_at_once(settings):
    events = KvEventsConfig(ANY, ANY, topic="kv@r1@tiny")
    child = await spawn_engine(settings(kv_events=events), timeout_s=START_S)
    prompt = "the user is sent another word " * 5
    context = zmq.Context()
    try:
        answer = await ask(child.url, prompt, cache_salt="tenant-7", return_token_ids=True)
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{child.url}/kv_event_sources") as response,
        ):
            (source,) = await response.json()
            async with http.post(f"{child.url}/reset_prefix_cache") as reset:
                assert reset.status == 200
        assert child.kv_event_sources == [source]
        assert source["topic"] == "kv@r1@tiny"
        batches = replay(context, source["replay_endpoint"])
    finally:
        context.destroy(linger=0)
        await child.stop()
    *stored, last = [event for batch in batches for event in batch.events]
    assert isinstance(last, ClearedBlocks)
    assert all(isinstance(event, StoredBlocks) for event in stored)
    assert stored[0].parent_block_hash is None
    assert stored[0].extra_keys[0] == ("tenant-7",)
    prompt_ids = answer.choices[0].prompt_token_ids
    tokens = [token for event in stored for token in event.token_ids]
    full = len(prompt_ids) // 16 * 16
    assert tokens[:full] == prompt_ids[:full]


def replay(context, endpoint):
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, 30_000)
    dealer.connect(endpoint)
    batches = []
    try:
        # The engine reports a change after it has answered.
        while not (batches and isinstance(batches[-1].events[-1], ClearedBlocks)):
            batches.clear()
            dealer.send_multipart([b"", encode_sequence(0)])
            while True:
                _, topic, seq, payload = dealer.recv_multipart()
                assert topic == b"kv@r1@tiny"
                if decode_sequence(seq) == -1:
                    break
                batches.append(decode_batch(payload))
    finally:
        dealer.close(linger=0)
    return batches
