"""What the engine cannot do is refused with the field's name, before anything is computed."""

import io
import json

import pytest
from engine_api_helpers import HELLO, post

from headstart.engines.embedded.server import MAX_BODY_BYTES


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", b"{not json", "not a JSON object"),
        ("/v1/chat/completions", b"[1]", "not a JSON object"),
        ("/v1/chat/completions", b"", "empty"),
        ("/v1/chat/completions", b'{"a":' + b"[" * 100_000, "nested too deeply"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 1}]}, "content"),
        ("/v1/chat/completions", {"messages": HELLO, "temperature": -1}, "temperature"),
        ("/v1/chat/completions", {"messages": HELLO, "top_p": 0}, "top_p"),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2.5}, "max_tokens"),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 10**9}, "1024"),
        ("/v1/chat/completions", {"messages": HELLO, "n": 0}, "n"),
        ("/v1/chat/completions", {"messages": HELLO, "stop": ["a", ""]}, "stop"),
        ("/v1/chat/completions", {"messages": HELLO, "cache_salt": ""}, "cache_salt"),
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True}, "logprobs"),
        ("/v1/chat/completions", {"messages": HELLO, "logit_bias": {"1": 5}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": HELLO, "presence_penalty": 0.5}, "presence_penalty"),
        ("/v1/chat/completions", {"messages": HELLO, "chat_template": "x"}, "chat_template"),
        ("/v1/chat/completions", {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {"messages": HELLO, "tools": [{"type": "x"}]}, "tools[0]"),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "response_format": {"type": "grammar"}},
            "response_format",
        ),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "response_format": {"type": "json_schema"}},
            "json_schema.schema",
        ),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "chat_template_kwargs": {"tools": []}},
            "chat_template_kwargs",
        ),
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "prompt"),
        ("/v1/completions", {"prompt": [1, "a"]}, "prompt"),
        ("/v1/completions", {"prompt": [1, 999_999]}, "999999"),
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "a", "logprobs": 0}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of"),
        ("/v1/completions", {"prompt": ["a"] * 100, "n": 2}, "n=2"),
        (
            "/v1/completions",
            {"prompt": "a", "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/detokenize", {"tokens": [-1]}, "-1"),
    ],
)
async def test_a_bad_request_is_refused_by_the_fields_name(server, http, path, body, named):
    status, answer = await post(http, server, path, body)
    assert status == 400
    assert named in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": None},
        {"logprobs": False, "top_logprobs": None, "user": "u", "metadata": {"a": "b"}},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"store": False, "service_tier": "auto", "a_new_field": 1, "best_of": 1},
    ],
)
async def test_fields_that_change_nothing_are_accepted(server, http, extra):
    body = {"messages": HELLO, "max_tokens": 1, **extra}
    status, _ = await post(http, server, "/v1/chat/completions", body)
    assert status == 200


async def test_an_error_never_repeats_the_prompt(server, http):
    secret = "the secret phrase"
    body = {"messages": [{"role": "user", "content": secret}], "temperature": "hot"}
    _, answer = await post(http, server, "/v1/chat/completions", body)
    assert secret not in json.dumps(answer)


async def test_a_body_over_the_limit_is_refused(server, http):
    body = io.BytesIO(b"x" * (MAX_BODY_BYTES + 1))
    async with http.post(f"{server.url}/v1/completions", data=body) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "body_too_large"


async def test_unknown_paths_and_methods_are_answered_in_openais_form(server, http):
    async with http.get(f"{server.url}/v1/images") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "not_found"
    async with http.get(f"{server.url}/v1/completions") as response:
        assert response.status == 405
        assert "use POST" in (await response.json())["error"]["message"]


async def test_the_type_that_was_sent_is_not_followed_by_the_value(server, http):
    _, answer = await post(http, server, "/v1/completions", {"prompt": "a", "cache_salt": 5})
    assert answer["error"]["message"] == "`cache_salt`: Expected `str | null`, got `int`."
