"""What vLLM adds to OpenAI's surface: token ids, tokenising, metrics, small endpoints."""

import json
import os
import re
from pathlib import Path

import pytest
from engine_api_helpers import HELLO, cached, metric, post


async def test_tokenize_agrees_with_what_a_request_prefills(server, http):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"messages": HELLO, "tools": tools}
    _, counted = await post(http, server, "/tokenize", body)
    _, answer = await post(
        http,
        server,
        "/v1/chat/completions",
        {**body, "max_tokens": 3, "return_token_ids": True},
    )
    assert answer["prompt_token_ids"] == counted["tokens"]
    assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    assert counted["max_model_len"] == server.engine.context_length
    assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]


async def test_tokenize_and_detokenize_are_inverse(server, http):
    text = "<|im_start|>the user said ünïcode<|im_end|>"
    _, counted = await post(http, server, "/tokenize", {"prompt": text, "return_token_strs": True})
    assert len(counted["token_strs"]) == counted["count"]
    assert (counted["token_strs"][0], counted["token_strs"][-1]) == ("<|im_start|>", "<|im_end|>")
    _, back = await post(http, server, "/detokenize", {"tokens": counted["tokens"]})
    assert back == {"prompt": text}


async def test_a_stream_carries_token_ids_if_asked(server, http):
    body = {"messages": HELLO, "max_tokens": 6, "stream": True, "return_token_ids": True}
    async with http.post(f"{server.url}/v1/chat/completions", json=body) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert chunks[0]["prompt_token_ids"]
    assert "prompt_token_ids" not in chunks[1]
    assert 1 <= len(ids) <= 6


async def test_a_completion_carries_token_ids_if_asked(server, http):
    body = {"prompt": [10, 11, 12], "max_tokens": 4, "return_token_ids": True}
    _, answer = await post(http, server, "/v1/completions", body)
    assert answer["choices"][0]["prompt_token_ids"] == [10, 11, 12]
    async with http.post(f"{server.url}/v1/completions", json={**body, "stream": True}) as response:
        lines = (await response.text()).split("\n\n")[:-2]
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert choices[0]["prompt_token_ids"] == [10, 11, 12]
    assert all("token_ids" in choice for choice in choices)


async def test_health_version_and_event_sources_answer(server, http):
    async with http.get(f"{server.url}/health") as response:
        assert (response.status, await response.text()) == (200, "")
    async with http.get(f"{server.url}/version") as response:
        assert "version" in await response.json()
    async with http.get(f"{server.url}/kv_event_sources") as response:
        assert await response.json() == []


async def test_metrics_count_tokens_hits_and_ends(client, server, http):
    await cached(client)
    hits = await cached(client)
    assert await metric(http, server, "vllm:prefix_cache_hits_total") == hits
    assert await metric(http, server, "vllm:generation_tokens_total") == 4
    assert await metric(http, server, "vllm:time_to_first_token_seconds_count") == 2
    assert await metric(http, server, "vllm:inter_token_latency_seconds_count") == 2
    assert await metric(http, server, "vllm:e2e_request_latency_seconds_count") == 2
    assert await metric(http, server, "vllm:num_requests_running") == 0
    assert await metric(http, server, "vllm:kv_cache_usage_perc") == 0
    computed = await metric(http, server, "vllm:request_prefill_kv_computed_tokens_sum")
    assert computed == await metric(http, server, "vllm:prompt_tokens_total") - hits


@pytest.mark.skipif(
    "HEADSTART_TEST_DATA" not in os.environ, reason="HEADSTART_TEST_DATA is not set"
)
async def test_metrics_have_vllms_names_labels_and_buckets(client, server, http):
    await cached(client)
    sample = Path(os.environ["HEADSTART_TEST_DATA"], "captures", "vllm-metrics-sample.txt")
    theirs = series(sample.read_text())
    async with http.get(f"{server.url}/metrics") as response:
        ours = series(await response.text())
    for name, labels in ours.items():
        if name.startswith("vllm:") and name != "vllm:cache_config_info":
            assert labels <= theirs[name], name
    assert {
        "vllm:prefix_cache_hits_total",
        "vllm:time_to_first_token_seconds_bucket",
    } <= ours.keys()


def series(page):
    """Return name → label sets, without the model's own name."""
    found = {}
    for line in page.splitlines():
        match = re.fullmatch(r"([^#{\s]+){(.*)} \S+", line)
        if match:
            labels = re.sub(r'model_name="[^"]*"', "model_name", match[2])
            found.setdefault(match[1], set()).add(labels)
    return found


async def test_the_cache_info_has_the_pools_size(server, http):
    async with http.get(f"{server.url}/metrics") as response:
        page = await response.text()
    (info,) = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert 'block_size="16"' in info
    assert 'num_gpu_blocks="512"' in info
