"""What clients may do to the gateway: leave, dawdle, send nonsense, send too much."""

import asyncio
import json
import tracemalloc

import pytest

from headstart.wire.http1 import HttpLimits
from loopback import (
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    eventually,
    get,
    plain,
    post,
    running,
    token_event,
)


async def test_a_slow_client_makes_the_engine_wait(request):
    """Its back-pressure arrives; memory does not grow with the stream."""
    sent = 0
    total = 64 << 20

    async def answer(_request: Received, wire: Wire) -> None:
        nonlocal sent
        await wire.begin_stream()
        event = token_event("x" * (64 << 10))
        while sent < total:
            await wire.piece(event)
            sent += len(event)
        await wire.end_stream()

    tracemalloc.start()
    request.addfinalizer(tracemalloc.stop)
    async with running(ScriptedEngine(answer)) as up:
        client = await RawClient.connect(up.port)
        client.writer.transport.pause_reading()
        await client.send(post(chat(stream=True)))
        before, previous = tracemalloc.get_traced_memory()[0], -1
        while sent != previous or sent == 0:  # until the engine is stuck
            previous = sent
            await asyncio.sleep(0.1)
        assert sent < total // 2  # the system's buffers, on both connections
        assert tracemalloc.get_traced_memory()[0] - before < 4 << 20
        client.writer.transport.resume_reading()
        await client.read_head()
        received = 0
        while piece := await client.read_piece():
            received += len(piece)
        assert received == sent >= total
        client.close()
    assert up.records[0].status == 200


async def test_a_client_that_takes_nothing_is_cut_off():
    """After stall_s, so that it holds nothing for ever."""
    noticed = asyncio.Event()

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        try:
            while True:
                await wire.piece(token_event("x" * (64 << 10)))
        except ConnectionError:
            noticed.set()

    limits = HttpLimits(stall_s=0.2)
    async with running(ScriptedEngine(answer), limits=limits) as up:
        client = await RawClient.connect(up.port)
        client.writer.transport.pause_reading()
        await client.send(post(chat(stream=True)))
        await noticed.wait()
        await eventually(lambda: bool(up.records))
        client.close()
    assert up.records[0].status == 499


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (post(chat()).replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"), 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413),
    ],
)
async def test_what_cannot_be_read_is_refused_and_the_connection_closed(raw, status):
    """In OpenAI's form, with a record, and nothing of it reaches an engine."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        client = await RawClient.connect(up.port)
        await client.send(raw)
        reply = await client.read_reply()
        assert reply.status == status
        assert reply.headers["connection"] == "close"
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert await client.is_closed()
        client.close()
    assert not engine.requests
    (record,) = up.records
    assert record.status == status


@pytest.mark.parametrize(("excess", "status"), [(0, 200), (1, 413)])
async def test_a_body_of_32_mb_is_the_largest_that_is_taken(excess, status):
    """Unless the operator says otherwise."""
    frame = len(json.dumps(chat("")))
    body = json.dumps(chat("x" * ((32 << 20) + excess - frame))).encode()
    async with running(ScriptedEngine()) as up:
        client = await RawClient.connect(up.port)
        client.writer.write(post(body))
        assert (await client.read_reply()).status == status
        client.close()


async def test_the_answer_to_a_body_that_is_too_large_arrives_while_it_is_sent():
    """Closing at once would reset the connection and lose the answer."""
    limits = HttpLimits(max_body_bytes=1000)
    async with running(ScriptedEngine(), limits=limits) as up:
        client = await RawClient.connect(up.port)
        body = b"x" * (4 << 20)
        client.writer.write(post(body))
        reply = await client.read_reply()
        assert reply.status == 413
        assert "1000" in reply.json()["error"]["message"]
        client.close()


async def test_continue_is_said_to_a_client_that_waits_for_it():
    """RFC 9110 §10.1.1; the engine never sees Expect."""
    engine = ScriptedEngine()
    raw = json.dumps(chat()).encode()
    head = post(raw, headers=["Expect: 100-continue"]).removesuffix(raw)
    async with running(engine) as up:
        client = await RawClient.connect(up.port)
        await client.send(head)
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(raw)
        assert (await client.read_reply()).status == 200
        client.close()
    assert engine.requests[0].header("expect") is None


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (post(b'{"model":"m","messages":['), 400, "bad_request"),
        (post(b"[]"), 400, "bad_request"),
        (post(b""), 400, "bad_request"),
        (post(b"[" * 50_000), 400, "bad_request"),
        (post(b"\x1f\x8b..", headers=["Content-Encoding: gzip"]), 400, "bad_request"),
        (post({"model": "nope", "messages": []}), 404, "not_found"),
        (post({"model": "nope"}, path="/v1/embeddings"), 404, "not_found"),
        (post({"model": "m", "prompt": {"id": "t"}, "messages": []}), 400, "template_error"),
        (get("/v1/chat/completions"), 405, "method_not_allowed"),
        (post({}, path="/v1/models"), 405, "method_not_allowed"),
        (get("/nothing"), 404, "not_found"),
        (get("/v1/../admin"), 404, "not_found"),
        (get("/v1/%2e%2e/admin"), 404, "not_found"),
        (get("/v1"), 404, "not_found"),
        # An engine would generate for these, past what is counted and looked at by path.
        (post(chat(), path="/v1/%63hat/completions"), 404, "not_found"),
        (post(chat(), path="/v1/chat%2Fcompletions"), 404, "not_found"),
        (post(chat(), path="/v1//chat/./completions"), 404, "not_found"),
        (post(chat(), path="/v1/responses/"), 404, "not_found"),
    ],
)
async def test_refusals_have_openais_form_and_keep_the_connection(raw, status, code):
    """The next request on the same connection is served."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        client = await RawClient.connect(up.port)
        await client.send(raw)
        reply = await client.read_reply()
        assert reply.status == status
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert reply.json()["error"]["code"] == code
        assert reply.headers["x-headstart-request-id"] == up.records[0].request_id
        await client.send(post(chat()))
        assert (await client.read_reply()).status == 200
        client.close()
    assert len(engine.requests) == 1
    assert [record.status for record in up.records] == [status, 200]
    assert up.records[0].error_code == code


async def test_a_405_says_what_is_allowed():
    """RFC 9110 §10.2.1."""
    async with running(ScriptedEngine()) as up:
        reply = await up.ask(get("/v1/chat/completions"))
    assert reply.headers["allow"] == "POST"


async def test_the_answer_to_an_unknown_model_names_what_is_served():
    """The next step is in the message."""
    engines = [ScriptedEngine(models=["m"]), ScriptedEngine(name="r1", models=["n"])]
    async with running(*engines) as up:
        reply = await up.ask(post({"model": "nope", "messages": []}))
    assert "Served: m, n" in reply.json()["error"]["message"]


async def test_many_requests_ahead_are_answered_in_order_with_bounded_memory():
    """Beyond a bound the socket is left alone until the answer is given."""
    may_answer = asyncio.Event()

    async def answer(request: Received, wire: Wire) -> None:
        await may_answer.wait()
        await wire.answer(body=request.body)

    bodies = [json.dumps(chat(f"{number} " + "x" * 5000)).encode() for number in range(200)]
    async with running(ScriptedEngine(answer)) as up:
        client = await RawClient.connect(up.port)
        sending = asyncio.ensure_future(client.send(b"".join(post(body) for body in bodies)))
        await asyncio.sleep(0.02)
        may_answer.set()
        for body in bodies:
            assert (await client.read_reply()).body == body
        await sending
        client.close()
    assert len(up.records) == len(bodies)


async def test_a_connection_that_stays_idle_is_closed():
    """After keep_alive_s."""
    async with running(ScriptedEngine(), limits=HttpLimits(keep_alive_s=0.1)) as up:
        client = await RawClient.connect(up.port)
        assert await client.is_closed()
        client.close()


async def test_a_head_that_trickles_is_cut_off():
    """However often another byte comes."""
    async with running(ScriptedEngine(), limits=HttpLimits(head_s=0.2)) as up:
        client = await RawClient.connect(up.port)

        async def trickle() -> None:
            await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
            while True:
                await client.send(b"y")
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await trickle()
        client.close()


async def test_a_body_that_stops_is_cut_off():
    """After body_s without another byte."""
    async with running(ScriptedEngine(), limits=HttpLimits(body_s=0.1)) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat())[:-5])
        assert await client.is_closed()
        client.close()


async def test_a_long_answer_is_not_an_idle_connection():
    """Deadlines of idle clients do not run while they wait for an engine."""

    async def answer(request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.3)
        await plain(request, wire)

    limits = HttpLimits(keep_alive_s=0.05, body_s=0.05, head_s=0.05, stall_s=0.05)
    async with running(ScriptedEngine(answer), limits=limits) as up:
        assert (await up.ask(post(chat()))).status == 200


async def test_continue_is_said_only_when_all_before_is_answered():
    """A client would take it for part of the answer that it is waiting for."""
    raw = json.dumps(chat()).encode()
    head = post(raw, headers=["Expect: 100-continue"]).removesuffix(raw)
    async with running(ScriptedEngine()) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat()) + head)
        assert (await client.read_reply()).status == 200
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(raw)
        assert (await client.read_reply()).status == 200
        client.close()


@pytest.mark.parametrize("behind", [b"nonsense\r\n\r\n", get("/v1/models")])
async def test_what_follows_a_last_request_is_not_read(behind):
    """The connection is closing; an answer, or a record, would be of a request never served."""
    async with running(ScriptedEngine()) as up:
        client = await RawClient.connect(up.port)
        await client.send(get("/health", headers=["Connection: close"]) + behind)
        assert (await client.read_reply()).status == 200
        assert await client.is_closed()
        client.close()
    assert up.records == []


async def test_a_refused_body_is_not_read_for_ever():
    """However steadily it goes on."""
    limits = HttpLimits(max_body_bytes=10, head_s=0.2)
    async with running(ScriptedEngine(), limits=limits) as up:
        client = await RawClient.connect(up.port)

        async def trickle() -> None:
            await client.send(post(b"x" * 1_000_000)[:-900_000])
            while True:
                await client.send(b"x")
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await trickle()
        client.close()


async def test_a_body_that_breaks_the_connection_to_nobody():
    """Invalid UTF-8 in an option reaches the engine, whose complaint it is."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        raw = b'{"model":"m","stream":true,"stream_options":{"a":"\xff"}}'
        assert (await up.ask(post(raw))).status == 200
    assert b"\xff" in engine.requests[0].body
