"""What passes through the gateway, in both directions, when nothing goes wrong."""

import asyncio
import json

import pytest

from headstart.clock import VirtualClock
from headstart.routing.config import RoutingConfig
from headstart.wire.usage import Usage
from loopback import (
    DONE_EVENT,
    PLAIN,
    ROLE_EVENT,
    USAGE_EVENT,
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    get,
    post,
    running,
    stream,
    token_event,
)

ODD_BODY = (
    '{"model": "m",  "messages":[{"role":"user","content":"h\\u00e9llo é","x_msg":1}],'
    '"zeta":{"b":1,"a":2},"seed":9007199254740993,"temperature":1.0,"cache_salt":"t1",'
    '"guided_json":null,"alpha":[1,2.50,1e3]}'
).encode()


async def test_a_body_goes_up_and_the_answer_comes_down_byte_for_byte():
    """Number forms, escapes, key order, spacing and unknown fields."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        reply = await up.ask(post(ODD_BODY))
    assert engine.requests[0].body == ODD_BODY
    assert reply.status == 200
    assert reply.body == PLAIN


async def test_client_headers_pass_and_connection_headers_do_not():
    """RFC 9110 §7.6.1; Host and Accept-Encoding are the gateway's to say."""
    engine = ScriptedEngine()
    sent = [
        "Authorization: Bearer client-key",
        "X-Request-Id: rid-1",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "Accept-Encoding: gzip, br",
        "Connection: keep-alive, X-Hop",
        "X-Hop: 1",
        "Keep-Alive: timeout=9",
        "TE: trailers",
        "X-Odd-Case: Kept",
    ]
    async with running(engine) as up:
        await up.ask(post(chat(), headers=sent))
    (request,) = engine.requests
    assert request.header("authorization") == "Bearer client-key"
    assert request.header("x-request-id") == "rid-1"
    assert request.header("traceparent") is not None
    assert request.header("accept-encoding") == "identity"
    assert request.header("host") == f"127.0.0.1:{engine.port}"
    assert ("X-Odd-Case", "Kept") in request.headers
    for name in ("connection", "x-hop", "keep-alive", "te"):
        assert request.header(name) is None


async def test_the_engines_headers_pass_and_ours_are_added():
    """Phrase and own fields of the engine; request id and replica of the gateway."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.answer(
            headers=[
                "content-type: application/json",
                "X-Request-Id: engine-1",
                "Keep-Alive: timeout=5",
                "x-headstart-replica: inner",
            ]
        )

    async with running(ScriptedEngine(answer, name="a100-1")) as up:
        reply = await up.ask(post(chat()))
    assert reply.headers["x-request-id"] == "engine-1"
    assert reply.headers["x-headstart-replica"] == "a100-1"
    assert reply.headers["x-headstart-request-id"] == up.records[0].request_id
    assert "keep-alive" not in reply.headers


async def test_a_plain_request_leaves_one_complete_record():
    """Figures as the engine reported them; nothing unknown is made zero."""
    async with running(ScriptedEngine()) as up:
        await up.ask(post(chat()))
    (record,) = up.records
    assert record.usage == Usage(100, 64, None, 2)
    assert (record.status, record.error_code) == (200, None)
    assert (record.model, record.path) == ("m", "/v1/chat/completions")
    assert (record.replica, record.policy) == ("r0", "expected_ttft")
    assert record.reason
    assert record.tenant == "default"
    assert not record.is_stream
    assert record.ttft_s is None
    assert record.retries == 0
    assert record.body_changes == ()
    assert record.total_s > 0


async def test_a_stream_is_forwarded_event_by_event():
    """Each arrives before the engine sends the next."""
    go_on = asyncio.Event()

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        for text in ("a", "b", "c"):
            go_on.clear()
            await wire.piece(token_event(text))
            await go_on.wait()
        await wire.end_stream()

    async with running(ScriptedEngine(answer)) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat(stream=True)))
        status, headers = await client.read_head()
        assert status == 200
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        for text in ("a", "b", "c"):
            assert await client.read_piece() == token_event(text)
            go_on.set()
        assert await client.read_piece() == b""
        client.close()


async def test_usage_is_asked_for_and_hidden_again():
    """A stream whose client did not ask still has figures in its record, and only there."""
    engine = ScriptedEngine(stream)
    body = chat(stream=True)
    async with running(engine) as up:
        reply = await up.ask(post(body))
    assert engine.requests[0].json() == {**body, "stream_options": {"include_usage": True}}
    assert engine.requests[0].body.startswith(json.dumps(body).encode()[:-1])
    assert reply.body == ROLE_EVENT + token_event("a") + token_event("b") + DONE_EVENT
    (record,) = up.records
    assert record.body_changes == ("stream_options",)
    assert record.usage == Usage(100, None, None, 3)
    assert record.is_stream
    assert record.ttft_s is not None


async def test_usage_that_the_client_asked_for_stays():
    """Then the body is not touched either."""
    engine = ScriptedEngine(stream)
    raw = json.dumps(chat(stream=True, stream_options={"include_usage": True})).encode()
    async with running(engine) as up:
        reply = await up.ask(post(raw))
    assert engine.requests[0].body == raw
    assert USAGE_EVENT in reply.body
    assert up.records[0].body_changes == ()
    assert up.records[0].usage.input_tokens == 100


async def test_other_stream_options_are_kept():
    """Only `include_usage` is set."""
    engine = ScriptedEngine(stream)
    options = {"include_usage": False, "x": 1}
    async with running(engine) as up:
        await up.ask(post(chat(stream=True, stream_options=options)))
    assert engine.requests[0].json()["stream_options"] == {"include_usage": True, "x": 1}


async def test_tokens_that_come_in_one_piece_have_no_time_between_them():
    """Unknown is not zero: the engine took its time, and nobody saw how long."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(token_event("a") + token_event("b") + USAGE_EVENT + DONE_EVENT)
        await wire.end_stream()

    async with running(ScriptedEngine(answer)) as up:
        await up.ask(post(chat(stream=True)))
    (record,) = up.records
    assert record.ttft_s is not None
    assert record.tpot_s is None


async def test_ttft_runs_to_the_first_content_and_tpot_from_there_to_the_last():
    """Not to the event with the role, and not to the one with usage."""
    clock = VirtualClock()

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        for event in (ROLE_EVENT, token_event("a"), token_event("b"), USAGE_EVENT, DONE_EVENT):
            await wire.piece(event)
            if event is not USAGE_EVENT:
                await go_on.acquire()
        await wire.end_stream()

    go_on = asyncio.Semaphore(0)
    async with running(ScriptedEngine(answer), clock=clock) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat(stream=True)))
        await client.read_head()
        for passed_s in (0.5, 0.25, 0.125):
            await client.read_piece()
            clock.advance(passed_s)
            go_on.release()
        assert await client.read_piece() == DONE_EVENT
        go_on.release()
        assert await client.read_piece() == b""
        client.close()
    (record,) = up.records
    assert record.ttft_s == 0.5
    assert record.tpot_s == 0.25 / 2  # three tokens, two gaps
    assert record.total_s == 0.875


async def test_a_chunked_request_body_is_sent_on_whole():
    """And a reply of unknown length comes back chunked."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + PLAIN)
        wire.writer.close()

    engine = ScriptedEngine(answer)
    raw = json.dumps(chat()).encode()
    chunked = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (5, raw[:5], len(raw) - 5, raw[5:])
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running(engine) as up:
        reply = await up.ask(head + chunked)
    assert engine.requests[0].body == raw
    assert engine.requests[0].header("content-length") == str(len(raw))
    assert reply.headers["transfer-encoding"] == "chunked"
    assert reply.body == PLAIN
    assert up.records[0].usage.input_tokens == 100


async def test_an_http_1_0_client_gets_a_body_that_ends_with_the_connection():
    """It knows no chunks."""
    async with running(ScriptedEngine(stream)) as up:
        client = await RawClient.connect(up.port)
        raw = json.dumps(chat(stream=True)).encode()
        head = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(raw)
        await client.send(head + raw)
        reply = await client.read_reply()
        client.close()
    assert "transfer-encoding" not in reply.headers
    assert reply.headers["connection"] == "close"
    assert reply.body.endswith(DONE_EVENT)


async def test_an_http_1_0_client_may_keep_its_connection():
    """If it asks, and the length is known."""
    async with running(ScriptedEngine()) as up:
        client = await RawClient.connect(up.port)
        raw = json.dumps(chat()).encode()
        head = b"POST /v1/chat/completions HTTP/1.0\r\nConnection: keep-alive\r\n"
        for _ in range(2):
            await client.send(head + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
            reply = await client.read_reply()
            assert reply.headers["connection"] == "keep-alive"
            assert reply.body == PLAIN
        client.close()


async def test_connections_are_kept_on_both_sides():
    """One client connection, one engine connection, many requests."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        client = await RawClient.connect(up.port)
        before = engine.num_connections
        for _ in range(5):
            await client.send(post(chat()))
            assert (await client.read_reply()).status == 200
        client.close()
        assert engine.num_connections - before <= 1
    assert len(up.records) == 5


async def test_pipelined_requests_are_answered_in_order():
    """Even if the first takes longer than the second would."""
    first_may_end = asyncio.Event()

    async def answer(request: Received, wire: Wire) -> None:
        if b"first" in request.body:
            await first_may_end.wait()
        await wire.answer(body=request.body)

    engine = ScriptedEngine(answer)
    async with running(engine) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat("first")) + post(chat("second")) + get("/health"))
        await asyncio.sleep(0)
        first_may_end.set()
        bodies = [(await client.read_reply()).body for _ in range(3)]
        client.close()
    assert b"first" in bodies[0]
    assert b"second" in bodies[1]
    assert json.loads(bodies[2]) == {"status": "ok"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "m", "prompt": "x"}),
        ("/v1/embeddings", {"model": "m", "input": "x"}),
        ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": "x"}]}),
        ("/v1/messages", {"model": "m", "messages": [], "system": "s"}),
        ("/v1/anything/else?x=1", {"model": "m"}),
        ("/tokenize", {"model": "m", "prompt": "x"}),
        ("/detokenize", {"model": "m", "tokens": [1]}),
    ],
)
async def test_other_paths_go_to_an_engine_that_serves_the_model(path, body):
    """Unchanged, query included."""
    other = ScriptedEngine(name="r1", models=["other"])
    engine = ScriptedEngine()
    async with running(other, engine) as up:
        reply = await up.ask(post(body, path=path))
    assert reply.body == PLAIN
    assert not other.requests
    (request,) = engine.requests
    assert request.target == path
    assert request.json() == body


async def test_a_request_without_a_json_body_goes_to_any_engine():
    """Any method, any bytes."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        assert (await up.ask(get("/v1/files/1?x=%20"))).status == 200
        assert (await up.ask(post(b"\x00\x01", path="/v1/files"))).status == 200
        assert (await up.ask(get("/v1/files/1", method="DELETE"))).status == 200
    assert [request.method for request in engine.requests] == ["GET", "POST", "DELETE"]
    assert engine.requests[1].body == b"\x00\x01"
    assert engine.requests[0].header("content-length") is None


async def test_head_is_answered_without_a_body():
    """The engine's Content-Length is what GET would have."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")

    async with running(ScriptedEngine(answer)) as up:
        client = await RawClient.connect(up.port)
        await client.send(get("/v1/files/1", method="HEAD"))
        reply = await client.read_reply(has_body=False)
        assert reply.headers["content-length"] == "5"
        await client.send(get("/health"))
        assert (await client.read_reply()).json() == {"status": "ok"}
        client.close()


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_the_engines_own_errors_pass_with_body_and_retry_after(status):
    """One attempt; the engine's words reach the client."""

    async def answer(_request: Received, wire: Wire) -> None:
        headers = ["content-type: application/json", "retry-after: 7"]
        await wire.answer(status, b'{"error":{"message":"boom"}}', headers)

    engines = [ScriptedEngine(answer), ScriptedEngine(answer, name="r1")]
    async with running(*engines) as up:
        reply = await up.ask(post(chat()))
    assert reply.status == status
    assert reply.body == b'{"error":{"message":"boom"}}'
    assert reply.headers["retry-after"] == "7"
    assert sum(len(engine.requests) for engine in engines) == 1
    (record,) = up.records
    assert (record.status, record.error_code) == (status, f"engine_{status}")


async def test_a_large_body_passes():
    """20 MB, unchanged."""
    engine = ScriptedEngine()
    raw = json.dumps(chat("x" * (20 << 20))).encode()
    async with running(engine) as up:
        assert (await up.ask(post(raw))).status == 200
    assert engine.requests[0].body == raw


async def test_a_compressed_answer_passes_unread():
    """The engine was asked not to; what it sends anyway is the client's."""

    async def answer(_request: Received, wire: Wire) -> None:
        headers = ["content-type: application/json", "content-encoding: gzip"]
        await wire.answer(200, b"\x1f\x8bnot-really", headers)

    async with running(ScriptedEngine(answer)) as up:
        reply = await up.ask(post(chat()))
    assert reply.body == b"\x1f\x8bnot-really"
    assert reply.headers["content-encoding"] == "gzip"
    assert up.records[0].usage == Usage()


async def test_prompts_that_begin_alike_meet_one_replica():
    """By the prompt's own bytes, over the wire."""
    engines = [ScriptedEngine(name=f"r{index}") for index in range(4)]
    async with running(*engines, routing=RoutingConfig(policy="prefix_hash")) as up:
        for number in range(6):
            await up.ask(post(chat("x" * 3000 + str(number))))
    assert sorted(len(engine.requests) for engine in engines) == [0, 0, 0, 6]


async def test_a_204_passes_without_a_length():
    """RFC 9110 §8.6 forbids one, whatever the engine says."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 204 Gone\r\ncontent-length: 0\r\n\r\n")

    async with running(ScriptedEngine(answer)) as up:
        reply = await up.ask(post(chat(), path="/v1/other"), has_body=False)
    assert reply.status == 204
    assert "content-length" not in reply.headers
    assert "transfer-encoding" not in reply.headers
