"""Tool calls, answer formats and failures through the server; the engine follows a script."""

import asyncio
import json

import aiohttp
import openai
import pytest
from aiohttp import web
from engine_api_helpers import HELLO
from scripted_engine import ScriptedEngine

from headstart.clock import SystemClock
from headstart.engines.embedded.api.context import ApiContext, RequestGate
from headstart.engines.embedded.metrics import CacheFacts, EngineMetrics
from headstart.engines.embedded.server import make_application
from headstart.prompt.chat_template import ChatTemplate

TOOLS = [
    {
        "type": "function",
        "function": {"name": "search", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = '<tool_call>\n{"name": "search", "arguments": {"q":  "é"}}\n</tool_call>'


@pytest.fixture
async def serve(tiny_gguf):
    runners = []

    async def start(pieces, **script):
        engine = ScriptedEngine(tiny_gguf, pieces, **script)
        context = ApiContext(
            engine=engine,
            template=ChatTemplate(engine.chat_template_source),
            model_name="tiny",
            clock=SystemClock(),
            metrics=EngineMetrics(engine, "tiny", CacheFacts(True, "float32")),
            gate=RequestGate(),
            publisher=None,
        )
        runner = web.AppRunner(make_application(context), handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return engine, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    yield start
    for runner in runners:
        await runner.cleanup()


def client_of(url):
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def chat(serve, pieces, *, script=None, **ask):
    _, url = await serve(pieces, **(script or {}))
    async with client_of(url) as client:
        return await client.chat.completions.create(
            model="tiny", messages=HELLO, **{"tools": TOOLS, **ask}
        )


async def chat_stream(serve, pieces, *, script=None, **ask):
    """Return (text, calls as name → arguments, finish reason)."""
    _, url = await serve(pieces, **(script or {}))
    text, calls, reason = "", {}, None
    async with client_of(url) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, **{"tools": TOOLS, **ask}
        )
        async for chunk in stream:
            (choice,) = chunk.choices
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                assert call.id.startswith("call_")
                calls[call.index] = (call.function.name, call.function.arguments)
            reason = choice.finish_reason or reason
    return text, list(calls.values()), reason


async def test_a_call_becomes_tool_calls_with_the_models_own_bytes(serve):
    (choice,) = (await chat(serve, ["I look.\n", CALL[:20], CALL[20:]])).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look.\n"
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "search")
    assert call.function.arguments == '{"q":  "é"}'


async def test_content_is_null_if_there_are_only_calls(serve):
    (choice,) = (await chat(serve, [CALL])).choices
    assert choice.message.content is None


async def test_a_streamed_call_is_the_same_as_a_whole_one(serve):
    text, calls, reason = await chat_stream(serve, ["I look.\n", *CALL, "\n", *CALL])
    assert (text, reason) == ("I look.\n", "tool_calls")
    assert calls == [("search", '{"q":  "é"}')] * 2


async def test_a_malformed_call_stays_text(serve):
    broken = "<tool_call>{oops}</tool_call>"
    (choice,) = (await chat(serve, [broken])).choices
    assert (choice.message.content, choice.finish_reason) == (broken, "stop")
    text, calls, reason = await chat_stream(serve, list(broken))
    assert (text, calls, reason) == (broken, [], "stop")


async def test_a_call_cut_by_the_token_limit_stays_text(serve):
    half = CALL[:-3]
    script = {"finish_reason": "length"}
    (choice,) = (await chat(serve, [half], script=script)).choices
    assert (choice.message.content, choice.finish_reason) == (half, "length")
    assert await chat_stream(serve, [half], script=script) == (half, [], "length")


@pytest.mark.parametrize("ask", [{"tool_choice": "none"}, {"tools": openai.NOT_GIVEN}])
async def test_without_tools_or_with_choice_none_calls_are_plain_text(serve, ask):
    (choice,) = (await chat(serve, [CALL], **ask)).choices
    assert choice.message.content == CALL
    assert (await chat_stream(serve, [CALL], **ask))[0] == CALL


async def test_without_parallel_calls_only_the_first_is_returned(serve):
    pieces = [CALL, "\n", CALL.replace("search", "other")]
    (choice,) = (await chat(serve, pieces, parallel_tool_calls=False)).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["search"]
    _, calls, _ = await chat_stream(serve, pieces, parallel_tool_calls=False)
    assert [name for name, _ in calls] == ["search"]


async def test_tools_are_in_the_prompt_even_with_choice_none(serve):
    """The prefix, and so the cache, must not depend on `tool_choice`."""
    prompts = []
    for choice in ("auto", "none"):
        engine, url = await serve(["x"])
        async with client_of(url) as client:
            await client.chat.completions.create(
                model="tiny", messages=HELLO, tools=TOOLS, tool_choice=choice
            )
        prompts.append(engine.prompts[0].prompt_token_ids)
    assert prompts[0] == prompts[1]
    assert '"name": "search"' in engine.tokenizer.decode(prompts[0])


async def test_a_json_schema_is_rendered_into_the_prompt(serve):
    engine, url = await serve(['{"a": 1}'])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with client_of(url) as client:
        answer = await client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        )
    assert json.dumps(schema) in engine.tokenizer.decode(engine.prompts[0].prompt_token_ids)
    assert answer.choices[0].message.content == '{"a": 1}'


async def test_sampling_defaults_are_openais_and_fields_reach_the_engine(serve):
    engine, url = await serve(["x"])
    async with aiohttp.ClientSession() as http:
        for extra in (
            {},
            {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": -1, "stop": "a"},
            {"top_k": -1, "stop": ["a", "b"], "max_completion_tokens": 3, "max_tokens": 9},
        ):
            body = {"messages": HELLO, **extra}
            async with http.post(f"{url}/chat/completions", json=body) as response:
                assert response.status == 200
    plain, some, other = (request.sampling for request in engine.prompts)
    assert (plain.temperature, plain.top_p, plain.top_k, plain.seed) == (1.0, 1.0, 0, None)
    assert plain.max_tokens == engine.context_length - len(engine.prompts[0].prompt_token_ids)
    assert (some.temperature, some.top_p, some.top_k, some.stop) == (0.5, 0.9, 7, ("a",))
    assert some.seed >= 0
    assert (other.top_k, other.stop, other.max_tokens) == (0, ("a", "b"), 3)


async def test_an_engine_failure_before_the_answer_is_502(serve):
    with pytest.raises(openai.InternalServerError, match="gave this request up: broken") as raised:
        await chat(serve, ["x"], script={"error": "broken"})
    assert raised.value.status_code == 502


async def test_an_engine_failure_within_a_stream_is_an_event_and_the_end(serve):
    _, url = await serve(["some text"], error="broken")
    body = {"messages": HELLO, "stream": True}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        events = (await response.text()).split("\n\n")
    assert events[-2] == "data: [DONE]"
    error = json.loads(events[-3].removeprefix("data: "))["error"]
    assert error["code"] == "upstream_error"
    assert "broken" in error["message"]


async def test_a_client_that_leaves_aborts_at_the_engine(serve):
    engine, url = await serve(["first"], holds=True)
    body = {"messages": HELLO, "stream": True}
    async with aiohttp.ClientSession() as http:
        response = await http.post(f"{url}/chat/completions", json=body)
        await response.content.readline()
        response.close()
        assert await asyncio.to_thread(engine.aborted.wait, 60)


async def test_an_unexpected_failure_is_a_500_without_details_in_answer_or_log(serve, caplog):
    engine, url = await serve(["x"])

    def explode(request, callback):
        raise RuntimeError("the secret phrase")

    engine.submit = explode
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/chat/completions", json={"messages": HELLO}) as response,
    ):
        assert response.status == 500
        assert "secret" not in await response.text()
    assert "RuntimeError in POST /v1/chat/completions" in caplog.text
    assert "secret" not in caplog.text.replace('raise RuntimeError("the secret phrase")', "")


async def test_a_model_without_a_chat_template_says_where_to_go(tiny_gguf, serve):
    engine, url = await serve(["x"])
    context = ApiContext(
        engine=engine,
        template=None,
        model_name="tiny",
        clock=SystemClock(),
        metrics=EngineMetrics(engine, "tiny", CacheFacts(True, "float32")),
        gate=RequestGate(),
        publisher=None,
    )
    runner = web.AppRunner(make_application(context))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with client_of(url) as client:
            with pytest.raises(openai.BadRequestError, match="use /v1/completions"):
                await client.chat.completions.create(model="tiny", messages=HELLO)
    finally:
        await runner.cleanup()
