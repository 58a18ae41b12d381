"""`ResponseRelay` and the sockets below it: what a long stream costs, and when it is sent."""

import asyncio
import os
import socket
import tracemalloc
from typing import cast

from headstart.gateway.relay import ResponseRelay
from headstart.wire.http1 import HeaderSection, Request, ResponseHead
from loopback import RawClient, ScriptedEngine, chat, post, running, token_event

STREAM = ResponseHead(200, b"OK", HeaderSection([], {b"content-type": b"text/event-stream"}))
REQUEST = Request("POST", b"/v1/chat/completions", HeaderSection([], {}))


def is_sent_at_once(transport: asyncio.Transport) -> bool:
    number = os.dup(transport.get_extra_info("socket").fileno())
    with socket.socket(fileno=number) as plain:
        return plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_stream_of_any_length_is_kept_in_the_same_memory():
    """Nothing of what has passed is held, whether or not usage is taken out."""
    for hides_usage in (False, True):
        relay = ResponseRelay(REQUEST, STREAM, b"", hides_usage=hides_usage)
        events = [token_event(f"token {number}") for number in range(50)]
        tracemalloc.start()
        for event in events:
            relay.body(event)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(200):
            for event in events:
                relay.body(event)
        after, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert after - before < 2000
        assert peak - before < 4000


async def test_small_writes_are_sent_at_once_on_both_sides():
    """Nagle's algorithm would hold a token back until the one before is acknowledged."""
    async with running(ScriptedEngine()) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat()))
        await client.read_reply()
        gateway = up.gateway
        (accepted,) = gateway._server._connections
        (pool,) = gateway._replicas.pools.values()
        assert pool._idle
        for connection in (accepted, *pool._idle):
            assert is_sent_at_once(cast("asyncio.Transport", connection._transport))
        client.close()
