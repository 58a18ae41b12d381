"""Start, drain, close, TLS, and what is left over: nothing."""

import asyncio
import contextlib
import gc
import socket
import ssl

import pytest

from certificates import make_certificate
from headstart.engines.base import UpstreamConfig
from headstart.engines.upstream import Call
from headstart.errors import ConfigError
from headstart.gateway.exchange import Exchange
from headstart.gateway.gateway import Gateway
from headstart.gateway.relay import ResponseRelay
from headstart.wire.http1 import Request, ResponseHead
from headstart.wire.sse import SseScanner
from loopback import (
    DONE_EVENT,
    ListRecorder,
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    eventually,
    get,
    post,
    running,
    stream,
    token_event,
)


async def test_draining_lets_open_requests_finish_and_refuses_new_ones():
    """503 with `connection: close`; idle connections end at once."""
    may_end = asyncio.Event()

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(token_event("a"))
        await may_end.wait()
        await wire.piece(DONE_EVENT)
        await wire.end_stream()

    async with running(ScriptedEngine(answer)) as up:
        idle = await RawClient.connect(up.port)
        await idle.send(get("/health"))
        await idle.read_reply()
        busy = await RawClient.connect(up.port)
        await busy.send(post(chat(stream=True)))
        await busy.read_head()
        await busy.read_piece()
        draining = asyncio.ensure_future(up.gateway.drain())
        await eventually(lambda: up.gateway.is_draining)
        assert await idle.is_closed()
        refused = await up.ask(post(chat()))
        ready = await up.ask(get("/ready"))
        assert not draining.done()
        may_end.set()
        assert await busy.read_piece() == DONE_EVENT
        assert await busy.read_piece() == b""
        assert await busy.is_closed()
        await draining
        for client in (idle, busy):
            client.close()
    assert refused.status == 503
    assert refused.headers["connection"] == "close"
    assert ready.status == 503
    assert ready.json()["status"] == "draining"
    assert sorted(record.status for record in up.records) == [200, 503]


async def test_a_connection_made_just_before_draining_gets_its_answer():
    """A refusal in form, and not a connection that closes under the request."""
    async with running(ScriptedEngine()) as up:
        client = await RawClient.connect(up.port)
        await eventually(lambda: up.gateway.num_client_connections == 1)
        draining = asyncio.ensure_future(up.gateway.drain())
        await eventually(lambda: up.gateway.is_draining)
        await client.send(post(chat()))
        assert (await client.read_reply()).status == 503
        assert await client.is_closed()
        await draining
        client.close()


async def test_what_is_open_after_drain_s_fails_in_form():
    """A stream with an event, the rest with a 503; no client is said to have left."""

    async def answer(request: Received, wire: Wire) -> None:
        if request.json().get("stream"):
            await wire.begin_stream()
            await wire.piece(token_event("a"))
        await wire.closed()

    engines = [ScriptedEngine(answer), ScriptedEngine(answer, name="r1")]
    async with running(*engines, drain_s=0.05) as up:
        streaming = await RawClient.connect(up.port)
        await streaming.send(post(chat(stream=True)))
        await streaming.read_head()
        assert await streaming.read_piece() == token_event("a")
        waiting = await RawClient.connect(up.port)
        await waiting.send(post(chat()))
        await eventually(lambda: sum(len(engine.requests) for engine in engines) == 2)
        await up.gateway.drain()
        await up.gateway.close()
        event = await streaming.read_piece()
        assert await streaming.read_piece() == b""
        reply = await waiting.read_reply()
        streaming.close()
        waiting.close()
    assert event.startswith(b'data: {"error":{"message":"The gateway is shutting down')
    assert (reply.status, reply.json()["error"]["code"]) == (503, "no_replica_available")
    assert sorted((record.status, record.error_code) for record in up.records) == [
        (200, "no_replica_available"),
        (503, "no_replica_available"),
    ]


async def test_draining_an_idle_gateway_is_immediate():
    """Nothing to wait for."""
    async with running(ScriptedEngine()) as up:
        await up.gateway.drain()


async def test_nothing_is_left_after_close():
    """No task, no connection."""
    before = asyncio.all_tasks()
    engine = ScriptedEngine(stream)
    async with running(engine) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat(stream=True)))
        await client.read_reply()
        assert up.gateway.num_client_connections == 1
    await eventually(lambda: asyncio.all_tasks() == before)
    assert up.gateway.num_client_connections == 0
    client.close()
    with pytest.raises(OSError):
        await RawClient.connect(up.port)


async def test_finished_requests_leave_no_garbage_for_the_collector():
    """Nothing on the hot path is a reference cycle, so no collection adds to a request's time."""
    kinds = (Exchange, Call, ResponseRelay, SseScanner, Request, ResponseHead)

    def count() -> int:
        return sum(type(each) in kinds for each in gc.get_objects())

    async with running(ScriptedEngine(stream)) as up, contextlib.AsyncExitStack() as stack:
        client = await RawClient.connect(up.port)
        stack.callback(client.close)
        await client.send(post(chat(stream=True)))
        await client.read_reply()
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        before = count()
        for _ in range(20):
            await client.send(post(chat(stream=True)))
            await client.read_reply()
        assert count() <= before


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for localhost."""
    cert, key = make_certificate(tmp_path_factory.mktemp("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


async def test_an_https_engine_is_verified_and_used(certificate):
    """With its authority trusted it serves, streams included."""
    cert, context = certificate
    engine = ScriptedEngine(stream)
    await engine.start(context)
    async with running(engine, configs=[engine.config(ca_file=str(cert))]) as up:
        reply = await up.ask(post(chat(stream=True)))
    assert reply.status == 200
    assert reply.body.endswith(DONE_EVENT)
    assert engine.requests[0].header("host") == f"localhost:{engine.port}"


async def test_an_https_engine_that_cannot_be_verified_is_not_used(certificate):
    """The default is the system's authorities, and there is no switch to ignore them."""
    _, context = certificate
    engine = ScriptedEngine()
    await engine.start(context)
    async with running(engine, configs=[engine.config()], waits=False) as up:
        await eventually(lambda: "certificate" in up.gateway.replicas()[0].reason.lower())
        assert (await up.ask(post(chat()))).status == 503
    assert not engine.requests


async def test_the_gateway_serves_https(certificate):
    """With the operator's certificate."""
    cert, context = certificate
    trust = ssl.create_default_context(cafile=str(cert))
    async with running(ScriptedEngine(stream), start={"tls": context}) as up:
        client = await RawClient.connect(up.port, trust)
        await client.send(post(chat(stream=True)))
        assert (await client.read_reply()).body.endswith(DONE_EVENT)
        await client.send(b"nonsense\r\n\r\n")
        assert (await client.read_reply()).status == 400
        client.close()


async def test_a_connection_that_cannot_be_made_in_time_fails():
    """connect_s: a host whose queue is full lets a connection attempt hang."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(full.getsockname())
    engine = ScriptedEngine()
    engine.port = full.getsockname()[1]
    upstream = UpstreamConfig(connect_s=0.05)
    async with running(configs=[engine.config()], waits=False, upstream=upstream) as up:
        await eventually(lambda: "No connection" in up.gateway.replicas()[0].reason)
    for each in (full, *waiting):
        each.close()


@pytest.mark.parametrize(
    "url", ["ftp://a", "a100:8000", "http://", "http://a:x", "http://u:p@a", "http://a/?x=1", ""]
)
async def test_an_engine_url_that_cannot_be_used_is_a_configuration_error(url):
    """At start, naming it, and not at the first request."""
    config = ScriptedEngine().config()
    bad = type(config)("r0", url)
    with pytest.raises(ConfigError):
        Gateway(replicas=[bad], recorder=ListRecorder())
