"""`wire.openai`: what is read of a body, and the form of errors."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import BadRequest, NotFound
from headstart.wire.openai import (
    error_body,
    error_event,
    parse_object,
    peek_request,
    peek_response,
    usage_of,
)


def test_a_body_is_read_as_far_as_needed():
    """Model, stream, and the raw text of what enters the model."""
    peek = peek_request(b'{"model":"m","stream":true,"messages":[ {"a": 1.0} ],"x":{"y":1}}')
    assert peek.model_name() == "m"
    assert peek.is_stream()
    assert [bytes(message) for message in peek.messages] == [b'{"a": 1.0}']
    assert not peek.has_prompt_object()
    assert not peek.has_stream_options()


def test_parts_come_in_the_order_in_which_they_enter_the_model():
    """Tools are rendered before messages, whatever the body's order; each message is a part."""
    peek = peek_request(b'{"messages":[{"a":1}, "b"],"input":7,"tools":[2],"system":"s"}')
    parts = [bytes(part) for part in peek.prompt_parts()]
    assert parts == [b"[2]", b'"s"', b'{"a":1}', b'"b"', b"7"]


@pytest.mark.parametrize(
    ("messages", "parts"),
    [
        (b"[]", []),
        (b"null", []),
        (b'"x"', [b'"x"']),
        (b'{"role":"user"}', [b'{"role":"user"}']),
        (b"[null, 1e999]", [b"null", b"1e999"]),
    ],
)
def test_messages_that_are_none_are_left_to_the_engine(messages, parts):
    """What is no array is one part; the rest of the body is read all the same."""
    peek = peek_request(b'{"model":"m","messages":%b,"stream":true,"prompt":"p"}' % messages)
    assert (peek.model_name(), peek.is_stream()) == ("m", True)
    assert [bytes(part) for part in peek.prompt_parts()] == [*parts, b'"p"']


def test_more_messages_than_anybody_sends_are_one_part():
    """A body of commas must not become ten million objects."""
    zeros = b"[" + b"0," * (1 << 19) + b"0]"
    body = b'{"messages":%b,"model":"m"}' % zeros
    peek = peek_request(body)
    assert [bytes(part) for part in peek.prompt_parts()] == [zeros]
    assert peek.model_name() == "m"
    text = b'{"role":"user","content":"%b"}' % (b"some words, and more " * 60)
    many = peek_request(b'{"messages":[%b]}' % b",".join([text] * 1000))
    assert len(many.prompt_parts()) == 1000


def test_what_else_decides_how_a_prompt_begins_is_told_apart():
    """Parameters of the chat template; how the prompt ends is none of them."""
    plain = peek_request(b'{"messages":[],"add_generation_prompt":false}')
    assert plain.template_parameters() == b""
    bodies = [
        b'{"chat_template_kwargs":{"a":1}}',
        b'{"chat_template_kwargs":{"a":2}}',
        b'{"documents":{"a":1}}',
        b'{"reasoning_effort":"low"}',
        b'{"chat_template":"low"}',
        b'{"chat_template":"low","reasoning_effort":"low"}',
    ]
    found = {peek_request(body).template_parameters() for body in bodies}
    assert len(found) == len(bodies)
    assert b"" not in found


def test_the_answers_schema_counts_where_the_engine_renders_it():
    """vLLM and SGLang constrain the output by it and leave the prompt alone."""
    peek = peek_request(b'{"response_format":{"type":"json_object"}}')
    assert peek.template_parameters() == b""
    assert b"json_object" in peek.template_parameters(renders_response_format=True)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":5}',
        b'{"stream":"maybe"}',
        b'{"stream":"false"}',
        b'{"stream":[1]}',
        b'{"messages":"x"}',
        b'{"stream_options":3}',
        b'{"tools":{}}',
    ],
)
def test_wrong_types_are_left_to_the_engine(body):
    """The gateway reads nothing out of them and refuses nothing."""
    peek = peek_request(body)
    assert peek.model_name() == ""
    assert not peek.is_stream()
    assert not peek.asks_for_usage()


@pytest.mark.parametrize("word", ["true", "1", "1.0", '"true"', '"True"', '"yes"', '"on"', '"1"'])
def test_what_vllm_takes_for_true_asks_for_a_stream(word):
    """Else it would stream and nobody would have asked for its usage."""
    assert peek_request(b'{"stream":%b}' % word.encode()).is_stream()


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        (b'{"include_usage":true}', True),
        (b'{"include_usage":false}', False),
        (b"{}", False),
        (b"null", False),
    ],
)
def test_whether_usage_was_asked_for(options, asks):
    """Only `true` asks."""
    peek = peek_request(b'{"stream_options":' + options + b"}")
    assert peek.asks_for_usage() is asks
    assert peek.has_stream_options()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"a":1}x', b'{"a":NaN}', b'{"model":"\xff"}', b"[" * 100_000],
)
def test_what_is_not_a_json_object_is_refused_without_quoting_it(body):
    """Prompt text never reaches an error message."""
    for parse in (peek_request, parse_object):
        with pytest.raises(BadRequest) as caught:
            parse(body)
        assert len(caught.value.message) < 200


def test_the_message_of_a_bad_body_holds_nothing_of_it():
    """Not even the neighbourhood of the error."""
    with pytest.raises(BadRequest) as caught:
        peek_request(b'{"messages":[{"content":"secret words" "oops"}]}')
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"usage":{"prompt_tokens":1}}', {"prompt_tokens": 1}),
        (b'{"message":{"usage":{"input_tokens":1}}}', {"input_tokens": 1}),
        (b'{"response":{"usage":{"input_tokens":1}}}', {"input_tokens": 1}),
        (b'{"message":{"x":1}}', None),
        (b'{"usage":null}', None),
        (b'{"usage":3}', None),
        (b"{}", None),
    ],
)
def test_usage_is_found_where_each_api_puts_it(body, usage):
    """Chat and completions, Anthropic's messages, OpenAI's responses."""
    peek = peek_response(body)
    assert peek is not None
    assert peek.usage_object() == usage


@pytest.mark.parametrize(
    ("choices", "is_only"), [(b"[]", True), (b"[ ]", True), (b"[{}]", False), (b"null", False)]
)
def test_the_usage_event_has_no_choices(choices, is_only):
    """OpenAI's documentation of `include_usage`."""
    peek = peek_response(b'{"choices":' + choices + b',"usage":{"prompt_tokens":1}}')
    assert peek is not None
    assert peek.is_usage_only() is is_only


def test_a_response_that_is_not_json_gives_nothing():
    """It is passed on and not understood."""
    assert peek_response(b"<html>") is None


def test_errors_have_openais_form():
    """`error.message`, `type`, `param`, `code`."""
    error = NotFound("No such model.", param="model")
    body = json.loads(error_body(error))
    assert body == {
        "error": {
            "message": "No such model.",
            "type": "not_found_error",
            "param": "model",
            "code": "not_found",
        }
    }
    assert error_event(error) == b"data: " + error_body(error) + b"\n\n"


@given(st.binary(max_size=200))
def test_no_body_does_more_than_raise_bad_request(raw):
    """Hostile bytes included."""
    for body in (raw, b"{" + raw + b"}"):
        with contextlib.suppress(BadRequest):
            peek_request(body).asks_for_usage()
        peek = peek_response(body)
        if peek is not None:
            peek.usage_object()


@pytest.mark.parametrize(
    "body",
    [
        b'{"usage":{"a":"\xff"}}',
        b'{"usage":{"a":1e999}}',
        b'{"message":{"usage":{"\xff":1}}}',
        b'{"response":{"usage":{"a":' + b"9" * 5000 + b"}}}",
    ],
)
def test_usage_that_cannot_be_decoded_is_unknown(body):
    """The parser skips it at first, and finds out later."""
    peek = peek_response(body)
    assert peek is not None
    assert peek.usage_object() is None


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"a":[{}],"usage":{"prompt_tokens":1}}', {"prompt_tokens": 1}),
        (b'{"usage":null}', None),
        (b'{"usage":7}', None),
        (b'{"usage":[],"a":1}', None),
        (b"{}", None),
        (b"[]", None),
        (b'{"usage":{"a":1}', None),
        (b'{"response":{"usage":{"input_tokens":1}}}', {"input_tokens": 1}),
        (b'{"a":1e999,"usage":{"a":1}}', {"a": 1}),
        (b'{"a":"\xff","usage":{"a":1}}', {"a": 1}),
    ],
)
def test_usage_is_found_in_a_whole_body(body, usage):
    """What else the body holds makes no difference."""
    assert usage_of(body) == usage
