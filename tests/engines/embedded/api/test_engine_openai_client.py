"""The official client works against the engine unchanged, and sees the cache in `usage`."""

import openai
import pytest
from engine_api_helpers import HELLO, LONG, cached


async def test_a_chat_answer_has_text_reason_and_usage(client):
    answer = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.completion_tokens <= 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_chat_stream_gives_the_same_text_as_the_whole_answer(client):
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "seed": 7, "temperature": 50}
    whole = await client.chat.completions.create(**ask)
    chunks = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_ends_with_usage_if_asked(client):
    stream = await client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0
    assert chunks[-1].usage.completion_tokens <= 4


async def test_a_stream_has_no_usage_if_not_asked(client):
    stream = await client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=4, stream=True
    )
    assert all([chunk.usage is None and chunk.choices async for chunk in stream])


async def test_completions_take_text_texts_and_token_ids(client):
    text = await client.completions.create(model="tiny", prompt="Hello there", max_tokens=3, seed=1)
    assert text.object == "text_completion"
    assert len(text.choices) == 1
    several = await client.completions.create(
        model="tiny", prompt=["Hello there", "the end"], max_tokens=3, seed=1
    )
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == text.choices[0].text
    ids = await client.completions.create(model="tiny", prompt=[10, 11, 12], max_tokens=3)
    assert ids.usage.prompt_tokens == 3
    lists = await client.completions.create(model="tiny", prompt=[[10, 11], [12]], max_tokens=3)
    assert lists.usage.prompt_tokens == 3
    assert len(lists.choices) == 2


async def test_a_completion_has_sixteen_tokens_by_default(client):
    answer = await client.completions.create(
        model="tiny", prompt="the", extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 16


async def test_a_chat_answer_may_use_the_rest_of_the_context(client, server):
    answer = await client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.total_tokens == server.engine.context_length
    assert answer.choices[0].finish_reason == "length"


async def test_a_completion_stream_gives_the_same_text_as_the_whole_answer(client):
    ask = {
        "model": "tiny",
        "prompt": ["the user", "another"],
        "max_tokens": 9,
        "seed": 3,
        "temperature": 50,
    }
    whole = await client.completions.create(**ask)
    texts = ["", ""]
    async for chunk in await client.completions.create(**ask, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


async def test_several_choices_differ_by_seed_and_count_the_prompt_once(client):
    answer = await client.chat.completions.create(
        model="tiny", messages=HELLO, n=3, seed=5, max_tokens=20, temperature=50
    )
    one = await client.chat.completions.create(
        model="tiny", messages=HELLO, seed=5, max_tokens=20, temperature=50
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.choices[0].message.content == one.choices[0].message.content
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens


async def test_a_stop_string_ends_the_answer_before_it(client):
    ask = {"model": "tiny", "prompt": "the user", "max_tokens": 24, "temperature": 50, "seed": 2}
    whole = (await client.completions.create(**ask)).choices[0].text
    stop = whole[len(whole) // 2]
    cut = (await client.completions.create(**ask, stop=[stop])).choices[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


async def test_models_lists_the_one_model_with_its_context(client, server):
    (model,) = (await client.models.list()).data
    assert model.id == "tiny"
    assert model.max_model_len == server.engine.context_length


async def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="'other' does not exist"):
        await client.chat.completions.create(model="other", messages=HELLO)


async def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(client, server):
    long = [{"role": "user", "content": "x " * 2000}]
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(model="tiny", messages=long)
    assert raised.value.code == "context_length_exceeded"
    assert str(server.engine.context_length) in raised.value.message


async def test_the_second_request_finds_the_prefix_in_the_cache(client):
    assert await cached(client) == 0
    tokens = (await client.completions.create(model="tiny", prompt=LONG, max_tokens=1)).usage
    assert tokens.prompt_tokens_details.cached_tokens == (tokens.prompt_tokens - 1) // 16 * 16


async def test_only_requests_with_the_same_salt_share(client):
    first, again, other = [await cached(client, salt) for salt in ("A", "A", "B")]
    assert (first, other) == (0, 0)
    assert again > 0


async def test_without_prefix_caching_nothing_is_found(start_server):
    server = await start_server(enable_prefix_caching=False)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        assert [await cached(client) for _ in range(2)] == [0, 0]


async def test_reset_drops_what_was_cached(client, server, http):
    await cached(client)
    async with http.post(f"{server.url}/reset_prefix_cache") as response:
        assert response.status == 200
    assert await cached(client) == 0


async def test_greedy_output_is_the_same_cold_and_warm(client):
    answers = [
        await client.completions.create(model="tiny", prompt=LONG, max_tokens=16, temperature=0)
        for _ in range(2)
    ]
    assert answers[0].choices[0].text == answers[1].choices[0].text
    assert answers[1].usage.prompt_tokens_details.cached_tokens > 0
