"""A mock engine that fails on demand: one process, controlled by datagrams to its own port.

    python -m benchmarks.soak.engine PORT

It answers chat completions, streamed or not, with the request's token. A datagram `FAULT SHARE`
makes that share of the following requests fail so; `none 0` ends it. Being killed or stopped is
done from outside, by signals.
"""

import asyncio
import random
import re
import socket
import struct
import sys
from collections.abc import Callable
from typing import cast

import uvloop

from benchmarks.soak.answers import NUM_EVENTS

HOST = "127.0.0.1"
MODEL = "mock"
_TOKEN = re.compile(rb"tok-[0-9a-f]+")
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": *true')
_USAGE = re.compile(rb'"include_usage": *true')
_PADDING = re.compile(rb'"padding": *([0-9]+)')
_GAP_S = 0.004
_SLOW_S = 1.0
_LINGER_OFF = struct.pack("ii", 1, 0)

MODELS = b'{"object":"list","data":[{"id":"mock","object":"model","owned_by":"soak"}]}'
USAGE = b'{"prompt_tokens":100,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":64}}'
CHUNKED_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
# Heads and beginnings of bodies that are no HTTP, one of which a malformed answer begins with.
MALFORMED = (
    b"HTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX-Broken: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    b"\x16\x03\x01\x00\x05hello",
    CHUNKED_HEAD + b'zz\r\ndata: {"choices":[]}\n\n\r\n',
)


class Mode:
    """Which fault the engine has now, and in what share of its answers."""

    def __init__(self) -> None:
        self.fault = "none"
        self.share = 0.0
        self._rng = random.Random(1)

    def pick(self) -> str:
        """Return the fault of the next answer."""
        return self.fault if self._rng.random() < self.share else "none"


class Control(asyncio.DatagramProtocol):
    """Takes orders."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002  whoever sends it
        """Take an order."""
        fault, share = data.decode().split()
        self._mode.fault, self._mode.share = fault, float(share)


class EngineConnection(asyncio.Protocol):
    """One connection: reads requests, which come one at a time, and answers or fails."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._raw = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer once a request is complete."""
        self._raw += data
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._raw, 0, end)
        size = end + 4 + (int(length.group(1)) if length else 0)
        if len(self._raw) >= size:
            request, self._raw = self._raw[:size], self._raw[size:]
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET "):
            self._transport.write(json_response(200, MODELS))
            return
        found = _TOKEN.search(request)
        token = found.group() if found else b"tok-0"
        fault = self._mode.pick()
        is_stream = _STREAM.search(request) is not None
        if fault == "slow":
            self._later(_SLOW_S, lambda: self._give(request, token, is_stream=is_stream))
        elif fault == "error":
            status = random.choice((500, 502, 503))
            self._transport.write(error_response(status, token))
        elif fault == "malformed":
            self._transport.write(random.choice(MALFORMED))
            self._transport.close()
        elif fault == "reset_head":
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
            self._reset()
        elif fault in ("reset_body", "half_close"):
            self._transport.write(beginning(token, is_stream=is_stream))
            self._later(_GAP_S, self._reset if fault == "reset_body" else self._half_close)
        elif fault != "silent":
            self._give(request, token, is_stream=is_stream)

    def _give(self, request: bytes, token: bytes, *, is_stream: bool) -> None:
        if not is_stream:
            padding = _PADDING.search(request)
            body = plain_body(token, int(padding.group(1)) if padding else 0)
            self._transport.write(json_response(200, body))
            return
        has_usage = _USAGE.search(request) is not None
        self._transport.write(CHUNKED_HEAD)
        self._next_event(token, 0, has_usage=has_usage)

    def _next_event(self, token: bytes, position: int, *, has_usage: bool) -> None:
        if position < NUM_EVENTS:
            self._transport.write(chunk(content_event(token, position)))
            self._later(_GAP_S, lambda: self._next_event(token, position + 1, has_usage=has_usage))
            return
        usage = b'data: {"choices":[],"usage":%b}\n\n' % USAGE if has_usage else b""
        self._transport.write(chunk(usage + b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def _later(self, delay_s: float, work: Callable[[], None]) -> None:
        def unless_lost() -> None:
            if not self._transport.is_closing():
                work()

        asyncio.get_running_loop().call_later(delay_s, unless_lost)

    def _reset(self) -> None:
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)
        self._transport.abort()

    def _half_close(self) -> None:
        self._transport.write_eof()


def chunk(data: bytes) -> bytes:
    """Frame a piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def content_event(token: bytes, position: int) -> bytes:
    """Return one event of a stream; it carries the request's token and its own number."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b:%d"}}]}\n\n' % (token, position)


def plain_body(token: bytes, padding: int) -> bytes:
    """Return a whole answer's body."""
    return (
        b'{"id":"x","object":"chat.completion","model":"mock","padding":"%b","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}],"usage":%b}'
        % (b"x" * padding, token, USAGE)
    )


def beginning(token: bytes, *, is_stream: bool) -> bytes:
    """Return an answer without its end."""
    if not is_stream:
        return json_response(200, plain_body(token, 0))[:-40]
    events = b"".join(chunk(content_event(token, position)) for position in range(3))
    return CHUNKED_HEAD + events + b'40\r\ndata: {"choices":[{"ind'


def json_response(status: int, body: bytes) -> bytes:
    """Return a whole response."""
    head = b"HTTP/1.1 %d Mock\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def error_response(status: int, token: bytes) -> bytes:
    """Return an error of the engine's own."""
    body = b'{"error":{"message":"refused %b","type":"mock","code":"mock_%d"}}' % (token, status)
    return json_response(status, body)


async def serve(port: int) -> None:
    """Answer until the process is killed."""
    loop = asyncio.get_running_loop()
    mode = Mode()
    await loop.create_datagram_endpoint(lambda: Control(mode), local_addr=(HOST, port))
    server = await loop.create_server(lambda: EngineConnection(mode), HOST, port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
