"""What clients see when a real vLLM dies or ends, and when the gateway is told to end."""

import asyncio
import signal

import pytest
from gateway_process import UNHURRIED, GatewayProcess
from vllm_requests import CHAT, PREFILL, ask, read, story, stream_from

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
async def together(replicas, tmp_path):
    """A gateway that keeps prompts with one beginning at one replica, however busy it is."""
    urls = [engine.url for engine in replicas]
    together = {"routing_prefix_hash_leading_blocks": 1, "routing_prefix_hash_load_bound": 8}
    async with GatewayProcess.serving(urls, tmp_path, **together, **UNHURRIED) as process:
        yield process


@pytest.fixture
async def patient(replicas, tmp_path):
    """A gateway that waits for a slow engine's answers before it ends."""
    urls = [engine.url for engine in replicas]
    async with GatewayProcess.serving(urls, tmp_path, drain_s=150, **UNHURRIED) as process:
        yield process


async def test_sigterm_of_the_gateway_lets_open_requests_finish(session, patient):
    """Accepted is answered: stream and plain answer come whole, then the process ends with 0."""
    plain = asyncio.create_task(ask(session, patient.url, story(40, "Tell me a joke.")))
    async with session.post(patient.url + CHAT, json=story(60, stream=True)) as response:
        streamed = await read(response, on_first=patient.process.terminate)
    assert streamed.is_done
    assert len(streamed.events) > 50
    assert (await plain).usage["completion_tokens"] == 40
    records = await patient.records()
    assert patient.process.returncode == 0
    assert [record.status for record in records] == [200, 200]


@pytest.mark.parametrize("victim", ["api server", "worker"])
async def test_a_killed_engine_fails_only_what_it_had_begun_to_answer(
    session, together, mended, victim
):
    """Mid-stream an error event; before the first byte the other replica; afterwards as well.

    Then the engine is started again, and found without being told.
    """
    body = story(2000, "Tell me a long story.", system=PREFILL, stream=True)
    async with session.post(together.url + CHAT, json=body) as response:
        name = response.headers["x-headstart-replica"]
        (engine,) = [engine for engine in mended if engine.name == name]
        begun = asyncio.create_task(read(response))
        waiting = [
            asyncio.create_task(
                ask(session, together.url, story(4, PREFILL, system=PREFILL, stream=is_stream))
            )
            for is_stream in (True, False)
        ]
        await together.until(name, "in_flight", 3)
        if victim == "worker":
            engine.signal_workers(signal.SIGKILL)
        else:
            engine.signal_api_server(signal.SIGKILL)
        broken, streamed, plain = await asyncio.gather(begun, *waiting)
    assert len(broken.errors) == 1
    assert broken.errors[0]["message"]
    # vLLM itself ends a stream with [DONE] after the error of a worker that died.
    assert not broken.is_done or victim == "worker"
    assert (streamed.status, streamed.is_done, streamed.errors) == (200, True, [])
    assert (plain.status, plain.usage["completion_tokens"]) == (200, 4)
    assert name not in {streamed.replica, plain.replica}
    for number in range(6):
        answer = await ask(session, together.url, story(2, f"Say {number}."))
        assert (answer.status, answer.replica != name) == (200, True)
    engine.stop()
    engine.start()
    await engine.wait_healthy()
    async with asyncio.timeout(10):
        await together.until_available(2)
    records = await together.records()
    assert [record.status for record in records] == [200] * 9
    assert [record.retries for record in records if record.usage.output_tokens == 4] == [1, 1]
    failed = [record for record in records if record.error_code is not None]
    assert [record.replica for record in failed] == [name], failed


@pytest.mark.parametrize("drains", [False, True])
async def test_sigterm_of_an_engine_costs_no_new_request(session, in_turn, mended, drains):
    """New requests, and those it leaves waiting, are answered; a stream ends whole, or in form.

    By default vLLM stops computing at once and gives its open streams an error, or leaves them
    without a word. With `--shutdown-timeout` it finishes them, looks healthy, and refuses what is
    new.
    """
    engine, other = mended[drains], mended[not drains]
    async with stream_from(session, in_turn, engine, max_tokens=80) as response:
        open_stream = asyncio.create_task(read(response))
        waiting = [  # one at each replica
            asyncio.create_task(ask(session, in_turn.url, story(60, "Tell me a joke.")))
            for _ in range(2)
        ]
        # What has not reached its core is answered 200 without a token when it shuts down.
        while await engine.metric("vllm:num_requests_running") < 2:
            await asyncio.sleep(0.1)
        engine.signal_api_server(signal.SIGTERM)
        for number in range(12):
            body = story(2, f"Say {number}.", stream=number % 2 == 0)
            answer = await ask(session, in_turn.url, body)
            assert (answer.status, answer.replica) == (200, other.name)
            assert answer.is_done or number % 2
        for answer in await asyncio.gather(*waiting):
            assert (answer.status, answer.usage["completion_tokens"]) == (200, 60)
        ended = await open_stream
    assert (len(ended.errors), ended.is_done or not drains) == (0 if drains else 1, True)
