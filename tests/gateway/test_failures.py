"""What the client gets when an engine does not do its part."""

import asyncio

import pytest

from headstart.engines.base import UpstreamConfig
from loopback import (
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    attempts,
    chat,
    eventually,
    get,
    pair,
    plain,
    post,
    running,
    token_event,
)


async def test_a_dead_replica_is_left_out_until_it_returns():
    """Refused connections cost no request, and its return is noticed."""
    engines = pair(plain)
    async with running(*engines) as up:
        port = engines[0].port
        await engines[0].stop()
        for _ in range(6):
            assert (await up.ask(post(chat()))).status == 200
        assert len(engines[1].requests) == 6
        await eventually(lambda: not up.gateway.replicas()[0].is_available)
        assert up.gateway.replicas()[0].reason
        assert port == engines[0].port
        await engines[0].start()
        await eventually(lambda: up.gateway.replicas()[0].is_available)
        assert up.gateway.replicas()[0].state == "warming"
        while not engines[0].requests:
            assert (await up.ask(post(chat()))).status == 200


async def test_without_any_replica_the_answer_is_503_with_retry_after():
    """And /ready says why."""
    engine = ScriptedEngine()
    await engine.start()
    await engine.stop()
    async with running(configs=[engine.config()], waits=False) as up:
        await eventually(lambda: "Connect" in up.gateway.replicas()[0].reason.title())
        reply = await up.ask(post(chat()))
        ready = await up.ask(get("/ready"))
        alive = await up.ask(get("/health"))
    assert reply.status == 503
    assert reply.headers["retry-after"] == "1"
    assert reply.json()["error"]["code"] == "no_replica_available"
    assert ready.status == 503
    assert "r0" in ready.json()["unavailable"]
    assert alive.status == 200


async def die_by_fin(wire: Wire) -> None:
    wire.writer.close()


async def die_by_reset(wire: Wire) -> None:
    wire.reset()


async def die_in_a_line(wire: Wire) -> None:
    await wire.send(b'14\r\ndata: {"choices":[{"')
    wire.writer.close()


async def die_of_nonsense(wire: Wire) -> None:
    await wire.send(b"zz\r\n")


@pytest.mark.parametrize("die", [die_by_fin, die_by_reset, die_in_a_line, die_of_nonsense])
async def test_death_in_a_stream_becomes_an_error_event_and_a_proper_end(die):
    """Whole events, then ours, no forged [DONE], no second attempt."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(token_event("a"))
        await read_first.wait()
        await die(wire)

    read_first = asyncio.Event()
    engines = pair(answer)
    async with running(*engines) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat(stream=True)))
        await client.read_head()
        assert await client.read_piece() == token_event("a")
        read_first.set()
        rest = b""
        while piece := await client.read_piece():
            rest += piece
        await client.send(get("/health"))
        assert (await client.read_reply()).status == 200
        client.close()
    assert rest.startswith(b'data: {"error":{"message":')
    assert rest.endswith(b'"code":"upstream_error"}}\n\n')
    assert rest.count(b"\n\n") == 1
    assert attempts(engines) == [0, 1]
    (record,) = up.records
    assert (record.status, record.error_code) == (200, "upstream_error")
    assert record.ttft_s is not None


async def test_death_in_a_stream_of_messages_is_told_in_anthropics_form():
    """By the event's name: without one its client would take the stream for complete."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(ping)
        await read_first.wait()
        await die_of_nonsense(wire)

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    read_first = asyncio.Event()
    async with running(*pair(answer)) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat(stream=True), path="/v1/messages"))
        await client.read_head()
        assert await client.read_piece() == ping
        read_first.set()
        event = await client.read_piece()
        assert await client.read_piece() == b""
        client.close()
        unknown = await up.ask(post({"model": "nope"}, path="/v1/messages"))
    assert event.startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error",')
    assert unknown.status == 404
    assert unknown.json()["type"] == "error"
    assert unknown.json()["error"]["type"] == "not_found_error"


async def test_death_in_a_plain_body_cuts_the_connection():
    """A short body must not look like a whole one."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        await seen.wait()
        wire.writer.close()

    seen = asyncio.Event()
    async with running(ScriptedEngine(answer)) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat()))
        await client.read_head()
        seen.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.reader.readexactly(100)
        client.close()
    assert up.records[0].error_code == "upstream_error"


async def test_an_error_event_of_the_engine_passes_and_is_noted():
    """vLLM reports a dead worker with status 200."""
    event = b'data: {"error":{"message":"worker died","code":500}}\n\n'

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(event)
        await wire.piece(b"data: [DONE]\n\n")
        await wire.end_stream()

    async with running(ScriptedEngine(answer)) as up:
        reply = await up.ask(post(chat(stream=True)))
    assert reply.body == event + b"data: [DONE]\n\n"
    assert up.records[0].error_code == "engine_error_event"


async def test_a_silent_engine_is_a_504_and_not_tried_elsewhere():
    """It may be at work; a second one would do it twice."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.closed()

    engines = pair(answer)
    async with running(*engines, upstream=UpstreamConfig(first_byte_s=0.05)) as up:
        reply = await up.ask(post(chat()))
        await eventually(lambda: not any(each.in_flight for each in up.gateway.replicas()))
    assert reply.status == 504
    assert reply.json()["error"]["code"] == "upstream_timeout"
    assert attempts(engines) == [0, 1]


async def test_an_engine_that_falls_silent_in_a_stream_is_given_up():
    """With an error event, and its connection closed."""
    closed = asyncio.Event()

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(token_event("a"))
        await wire.closed()
        closed.set()

    async with running(
        ScriptedEngine(answer), upstream=UpstreamConfig(between_chunks_s=0.05)
    ) as up:
        reply = await up.ask(post(chat(stream=True)))
        await closed.wait()
    assert reply.is_complete
    assert b"upstream_timeout" in reply.body


async def test_the_head_of_a_stream_does_not_shorten_the_wait_for_its_first_event():
    """Engines send the head at once and prefill for as long as first_byte_s allows."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await asyncio.sleep(0.2)
        await wire.piece(token_event("a"))
        await wire.end_stream()

    config = UpstreamConfig(between_chunks_s=0.05, first_byte_s=60)
    async with running(ScriptedEngine(answer), upstream=config) as up:
        reply = await up.ask(post(chat(stream=True)))
    assert reply.body == token_event("a")


async def test_bytes_after_a_complete_response_do_not_reach_the_next_client():
    """The connection is given up instead."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.answer(body=b"{}")
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen")

    async with running(ScriptedEngine(answer)) as up:
        for _ in range(5):
            reply = await up.ask(post(chat()))
            assert b"stolen" not in reply.body


async def test_two_responses_in_one_write_are_one_answer():
    """The second one's body must not be appended to the first one's."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.send(
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
            b"HTTP/1.1 404 Not\r\ncontent-length: 6\r\n\r\nstolen"
        )

    async with running(ScriptedEngine(answer)) as up:
        for _ in range(2):
            reply = await up.ask(post(chat()))
            assert (reply.status, reply.body) == (200, b"{}")
        assert up.gateway.replicas()[0].idle_connections == 0


async def test_a_connection_with_an_unread_request_is_not_kept():
    """The next request would wait behind what the engine did not want to read."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        close = b"" if head.startswith(b"POST") else b"connection: close\r\n"
        writer.write(b"HTTP/1.1 404 Not\r\n%bcontent-length: 0\r\n\r\n" % close)
        await stopped.wait()
        writer.close()

    stopped = asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024)
    engine = ScriptedEngine()
    engine.port = server.sockets[0].getsockname()[1]
    async with running(configs=[engine.config()]) as up:
        assert (await up.ask(post(chat("x" * (24 << 20))))).status == 404
        assert up.gateway.replicas()[0].idle_connections == 0
        stopped.set()
    server.close()


async def test_usage_that_cannot_be_decoded_does_not_hold_the_client():
    """The answer passes, and the record says that usage is unknown."""
    body = b'{"choices":[],"usage":{"prompt_tokens":"\xff"}}'

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.answer(body=body)

    async with running(ScriptedEngine(answer)) as up:
        assert (await up.ask(post(chat()))).body == body
    assert up.records[0].usage.input_tokens is None
