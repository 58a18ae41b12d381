"""The official client against the gateway, unchanged."""

import openai
import pytest

from loopback import (
    DONE_EVENT,
    ROLE_EVENT,
    USAGE_EVENT,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    running,
    stream,
    token_event,
)

MESSAGES = chat()["messages"]


def client_of(port: int, **options: object) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, **options)


async def test_a_chat_completion():
    """Text and usage."""
    async with running(ScriptedEngine()) as up, client_of(up.port) as client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == "héllo"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 64


@pytest.mark.parametrize("asks", [False, True])
async def test_a_stream(asks):
    """Usage comes to those who asked and only to them."""
    options = {"stream_options": {"include_usage": True}} if asks else {}
    async with running(ScriptedEngine(stream)) as up, client_of(up.port) as client:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True, **options
            )
        ]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "ab"
    assert any(chunk.usage for chunk in chunks) is asks
    assert up.records[0].usage.input_tokens == 100


async def test_models():
    """The list and one of it."""
    async with running(ScriptedEngine()) as up, client_of(up.port) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).id == "m"


async def test_errors_become_the_clients_exceptions():
    """By status, with our message and code."""
    async with running(ScriptedEngine()) as up, client_of(up.port) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="nope", messages=MESSAGES)
    assert caught.value.code == "not_found"
    assert caught.value.param == "model"


async def test_an_engine_that_dies_in_a_stream_raises_in_the_client():
    """After the text that came; it is not taken for the end."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(ROLE_EVENT + token_event("a"))
        wire.writer.close()

    texts: list[str | None] = []

    async def read(client: openai.AsyncOpenAI) -> None:
        chunks = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for chunk in chunks:
            texts.append(chunk.choices[0].delta.content)  # noqa: PERF401  kept when it raises

    async with running(ScriptedEngine(answer)) as up, client_of(up.port) as client:
        with pytest.raises(openai.APIError, match="closed the connection"):
            await read(client)
    assert texts == ["", "a"]


async def test_a_client_that_stops_reading_its_stream_stops_the_engine():
    """Closing the stream is how applications cancel."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(token_event("a"))
        await wire.closed()
        await wire.piece(USAGE_EVENT + DONE_EVENT)

    async with running(ScriptedEngine(answer)) as up, client_of(up.port) as client:
        answer_stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True
        )
        async for _ in answer_stream:
            break
        await answer_stream.close()
        while not up.records:
            await client.models.list()
    assert 499 in [record.status for record in up.records]
