"""A shared port: who takes a connection, who leaves it, and what a process that stops leaves."""

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager

import pytest

from headstart.gateway.acceptor import Acceptor
from loopback import RawClient, ScriptedEngine, chat, eventually, post, running


class Board:
    """What the processes tell each other, here in one."""

    def __init__(self, cells, index):
        self.cells = cells
        self.index = index

    def publish(self, num_connections):
        self.cells[self.index] = num_connections

    def fewest(self):
        return min(self.cells)

    def leave(self):
        self.cells[self.index] = 1 << 62


class Taken(asyncio.Protocol):
    """A connection that says who took it."""

    def __init__(self, name, held):
        self.name = name
        self.held = held

    def connection_made(self, transport):
        self.held.add(self)
        transport.write(self.name)

    def connection_lost(self, exc):
        self.held.discard(self)


@asynccontextmanager
async def sharing(number, *, cells=None, tls=None):
    """So many acceptors on one port; each answers a connection with its number."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        cells = cells if cells is not None else [1 << 62] * number
        acceptors = []
        for index in range(number):
            held = set()
            acceptors.append(
                Acceptor(
                    [listener.dup()],
                    lambda index=index, held=held: Taken(b"%d" % index, held),
                    lambda held=held: len(held),
                    Board(cells, index),
                    tls=tls,
                    handshake_s=5.0,
                )
            )
            acceptors[-1].start()
        try:
            yield listener.getsockname()[1], acceptors
        finally:
            for acceptor in acceptors:
                await acceptor.close()


async def takers(port, number):
    """Connect so many times and keep the connections; returns who took each."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
    names = [int(await reader.readexactly(1)) for reader, _writer in opened]
    return names, [writer for _reader, writer in opened]


async def closed(writers):
    for writer in writers:
        writer.close()
    for writer in writers:
        await writer.wait_closed()


@pytest.mark.parametrize("number", [2, 3])
async def test_each_takes_its_part(number):
    """Nearly even, one after the other: a moment is all that one leaves to another."""
    async with sharing(number) as (port, _acceptors):
        names, writers = await takers(port, 24)
        await closed(writers)
    assert min(names.count(index) for index in range(number)) >= 24 // number - 3


async def test_a_burst_is_shared(tmp_path):
    """All at once; some slack, so that it need not wait."""
    async with sharing(2) as (port, _acceptors):
        found = await asyncio.gather(*(takers(port, 1) for _ in range(64)))
        counts = [sum(names == [index] for names, _writers in found) for index in range(2)]
        await closed([writer for _names, writers in found for writer in writers])
    assert sum(counts) == 64
    assert min(counts) >= 16


async def test_a_connection_waits_for_nobody_who_does_not_come():
    """Another process seems idle and is stuck: this one takes the connection a moment later."""
    async with sharing(1, cells=[1 << 62, 0]) as (port, _acceptors):
        names, writers = await takers(port, 5)
        await closed(writers)
    assert names == [0] * 5


async def test_who_stops_leaves_the_port_to_the_others():
    """And what it holds stays open."""
    async with sharing(2) as (port, acceptors):
        before, writers = await takers(port, 8)
        acceptors[0].stop()
        meanwhile, more = await takers(port, 8)
        acceptors[0].start()
        after, most = await takers(port, 8)
        await closed([*writers, *more, *most])
    assert set(before) == {0, 1}
    assert meanwhile == [1] * 8
    assert after.count(0) >= 6


async def test_a_client_that_does_not_speak_tls_is_dropped():
    """Its handshake fails, and nothing of it is left."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with sharing(1, tls=context) as (port, acceptors):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert not (await reader.read()).startswith(b"HTTP")
        await eventually(lambda: not acceptors[0]._starting)
        await closed([writer])


async def test_a_gateway_serves_from_a_shared_port():
    """Requests, then leaving it, then nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        cells = [1 << 62]
        start = {"sockets": [listener.dup()], "board": Board(cells, 0)}
        async with running(ScriptedEngine(), shared=start) as up:
            reply = await up.ask(post(chat()))
            assert reply.status == 200
            client = await RawClient.connect(up.port)
            await client.send(post(chat()))
            assert (await client.read_reply()).status == 200
            await up.gateway.retire()
            assert await client.is_closed()
            assert cells == [1 << 62]
            client.close()
