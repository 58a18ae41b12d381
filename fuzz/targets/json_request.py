"""JSON request bodies: what the gateway reads of them and the one member that it adds."""

from collections.abc import Hashable

import msgspec

from fuzz.target import Target, strict_json
from headstart.errors import BadRequest
from headstart.gateway.prepare import CHAT_PATH, PreparedRequest, Preparer
from headstart.routing.config import PrefixHashConfig
from headstart.wire.http1 import HeaderSection, Request
from headstart.wire.openai import RequestPeek, peek_request

_PREPARER = Preparer(None, PrefixHashConfig(block_bytes=16))
_PARTS = ("tools", "system", "instructions", "messages", "prompt", "input")
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check(data: bytes) -> Hashable:
    """The gateway's view is a JSON parser's, and every byte but its own addition goes on."""
    try:
        peek = peek_request(data)
    except BadRequest as error:
        assert data not in error.message.encode() or len(data) < 16, "the error quotes the body"
        # Half a surrogate pair is no character; parsers differ on it (RFC 8259 §8.2).
        is_object = isinstance(_parsed(data), dict) and b"\\ud" not in data.lower()
        assert not is_object, "refused though it is an object"
        return error.message
    value = _parsed(data)
    if value is not None:
        assert isinstance(value, dict)
        _compare_peek(peek, value)
    return _check_prepared(data, peek, value)


def _parsed(data: bytes) -> object:
    try:
        return strict_json(data)
    except ValueError:
        return None


def _compare_peek(peek: RequestPeek, value: dict[str, object]) -> None:
    model = value.get("model")
    assert peek.model_name() == (model if isinstance(model, str) else "")
    assert peek.is_stream() == (value.get("stream") is True)
    options = value.get("stream_options")
    asks = isinstance(options, dict) and options.get("include_usage") is True
    assert peek.asks_for_usage() == asks
    assert peek.has_stream_options() == ("stream_options" in value)
    assert peek.has_prompt_object() == isinstance(value.get("prompt"), dict)
    parts: list[object] = []
    for name in _PARTS:
        part = value.get(name)
        if name == "messages":
            parts += part if isinstance(part, list) else [] if part is None else [part]
        elif name in value:
            parts.append(part)
    assert [strict_json(bytes(raw)) for raw in peek.prompt_parts()] == parts


def _check_prepared(data: bytes, peek: RequestPeek, value: object) -> Hashable:
    request = Request("POST", CHAT_PATH.encode(), HeaderSection([], {}), data)
    try:
        prepared = PreparedRequest(data)
        _PREPARER.prepare(request, prepared)
    except BadRequest as error:  # a template is named and there are none, or options are no JSON
        return "refused", error.message
    if not prepared.hides_usage:
        assert prepared.body == data
        return "as it came", len(prepared.prompt.keys) > 0
    assert peek_request(prepared.body).asks_for_usage()
    try:
        before, after = _RAW_MEMBERS.decode(data), _RAW_MEMBERS.decode(prepared.body)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
    ):  # in a key that the gateway skips; the engine is to complain
        return "with usage", "not UTF-8"
    before.pop("stream_options", None)
    after.pop("stream_options")
    assert {k: bytes(v) for k, v in before.items()} == {k: bytes(v) for k, v in after.items()}
    if isinstance(value, dict):
        options = {**(value.get("stream_options") or {}), "include_usage": True}
        if options.get("continuous_usage_stats") is True:
            options["continuous_usage_stats"] = False
        assert strict_json(prepared.body) == {**value, "stream_options": options}
    return "with usage", peek.has_stream_options()


TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"null", b"true", b"false"),
    *(b"0", b"-", b"1e999", b"1.0", b"9007199254740993", b"NaN", b'""', b"{}", b"[]", b"[[[[[["),
    *(b'"model":"m",', b'"stream":true,', b'"stream":false,', b'"stream":1,', b'"cache_salt":"s",'),
    *(b'"stream_options":{},', b'"stream_options":null,', b'"stream_options":[],'),
    *(b'"stream_options":{"include_usage":true},', b'"include_usage":false', b'"include_usage":1,'),
    *(b'"strea\\u006d":true,', b'"messages":[],', b'"prompt":{"id":"x"},', b'"prompt":"p",'),
    *(b'"stream_\\u006fptions":{"a":1},', b'"\\ud800":1,', b"\\u0000", b"\\u0022", b'\\"', b"\xff"),
    *(b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x00", b"\x7f", b'"tools":[{"a":1}],', b'"input":"x",'),
)

TARGET = Target("json_request", check, TOKENS, share=2.0)
