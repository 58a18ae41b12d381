"""A running gateway whose clients send anything: 4xx in form or a close, and the next is served."""

import asyncio
import json
from collections.abc import Hashable
from functools import cache
from zlib import crc32

from fuzz.live import LiveGateway
from fuzz.naive.http1 import NaiveMessage, Refused, read_requests, read_response
from fuzz.target import Target, pieces
from fuzz.targets.http_request import TOKENS
from headstart.wire.http1_parse import origin_form

# Whatever state the hostile bytes leave the reader in, these bring it to an end: they fill the
# largest body and are then no request.
_END = b"\x00" * 4096
_OWN_STATUSES = frozenset({200, 400, 401, 404, 405, 413, 431, 503})
_NEXT_CLIENT_EVERY = 8


@cache
def _gateway() -> LiveGateway:
    return LiveGateway(_echo)


async def _echo(request: bytes, writer: asyncio.StreamWriter) -> None:
    (message,) = read_requests(request).messages
    method, target = message.start
    body = json.dumps({"m": method.decode(), "t": target.hex(), "b": message.body.hex()}).encode()
    head = b"HTTP/1.1 200 OK\r\nX-Echo: 1\r\nContent-Length: %d\r\n\r\n" % len(body)
    writer.write(head if method == b"HEAD" else head + body)


def check(data: bytes) -> Hashable:
    """Each answer is whole and belongs to the request that the standard sees in its place."""
    live = _gateway()
    seed = crc32(data)
    leaves = seed % 16 == 1
    raw = live.loop_run(_exchange(live, data, leaves=leaves))
    kinds = () if leaves else _judge(raw, read_requests(data + _END).messages)
    if seed % _NEXT_CLIENT_EVERY == 0:
        assert live.loop_run(live.is_serving()), "the next client is not served"
    return kinds


async def _exchange(live: LiveGateway, data: bytes, *, leaves: bool) -> bytes:
    reader, writer = await live.connect()
    try:
        for piece in pieces(data):
            if writer.is_closing():
                break
            writer.write(piece)
            await asyncio.sleep(0)
        if leaves:
            return b""
        if not writer.is_closing():
            writer.write(_END)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def _judge(raw: bytes, messages: list[NaiveMessage]) -> tuple[int, ...]:
    statuses: list[int] = []
    at = 0
    while at < len(raw):
        message = messages[len(statuses)] if len(statuses) < len(messages) else None
        response, at = _response(raw, at, message)
        status = int(response.start[0])
        statuses.append(status)
        assert status in _OWN_STATUSES, f"status {status}"
        if response.values(b"x-echo"):
            assert message is not None, "the engine got a request that is none"
            _compare_echo(response, message)
        elif status >= 400 and response.body:
            error = json.loads(response.body)["error"]
            assert error["message"], "an error without its form"
            assert error["code"], "an error without its code"
    assert len(statuses) <= len(messages) + 1, "more answers than requests"
    return tuple(statuses[:4])


def _response(raw: bytes, at: int, message: NaiveMessage | None) -> tuple[NaiveMessage, int]:
    method = "POST" if message is None else message.start[0].decode("latin-1")
    response, size = read_response(raw[at:], method, is_ended=True)
    if method == "HEAD" and raw[at + size : at + size + 5] not in (b"", b"HTTP/"):
        # It was refused before its method was known.
        response, size = read_response(raw[at:], "POST", is_ended=True)
    if at + size < len(raw) and raw[at + size : at + size + 5] != b"HTTP/":
        raise Refused("bytes between two answers")
    return response, at + size


def _compare_echo(response: NaiveMessage, message: NaiveMessage) -> None:
    method, target = message.start
    if method == b"HEAD":
        return
    echo = json.loads(response.body)
    assert echo["m"] == method.decode()
    assert bytes.fromhex(echo["t"]) == origin_form(target)
    sent = bytes.fromhex(echo["b"])
    if sent != message.body:  # the gateway's own request for usage is all that it may add
        added = json.loads(sent.decode("latin-1"))
        assert added["stream_options"]["include_usage"] is True


TARGET = Target("live_client", check, TOKENS, share=0.01, is_live=True)
