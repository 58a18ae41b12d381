"""One more attempt while the client has got nothing yet, elsewhere, and no third one."""

import asyncio

import pytest

from loopback import (
    PLAIN,
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    attempts,
    chat,
    pair,
    post,
    running,
    token_event,
)


class Once:
    """Fails the first request, whichever replica gets it, and answers the others."""

    def __init__(self, failure, then=None) -> None:
        self.failure = failure
        self.then = then
        self.has_failed = False

    async def __call__(self, request: Received, wire: Wire) -> None:
        if self.has_failed:
            await (self.then or plain)(request, wire)
        else:
            self.has_failed = True
            await self.failure(request, wire)


async def plain(_request: Received, wire: Wire) -> None:
    await wire.answer()


async def close(_request: Received, wire: Wire) -> None:
    wire.writer.close()


async def reset(_request: Received, wire: Wire) -> None:
    wire.reset()


async def half_a_head(_request: Received, wire: Wire) -> None:
    await wire.send(b"HTTP/1.1 200 OK\r\ncontent-")
    wire.writer.close()


async def nonsense(_request: Received, wire: Wire) -> None:
    await wire.send(b"this is no HTTP\r\n\r\n")


async def bad_gateway(_request: Received, wire: Wire) -> None:
    await wire.answer(502, b'{"error":{"message":"first"}}')


async def an_engine_that_has_ended(_request: Received, wire: Wire) -> None:
    await wire.answer(500, ENDED)


async def unavailable(_request: Received, wire: Wire) -> None:
    await wire.answer(503, b'{"error":{"message":"first"}}')


async def only_the_head_of_a_stream(_request: Received, wire: Wire) -> None:
    await wire.begin_stream()
    wire.reset()


async def its_last_word_in_pieces(_request: Received, wire: Wire) -> None:
    await wire.send(b"HTTP/1.1 500 E\r\ncontent-type: application/json\r\n")
    await wire.send(b"content-length: %d\r\n\r\n" % len(ENDED))
    for byte in ENDED:
        await wire.send(bytes([byte]))
        await asyncio.sleep(0)


async def a_stream_of_an_engine_that_has_ended(_request: Received, wire: Wire) -> None:
    await wire.begin_stream()
    await wire.piece(b"data: " + ENDED[:40])
    await asyncio.sleep(0)  # an event may come in pieces
    await wire.piece(ENDED[40:] + b"\n\n")
    await wire.piece(b"data: [DONE]\n\n")
    await wire.end_stream()


ENDED = (
    b'{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root '
    b'cause.","type":"InternalServerError","param":null,"code":500}}'
)
FAILURES = [close, reset, half_a_head, nonsense, bad_gateway, unavailable]
FAILURES += [an_engine_that_has_ended, its_last_word_in_pieces, only_the_head_of_a_stream]
FAILURES += [a_stream_of_an_engine_that_has_ended]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_failure_before_the_first_byte_is_retried_once_elsewhere(failure, is_stream):
    """The client notices nothing; the record counts it."""
    engines = pair(Once(failure))
    async with running(*engines) as up:
        reply = await up.ask(post(chat(stream=is_stream)))
    assert reply.status == 200
    assert reply.body == PLAIN
    assert attempts(engines) == [1, 1]
    assert (up.records[0].retries, up.records[0].error_code) == (1, None)
    assert up.records[0].replica == reply.headers["x-headstart-replica"]


@pytest.mark.parametrize("failure", [close, reset, half_a_head, nonsense])
async def test_a_second_failure_is_reported(failure):
    """One retry, not a round through the fleet."""
    engines = [*pair(failure), ScriptedEngine(failure, name="r2")]
    async with running(*engines) as up:
        reply = await up.ask(post(chat()))
        assert up.gateway.replicas()[0].in_flight == 0
    assert reply.status == 502
    assert reply.json()["error"]["code"] == "upstream_error"
    assert attempts(engines) == [0, 1, 1]
    (record,) = up.records
    assert (record.status, record.error_code, record.retries) == (502, "upstream_error", 1)
    assert record.replica == ""


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("size", [0, 100_000])
async def test_a_500_about_the_request_passes_untouched(is_stream, size):
    """It is the engine's own answer: another attempt could only repeat the fault."""
    body = b'{"error":{"message":"a fault of its own%b"}}' % (b"!" * size)

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.answer(500, body)

    engines = pair(answer)
    async with running(*engines) as up:
        reply = await up.ask(post(chat(stream=is_stream)))
    assert (reply.status, reply.body) == (500, body)
    assert attempts(engines) == [0, 1]
    assert up.records[0].error_code == "engine_500"


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_the_second_engines_refusal_passes(status):
    """With its own body."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.answer(status, b'{"error":{"message":"mine"}}', ["retry-after: 7"])

    engines = pair(Once(close, answer))
    async with running(*engines) as up:
        reply = await up.ask(post(chat()))
    assert (reply.status, reply.body) == (status, b'{"error":{"message":"mine"}}')
    assert reply.headers["retry-after"] == "7"
    assert attempts(engines) == [1, 1]


async def test_a_second_error_event_passes_and_is_noted():
    """The client has it as the engine sent it."""
    engines = pair(a_stream_of_an_engine_that_has_ended)
    async with running(*engines) as up:
        reply = await up.ask(post(chat(stream=True)))
    assert reply.body.startswith(b"data: " + ENDED)
    assert attempts(engines) == [1, 1]
    (record,) = up.records
    assert (record.status, record.error_code, record.retries) == (200, "engine_error_event", 1)


@pytest.mark.parametrize("code", [400, 500])
async def test_an_error_event_about_the_request_is_not_retried(code):
    """It is a 400 or a 500 that came after the head."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(b'data: {"error":{"message":"too long","code":%d}}\n\n' % code)
        await wire.end_stream()

    engines = pair(answer)
    async with running(*engines) as up:
        reply = await up.ask(post(chat(stream=True)))
    assert b"too long" in reply.body
    assert attempts(engines) == [0, 1]


async def test_the_head_of_a_stream_waits_for_its_first_event():
    """Until then the client has been told nothing, and another replica may answer."""
    may_go_on = asyncio.Event()

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await may_go_on.wait()
        await wire.piece(token_event("a"))
        await wire.end_stream()

    async with running(ScriptedEngine(answer)) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat(stream=True)))
        head = asyncio.ensure_future(client.read_head())
        done, _ = await asyncio.wait([head], timeout=0.1)
        assert not done
        may_go_on.set()
        assert (await head)[0] == 200
        assert await client.read_piece() == token_event("a")
        client.close()


async def test_a_stream_without_events_still_has_its_head():
    """Nothing is lost where nothing came."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.end_stream()

    async with running(ScriptedEngine(answer)) as up:
        reply = await up.ask(post(chat(stream=True)))
    assert (reply.status, reply.body, reply.is_complete) == (200, b"", True)


async def test_a_lone_engines_503_passes():
    """There is nowhere else to go."""
    engine = ScriptedEngine(unavailable)
    async with running(engine) as up:
        reply = await up.ask(post(chat()))
    assert (reply.status, reply.body) == (503, b'{"error":{"message":"first"}}')
    assert len(engine.requests) == 1
    assert up.records[0].retries == 0


async def test_a_kept_connection_that_was_closed_is_replaced():
    """Even where there is one replica only: the engine was not at fault."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        assert (await up.ask(post(chat()))).status == 200
        engine.answer = Once(close)
        assert (await up.ask(post(chat()))).status == 200
    assert [record.retries for record in up.records] == [0, 1]


async def test_a_500_that_cannot_be_read_is_passed_on_as_it_comes():
    """Nothing of it is held back, however long it is."""
    may_go_on = asyncio.Event()

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 500 E\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\n")
        await wire.send(b"one")
        await may_go_on.wait()
        await wire.send(b"two")

    async with running(ScriptedEngine(answer)) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat()))
        assert (await client.read_head())[0] == 500
        may_go_on.set()
        client.close()
