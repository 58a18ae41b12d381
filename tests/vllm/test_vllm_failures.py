"""What clients see when a real vLLM dies, and when the gateway is told to end."""

import asyncio
import json
import signal

import pytest
from vllm_replica import MODEL_NAME

pytestmark = pytest.mark.timeout(900)


def story(question="Tell me a long story.", **more):
    messages = [{"role": "user", "content": question}]
    return {"model": MODEL_NAME, "messages": messages, "temperature": 0, "ignore_eos": True, **more}


@pytest.fixture
async def mended(replicas):
    """Whatever a test does to the replicas, both serve again afterwards."""
    yield replicas
    for engine in replicas:
        if not engine.is_whole():
            engine.stop()
            engine.start()
    await asyncio.gather(*(engine.wait_healthy() for engine in replicas))


async def events(response, on_first=None):
    """Collect the data of a stream's events; call `on_first` after the first content."""
    found = []
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        found.append(line[5:].strip())
        if on_first is not None and b'"content":"' in line and b'"content":""' not in line:
            on_first()
            on_first = None
    return found


async def replica_by_url(session, gateway, replicas, name):
    async with session.get(f"{gateway.admin}/replicas") as response:
        (url,) = [each["url"] for each in (await response.json())["data"] if each["name"] == name]
    (engine,) = [engine for engine in replicas if engine.url == url.rstrip("/")]
    return engine


async def test_sigterm_of_the_gateway_lets_an_open_stream_finish(session, gateway):
    """Accepted is answered: the stream comes whole, then the process ends with 0."""
    body = story(stream=True, max_tokens=60)
    async with session.post(f"{gateway.url}/v1/chat/completions", json=body) as response:
        found = await events(response, on_first=gateway.process.terminate)
    assert found[-1] == b"[DONE]"
    assert len(found) > 50
    (record,) = await gateway.records()
    assert (gateway.process.returncode, record.status) == (0, 200)


@pytest.mark.parametrize("victim", ["api server", "worker"])
async def test_death_mid_stream_becomes_an_error_event(session, gateway, mended, victim):
    """The stream ends with an error in the API's form; then the other replica serves everyone."""
    body = story(stream=True, max_tokens=2000)
    async with session.post(f"{gateway.url}/v1/chat/completions", json=body) as response:
        name = response.headers["x-headstart-replica"]
        engine = await replica_by_url(session, gateway, mended, name)

        def kill():
            if victim == "worker":
                engine.signal_workers(signal.SIGKILL)
            else:
                engine.signal_api_server(signal.SIGKILL)

        found = await events(response, on_first=kill)
    errors = [json.loads(each) for each in found if each.startswith(b'{"error"')]
    assert len(errors) == 1
    assert errors[0]["error"]["message"]
    if victim == "api server":
        assert b"[DONE]" not in found  # nobody may say that it was complete
    # Until its server has ended as well, an engine without its worker answers 500, and a 500 is
    # the engine's own word.
    async with asyncio.timeout(10):
        await gateway.until_available(1)
    for number in range(6):
        url = f"{gateway.url}/v1/chat/completions"
        async with session.post(url, json=story(f"Say {number}.", max_tokens=2)) as response:
            assert response.status == 200
            assert response.headers["x-headstart-replica"] != name
            await response.read()
    records = await gateway.records()
    assert [record.status for record in records[1:]] == [200] * 6
    assert victim == "worker" or records[0].error_code is not None


async def test_death_before_the_first_byte_is_retried_elsewhere(session, gateway, mended):
    """A client whose replica is killed during the prefill gets its answer from the other one."""
    prompt = "An engine that is about to be killed reads this. " * 100
    url = f"{gateway.url}/v1/chat/completions"
    request = asyncio.create_task(_status_and_replica(session, url, story(prompt, max_tokens=4)))
    engine = await replica_in_use(session, gateway, mended)
    engine.signal_api_server(signal.SIGKILL)
    status, name = await request
    assert status == 200
    assert await replica_by_url(session, gateway, mended, name) is not engine
    (record,) = await gateway.records()
    assert (record.status, record.retries, record.replica) == (200, 1, name)


async def test_a_replica_that_returns_is_used_again(session, gateway, mended):
    """After a kill and a restart the gateway finds it by itself."""
    engine = mended[0]
    engine.stop()
    url = f"{gateway.url}/v1/chat/completions"
    for number in range(4):
        async with session.post(url, json=story(f"Say {number}.", max_tokens=2)) as response:
            assert response.status == 200
            await response.read()
    engine.start()
    await engine.wait_healthy()
    async with asyncio.timeout(10):
        await gateway.until_available(2)


async def replica_in_use(session, gateway, replicas):
    """Return the replica that has a request in flight, as the gateway counts."""
    while True:
        async with session.get(f"{gateway.admin}/replicas") as response:
            names = [each["name"] for each in (await response.json())["data"] if each["in_flight"]]
        if names:
            return await replica_by_url(session, gateway, replicas, names[0])
        await asyncio.sleep(0.05)


async def _status_and_replica(session, url, body):
    async with session.post(url, json=body) as response:
        await response.read()
        return response.status, response.headers.get("x-headstart-replica")
