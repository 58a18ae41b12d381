"""What a client gets from two real vLLM replicas through the gateway."""

import asyncio
import json
import time

import openai
import pytest
from vllm_replica import MODEL_NAME

pytestmark = pytest.mark.timeout(600)

POLICY = "You answer for a bicycle shop. Be brief, be polite, and never promise a date. " * 60
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_order",
            "description": "Look up an order by its number. " * 12,
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
        },
    }
]


def chat_body(question, *, system=POLICY, **more):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": MODEL_NAME, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


async def complete(session, gateway, body, path="/v1/chat/completions"):
    """Return (status, body, seconds to the headers, replica)."""
    sent = time.perf_counter()
    async with session.post(gateway.url + path, json=body) as response:
        waited = time.perf_counter() - sent
        replica = response.headers.get("x-headstart-replica")
        return response.status, await response.json(), waited, replica


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def first_content_s(session, gateway, body):
    """Return the seconds to the first content of a stream, and the usage at its end."""
    sent = time.perf_counter()
    first, usage = None, None
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with session.post(f"{gateway.url}/v1/chat/completions", json=request) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if first is None and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - sent
    return first, usage


async def test_a_shared_prefix_is_cached_and_its_first_token_comes_sooner(session, gateway):
    """The second request meets the first one's replica, reuses its prefix and waits less."""
    system = "A rule of this run. " + POLICY
    cold_s, cold = await first_content_s(session, gateway, chat_body("Hello?", system=system))
    warm_s, warm = await first_content_s(session, gateway, chat_body("Goodbye?", system=system))
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["prompt_tokens_details"]["cached_tokens"] > 0.8 * warm["prompt_tokens"]
    assert warm_s < cold_s / 2


async def test_records_hold_what_vllm_reported(session, gateway):
    """Tokens, cached tokens, TTFT and TPOT of a stream that did not ask for usage."""
    body = chat_body("Who are you?", system="Recorded. " + POLICY, stream=True)
    for _ in range(2):
        async with session.post(f"{gateway.url}/v1/chat/completions", json=body) as response:
            text = await response.text()
            assert '"usage"' not in text
            assert text.rstrip().endswith("data: [DONE]")
    first, second = await gateway.records()
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens > 0.8 * second.usage.input_tokens
    assert second.usage.output_tokens == 8
    assert first.replica == second.replica
    assert second.ttft_s < first.ttft_s
    assert second.tpot_s > 0
    assert second.body_changes == ("stream_options",)


async def test_salts_isolate(session, gateway):
    """A, A, B: nothing, a hit, nothing."""
    answers = [
        await complete(session, gateway, chat_body("Hi", system="Salted. " + POLICY, cache_salt=s))
        for s in ("a", "a", "b")
    ]
    assert [cached(body) > 0 for _, body, _, _ in answers] == [False, True, False]


async def test_tools_reach_the_model_and_are_cached(session, gateway):
    """Tool schemas are part of the prefix."""
    system = "Tools. " + POLICY[:1500]
    bodies = [
        chat_body(question, system=system, tools=TOOLS) for question in ("Where is 1?", "And 2?")
    ]
    first = (await complete(session, gateway, bodies[0]))[1]
    second = (await complete(session, gateway, bodies[1]))[1]
    plain = (await complete(session, gateway, chat_body("And 2?", system=system)))[1]
    assert second["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 50
    assert cached(first) == 0
    assert cached(second) > 0.6 * second["usage"]["prompt_tokens"]


async def test_the_official_client_streams_through(gateway):
    """Nothing but the address changes for a program that uses the `openai` package."""
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused")
    async with client:
        stream = await client.chat.completions.create(
            **chat_body("Say something."), stream=True, stream_options={"include_usage": True}
        )
        pieces, usage = [], None
        async for chunk in stream:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage
        assert "".join(pieces)
        assert usage.completion_tokens == 8
        completion = await client.completions.create(
            model=MODEL_NAME, prompt="Once upon a time", max_tokens=4
        )
        assert completion.choices[0].text


async def test_long_prompts_pass_and_too_long_ones_get_the_engines_own_error(session, gateway):
    """Near the context's limit all is well; beyond it the engine's 400 comes back unchanged."""
    word = "bicycle "
    status, body, _, _ = await complete(session, gateway, chat_body(word * 3000, system="short"))
    assert (status, body["usage"]["prompt_tokens"] > 3000) == (200, True)
    status, body, _, _ = await complete(session, gateway, chat_body(word * 9000))
    assert status == 400
    assert "4096" in body["error"]["message"]


@pytest.mark.parametrize(
    ("more", "status"),
    [({"cache_salt": ""}, 400), ({"temperature": -1}, 400), ({"messages": "none"}, 400)],
)
async def test_the_engines_errors_keep_status_and_body(session, gateway, replicas, more, status):
    """The same request straight to the engine gives the same answer."""
    body = chat_body("Hello", system="short") | more
    async with session.post(f"{replicas[0].url}/v1/chat/completions", json=body) as response:
        direct = await response.json()
        assert response.status == status
    through = await complete(session, gateway, body)
    assert through[:2] == (status, direct)


async def test_other_paths_are_forwarded(session, gateway):
    """`/tokenize` is not ours, and works."""
    body = {"model": MODEL_NAME, "prompt": "Hello there"}
    status, answer, _, _ = await complete(session, gateway, body, "/tokenize")
    assert (status, answer["count"] > 0) == (200, True)
    async with session.get(f"{gateway.url}/v1/models") as response:
        assert [each["id"] for each in (await response.json())["data"]] == [MODEL_NAME]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(session, gateway, replicas, is_stream):
    """The engine stops generating within a second or two of the disconnect."""
    body = chat_body("Count to a thousand.", system="short", stream=is_stream)
    body |= {"max_tokens": 3000, "ignore_eos": True}
    request = asyncio.create_task(complete(session, gateway, body))
    while await running(replicas) == 0:
        await asyncio.sleep(0.3)  # a metrics page costs the engine's own core
    request.cancel()
    async with asyncio.timeout(10):
        while await running(replicas):
            await asyncio.sleep(0.3)  # a metrics page costs the engine's own core


async def running(replicas):
    counts = [await engine.metric("vllm:num_requests_running") for engine in replicas]
    return sum(counts)
