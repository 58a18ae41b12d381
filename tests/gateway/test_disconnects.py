"""A client that leaves: its engine stops at once, whatever the two were at."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loopback import (
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    eventually,
    post,
    running,
    token_event,
)

BODY = {"model": "m", "prompt": "x", "input": "x"}


async def nothing_yet(_wire: Wire) -> None:
    pass


async def head_of_a_stream(wire: Wire) -> None:
    await wire.begin_stream()


async def part_of_a_stream(wire: Wire) -> None:
    await wire.begin_stream()
    await wire.piece(token_event("a"))


async def part_of_a_body(wire: Wire) -> None:
    await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/files/1", "/tokenize"],
)
@pytest.mark.parametrize(
    ("begin", "is_stream"),
    [
        (nothing_yet, False),
        (nothing_yet, True),
        (head_of_a_stream, True),
        (part_of_a_stream, True),
        (part_of_a_body, False),
    ],
)
async def test_a_client_that_leaves_stops_the_engine(
    path: str, begin: Callable[[Wire], Awaitable[None]], is_stream: bool
):
    """On every route, streaming or not, at every stage of the answer."""
    noticed = asyncio.Event()
    started = asyncio.Event()

    async def answer(_request: Received, wire: Wire) -> None:
        await begin(wire)
        started.set()
        await wire.closed()
        noticed.set()

    async with running(ScriptedEngine(answer)) as up:
        client = await RawClient.connect(up.port)
        await client.send(post({**BODY, "stream": is_stream}, path=path))
        await started.wait()
        if begin in (part_of_a_stream, part_of_a_body):
            await client.read_head()
        client.close()
        await noticed.wait()
        await eventually(lambda: bool(up.records))
        assert up.gateway.replicas()[0].in_flight == 0
        assert up.gateway.num_open_requests == 0
    (record,) = up.records
    assert (record.status, record.error_code) == (499, "client_disconnected")


async def test_the_end_of_a_clients_input_counts_as_leaving():
    """As in most servers: who half-closes is not waited for."""
    noticed = asyncio.Event()

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.closed()
        noticed.set()

    engine = ScriptedEngine(answer)
    async with running(engine) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat()))
        await eventually(lambda: bool(engine.requests))
        client.writer.write_eof()
        await noticed.wait()
        client.close()


async def test_a_client_that_leaves_while_the_engine_is_dialled():
    """No connection is left over, and no slot."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        for _ in range(10):
            client = await RawClient.connect(up.port)
            client.writer.write(post(chat()))
            client.close()
        await eventually(lambda: up.gateway.num_client_connections == 0)
        await eventually(lambda: up.gateway.replicas()[0].in_flight == 0)
        assert (await up.ask(post(chat()))).status == 200
