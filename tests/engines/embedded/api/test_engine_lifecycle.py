"""Disconnects, draining and stopping of the engine's server, over loopback."""

import asyncio

import aiohttp
import pytest
from engine_api_helpers import metric, post

from headstart.clock import SystemClock
from headstart.engines.embedded.server import EngineServer
from headstart.engines.embedded.settings import EngineSettings
from headstart.errors import ConfigError


async def until_metric(http, server, name, value):
    while await metric(http, server, name) != value:
        await asyncio.sleep(0)


ABORTED = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}'


async def aborted(http, server):
    async with http.get(f"{server.url}/metrics") as response:
        page = await response.text()
    return float(page.split(ABORTED)[1].split()[0])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_clients_disconnect_ends_its_generation(server, http, stream):
    body = {"prompt": "the", "max_tokens": 1000, "stream": stream, "ignore_eos": True}
    request = asyncio.create_task(http.post(f"{server.url}/v1/completions", json=body))
    await until_metric(http, server, "vllm:num_requests_running", 1)
    if stream:
        (await request).close()
    else:
        request.cancel()
    await until_metric(http, server, "vllm:num_requests_running", 0)
    assert await aborted(http, server) == 1
    assert await metric(http, server, "vllm:generation_tokens_total") < 1000


async def test_reset_is_refused_while_requests_run(server, http):
    body = {"prompt": "the", "max_tokens": 1000, "stream": True, "ignore_eos": True}
    async with (
        http.post(f"{server.url}/v1/completions", json=body),
        http.post(f"{server.url}/reset_prefix_cache") as response,
    ):
        assert response.status == 409


async def test_stopping_lets_an_open_request_finish(tiny_gguf, http):
    server = EngineServer(EngineSettings(tiny_gguf, "tiny"), SystemClock())
    await server.start()
    body = {"prompt": "the", "max_tokens": 200, "stream": True, "ignore_eos": True}
    async with http.post(f"{server.url}/v1/completions", json=body) as response:
        stopping = asyncio.create_task(server.stop())
        text = await response.text()
    await stopping
    assert '"finish_reason":"length"' in text
    assert text.endswith("data: [DONE]\n\n")


async def test_what_outlasts_the_drain_ends_with_an_error_in_the_stream(tiny_gguf, http):
    server = EngineServer(EngineSettings(tiny_gguf, "tiny", drain_s=0), SystemClock())
    await server.start()
    body = {"prompt": "the", "max_tokens": 1000, "stream": True, "ignore_eos": True}
    async with http.post(f"{server.url}/v1/completions", json=body) as response:
        stopping = asyncio.create_task(server.stop())
        text = await response.text()
    await stopping
    assert '"error"' in text
    assert text.endswith("data: [DONE]\n\n")


async def test_a_stopping_server_refuses_new_requests_on_open_connections(tiny_gguf, http):
    server = EngineServer(EngineSettings(tiny_gguf, "tiny"), SystemClock())
    await server.start()
    body = {"prompt": "the", "max_tokens": 1000, "stream": True, "ignore_eos": True}
    hurry = asyncio.Event()
    async with http.get(f"{server.url}/health"):
        pass  # leaves a kept-alive connection behind
    async with (
        aiohttp.ClientSession() as other,
        other.post(f"{server.url}/v1/completions", json=body),
    ):
        stopping = asyncio.create_task(server.stop(hurry))
        await asyncio.sleep(0)
        status, answer = await post(http, server, "/v1/completions", {"prompt": "x"})
        async with http.get(f"{server.url}/health") as response:
            health_status = response.status
        hurry.set()
    await stopping
    assert status == health_status == 503
    assert "shutting down" in answer["error"]["message"]


async def test_a_taken_port_is_a_clear_error(server, tiny_gguf):
    port = int(server.url.rsplit(":", 1)[1])
    second = EngineServer(EngineSettings(tiny_gguf, "tiny", port=port), SystemClock())
    with pytest.raises(
        ConfigError, match=rf"Cannot listen on 127\.0\.0\.1:{port}: Address already in use"
    ):
        await second.start()


async def test_a_failed_engine_is_not_healthy_and_takes_nothing(server, http):
    def schedule():
        raise RuntimeError

    server.engine._scheduler.schedule = schedule
    status, _ = await post(http, server, "/v1/completions", {"prompt": "x"})
    assert status == 502
    while server.engine.is_running:
        await asyncio.sleep(0)
    async with http.get(f"{server.url}/health") as response:
        assert response.status == 503
    status, answer = await post(http, server, "/v1/completions", {"prompt": "x"})
    assert (status, answer["error"]["code"]) == (503, "no_replica_available")
