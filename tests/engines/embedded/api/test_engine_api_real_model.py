"""What only a model that makes sense can show: histories that hit the cache turn after turn."""

import asyncio

import openai
import pytest
from engine_api_helpers import post

from headstart.clock import SystemClock
from headstart.engines.embedded.server import EngineServer
from headstart.engines.embedded.settings import EngineSettings
from headstart.prompt.tool_calls import parse_tool_calls
from headstart.prompt.tool_form import render_tool_call
from headstart.wire.progress import progress_figures

BLOCK = 16
SYSTEM = {
    "role": "system",
    "content": "You are a careful assistant of a library. Answer in one short sentence.",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_book",
            "description": "Find a book by its title.",
            "parameters": {
                "type": "object",
                "properties": {"title": {"type": "string"}},
                "required": ["title"],
            },
        },
    }
]


@pytest.fixture
async def server(real_model):
    server = EngineServer(EngineSettings(real_model, "smol", num_blocks=256), SystemClock())
    await server.start()
    yield server
    await server.stop()


async def chat(http, server, messages, **extra):
    body = {"messages": messages, "temperature": 0, "return_token_ids": True, **extra}
    status, answer = await post(http, server, "/v1/chat/completions", body)
    assert status == 200, answer
    return answer


async def test_each_turn_of_a_chat_finds_the_turns_before_it_in_the_cache(server, http):
    messages = [SYSTEM, {"role": "user", "content": "Which books about whales do you have?"}]
    for question in ("Who wrote the first one?", "And when?"):
        answer = await chat(http, server, messages, max_tokens=24)
        choice = answer["choices"][0]
        so_far = answer["prompt_token_ids"] + choice["token_ids"]
        messages = [*messages, choice["message"], {"role": "user", "content": question}]
        _, rendered = await post(http, server, "/tokenize", {"messages": messages})
        assert rendered["tokens"][: len(so_far)] == so_far
        follow_up = await chat(http, server, messages, max_tokens=1)
        # The last token of an answer was sampled, not computed, so its block is not full yet.
        expected = (len(so_far) - 1) // BLOCK * BLOCK
        assert follow_up["usage"]["prompt_tokens_details"]["cached_tokens"] >= expected


async def test_an_agents_call_is_replayed_to_the_tokens_that_were_generated(server, http):
    """The model's text is given here: a model of this size does not write calls reliably."""
    messages = [SYSTEM, {"role": "user", "content": "Do you have Moby Dick?"}]
    body = {"messages": messages, "tools": TOOLS}
    _, prompt = await post(http, server, "/tokenize", body)
    generated = "I will look.\n" + render_tool_call("find_book", '{"title":"Moby  Dick"}')
    tokens = prompt["tokens"] + server.engine.tokenizer.encode(generated + "<|im_end|>")
    text, (call,) = parse_tool_calls(generated)
    messages += [
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '{"shelf": "M3"}'},
    ]
    _, rendered = await post(http, server, "/tokenize", {"messages": messages, "tools": TOOLS})
    assert rendered["tokens"][: len(tokens)] == tokens


async def test_salts_isolate_and_the_same_salt_shares(server):
    prompt = "The library has a large collection of books about the sea and its creatures. " * 6
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        cached = []
        for salt in ("A", "A", "B"):
            answer = await client.completions.create(
                model="smol", prompt=prompt, max_tokens=1, extra_body={"cache_salt": salt}
            )
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
            full = (answer.usage.prompt_tokens - 1) // BLOCK * BLOCK
    assert cached == [0, full, 0]


async def test_a_long_prompt_shows_on_the_metrics_page_piece_by_piece(server, http):
    """Whoever watches the engine can tell a long prefill from one that hangs."""
    text = " ".join(str(number * 7919) for number in range(250))
    messages = [{"role": "user", "content": text}]
    answer = asyncio.create_task(chat(http, server, messages, max_tokens=1))
    seen = set()
    while not answer.done():
        async with http.get(f"{server.url}/metrics") as response:
            seen.add(progress_figures(await response.read()))
    pieces = (await answer)["usage"]["prompt_tokens"] // 512
    assert pieces >= 2
    assert len(seen) > pieces
