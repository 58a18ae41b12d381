"""A running gateway whose engine answers anything: passed on whole, or 502, or an honest cut."""

import asyncio
import json
from collections.abc import Hashable
from functools import cache
from zlib import crc32

from fuzz.live import LiveGateway
from fuzz.naive import sse
from fuzz.naive.http1 import Incomplete, NaiveMessage, Refused, read_response
from fuzz.target import Target, pieces
from fuzz.targets import http_response
from fuzz.targets import sse as sse_target

_BODIES = (b'{"model":"m"}', b'{"model":"m","stream":true}')
_NEXT_CLIENT_EVERY = 8


class _Script:
    """What the engine answers next."""

    raw = b""


_SCRIPT = _Script()


@cache
def _gateway() -> LiveGateway:
    return LiveGateway(_answer)


async def _answer(request: bytes, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001  whatever is asked
    for piece in pieces(_SCRIPT.raw):
        if writer.is_closing():
            break
        writer.write(piece)
        await asyncio.sleep(0)
    writer.close()


def check(data: bytes) -> Hashable:
    """The engine's own answer comes, or the gateway's error; nothing looks whole that is not."""
    live = _gateway()
    seed = crc32(data)
    is_stream = seed % 2 == 1
    _SCRIPT.raw = data
    raw = live.loop_run(_ask(live, _BODIES[is_stream]))
    kind = _judge(raw, data, is_stream=is_stream)
    if seed % _NEXT_CLIENT_EVERY == 0:
        assert live.loop_run(live.is_serving()), "the next client is not served"
    return kind


async def _ask(live: LiveGateway, body: bytes) -> bytes:
    reader, writer = await live.connect()
    try:
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        raw = b""
        try:
            while part := await reader.read(65_536):
                raw += part
        except ConnectionError:
            raw += b""  # a cut: what came before it counts
        return raw
    finally:
        writer.transport.abort()


def _judge(raw: bytes, data: bytes, *, is_stream: bool) -> Hashable:
    try:
        answer, end = read_response(raw, "POST", is_ended=False)
    except Incomplete:
        _assert_broken(data)
        return "cut"
    assert end == len(raw), "bytes after the answer"
    status = int(answer.start[0])
    if answer.values(b"x-headstart-replica"):
        return _compare_answer(answer, data, is_stream=is_stream)
    assert status in (502, 503), f"the gateway's own answer is {status}"
    assert json.loads(answer.body)["error"]["code"]
    return "error", status


def _assert_broken(data: bytes) -> None:
    """Only an answer that the engine did not complete may be cut off."""
    try:
        answer, end = read_response(data, "POST", is_ended=True)
    except (Incomplete, Refused):
        return
    if http_response.is_refused(data):
        return
    # An answer that ends with the connection is whole and unframed: so is what the client gets.
    assert end < len(data), f"a whole answer was cut off: {answer.start}"


def _compare_answer(answer: NaiveMessage, data: bytes, *, is_stream: bool) -> Hashable:
    try:
        original, _ = read_response(data, "POST", is_ended=True)
    except (Incomplete, Refused):
        shown = sse.events(answer.body)
        is_told = bool(shown) and b'"error"' in (sse.data(shown[-1]) or b"")
        assert is_told, "an answer that the engine did not complete looks whole"
        return "error event"
    assert answer.start[0] == original.start[0], "another status"
    if answer.body != original.body:
        assert is_stream, "another body"
        sse_target.compare_hidden(original.body, answer.body)
    return "whole", answer.start[0]


TARGET = Target(
    "live_engine",
    check,
    (*http_response.TOKENS, b"Content-Type: text/event-stream\r\n", *sse_target.TOKENS),
    share=0.01,
    is_live=True,
)
