"""What a client gets of a real vLLM through the gateway: its answers and its refusals."""

import asyncio
import json

import openai
import pytest
from gateway_process import GatewayProcess
from vllm_replica import MODEL_NAME
from vllm_requests import CHAT, SENTENCE, ask, chat_body, story
from wiretap import wiretap

pytestmark = pytest.mark.timeout(600)

CALLED = {"type": "function", "function": {"name": "get_order"}}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_order",
        "description": "Look up an order by its number.",
        "parameters": {
            "type": "object",
            "properties": {"order": {"type": "integer"}},
            "required": ["order"],
        },
    },
}


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


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_tool_call_passes_byte_for_byte(session, replicas, tmp_path, is_stream):
    """The client has what the engine sent, and the call in it is whole."""
    body = chat_body("Where is order 7?", tools=[TOOL], tool_choice=CALLED, max_tokens=64)
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with (
        wiretap(replicas[0].url) as tap,
        GatewayProcess.serving([tap.url], tmp_path) as gateway,
    ):
        answer = await ask(session, gateway.url, body)
        assert tap.taken(CHAT) == [json.dumps(body).encode()]
    assert tap.given(CHAT) == [answer.body]
    if is_stream:
        deltas = [choice["delta"] for event in answer.events for choice in event["choices"]]
        calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    else:
        (message,) = [choice["message"] for choice in answer.json()["choices"]]
        calls = [call["function"] for call in message["tool_calls"]]
    assert "".join(call.get("name") or "" for call in calls) == "get_order"
    arguments = "".join(call.get("arguments") or "" for call in calls)
    assert isinstance(json.loads(arguments), dict), arguments


async def test_many_at_once_are_all_answered(session, gateway):
    """Streamed or not, each gets its own, and each leaves its record."""
    bodies = [story(4 + number, f"Say {number}.", stream=number % 2 == 0) for number in range(16)]
    answers = await asyncio.gather(*(ask(session, gateway.url, body) for body in bodies))
    assert [answer.status for answer in answers] == [200] * 16
    assert all(answer.is_done for answer in answers[::2])
    records = await gateway.records()
    assert sorted(record.usage.output_tokens for record in records) == list(range(4, 20))


async def test_a_prompt_that_nearly_fills_the_context_passes(session, gateway):
    """Thousands of tokens, all of them accounted for."""
    answer = await ask(session, gateway.url, chat_body("bicycle " * 4000))
    assert answer.status == 200
    assert 4000 < answer.usage["prompt_tokens"] < 4096 - 8
    (record,) = await gateway.records()
    assert record.retries == 0  # a long prefill is not a stall


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"cache_salt": ""}, 400),
        ({"temperature": -1}, 400),
        ({"messages": "none"}, 400),
        ({"messages": [{"role": "user", "content": SENTENCE * 300}]}, 400),
        ({"messages": [{"role": "user", "content": "x" * (2 << 20)}]}, 400),
        ({"stream": True, "top_p": 7}, 400),
        ({"max_tokens": 5000}, 400),
    ],
    ids=["salt", "temperature", "messages", "too long", "2 MB", "stream", "too many tokens"],
)
async def test_the_engines_errors_keep_status_and_body(session, gateway, replicas, more, status):
    """The same request straight to the engine gives the same answer."""
    body = chat_body("Hello") | more
    direct = await ask(session, replicas[0].url, body)
    through = await ask(session, gateway.url, body)
    assert (direct.status, direct.json()["error"]["code"]) == (status, status)
    assert (through.status, through.body) == (status, direct.body)


async def test_an_unknown_model_is_answered_by_the_gateway(session, gateway):
    """As vLLM would answer, with what is served."""
    answer = await ask(session, gateway.url, chat_body("Hello") | {"model": "unknown"})
    assert answer.status == 404
    assert MODEL_NAME in answer.json()["error"]["message"]


async def test_other_paths_are_forwarded(session, gateway):
    """`/tokenize` is not ours, and works."""
    body = {"model": MODEL_NAME, "prompt": "Hello there"}
    answer = await ask(session, gateway.url, body, "/tokenize")
    assert (answer.status, answer.json()["count"] > 0) == (200, True)
    async with session.get(f"{gateway.url}/v1/models") as response:
        assert [each["id"] for each in (await response.json())["data"]] == [MODEL_NAME]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_client_that_leaves_frees_the_engine(session, gateway, replicas, path, is_stream):
    """The engine stops generating within a second or two of the disconnect."""
    body = story(3000, stream=is_stream)
    if path != CHAT:
        del body["messages"]
        body["prompt"] = "Once upon a time"
    request = asyncio.create_task(ask(session, gateway.url, body, path))
    while await running(replicas) == 0:
        await asyncio.sleep(0.3)  # a metrics page costs the engine's own core
    request.cancel()
    async with asyncio.timeout(10):
        while await running(replicas):
            await asyncio.sleep(0.3)
    (record,) = await gateway.records()
    assert (record.status, record.error_code) == (499, "client_disconnected")


async def running(replicas):
    counts = [await engine.metric("vllm:num_requests_running") for engine in replicas]
    return sum(counts)
