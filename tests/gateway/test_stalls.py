"""Replicas that freeze: found by progress, although they answer their checks."""

import asyncio
from dataclasses import replace

import pytest
from trouble import (
    TURNS,
    WATCHFUL,
    Freezable,
    ask_soon,
    clients_requests,
    freezable,
    states,
    until_used,
    with_kind,
)

from loopback import (
    PLAIN,
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    eventually,
    plain,
    post,
    running,
    token_event,
)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "embedded"])
async def test_a_frozen_engine_is_found_although_it_answers_its_checks(kind):
    """Its request is answered by another, new ones do not go there, and it returns when it runs."""
    engine, core = freezable()
    other = ScriptedEngine(name="r1")
    configs = await with_kind(kind, engine, other)
    async with running(engine, other, configs=configs, health=WATCHFUL, routing=TURNS) as up:
        core.runs.clear()
        task = await ask_soon(up, engine)
        reply = await task
        assert (reply.status, reply.headers["x-headstart-replica"]) == (200, "r1")
        assert states(up)[0] == "stalled"
        assert "nothing of it moved" in up.gateway.replicas()[0].reason
        assert up.records[-1].retries == 1
        before = len(clients_requests(engine))
        for _ in range(4):
            assert (await up.ask(post(chat()))).headers["x-headstart-replica"] == "r1"
        assert len(clients_requests(engine)) == before
        core.runs.set()
        await eventually(lambda: states(up)[0] == "warming")
        await until_used(up, engine)
        await eventually(lambda: states(up)[0] == "available")


async def test_a_stream_that_has_begun_stays_and_goes_on():
    """What the client has cannot be taken back, and the engine may continue."""

    async def answer(request: Received, wire: Wire) -> None:
        if not request.json().get("stream"):
            await wire.answer()
            return
        await wire.begin_stream()
        await wire.piece(token_event("a"))
        core.runs.clear()
        await core.runs.wait()
        await wire.piece(token_event("b"))
        await wire.end_stream()

    engine, core = freezable(answer)
    other = ScriptedEngine(name="r1")
    configs = await with_kind("vllm", engine, other)
    async with running(engine, other, configs=configs, health=WATCHFUL, routing=TURNS) as up:
        while not clients_requests(engine):
            client = await RawClient.connect(up.port)
            await client.send(post(chat(stream=True)))
            await client.read_head()
        assert await client.read_piece() == token_event("a")
        await eventually(lambda: states(up)[0] == "stalled")
        core.runs.set()
        assert await client.read_piece() == token_event("b")
        await eventually(lambda: states(up)[0] in ("warming", "available"))
        client.close()


async def test_a_lone_engine_that_is_frozen_keeps_its_requests():
    """There is nowhere else to go; it may continue, and then answers."""
    engine, core = freezable()
    configs = await with_kind("vllm", engine)
    async with running(engine, configs=configs, health=WATCHFUL) as up:
        core.runs.clear()
        waiting = asyncio.ensure_future(up.ask(post(chat())))
        await eventually(lambda: states(up) == ["stalled"])
        refused = await up.ask(post(chat()))
        core.runs.set()
        reply = await waiting
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert (reply.status, reply.body) == (200, PLAIN)


async def test_new_streams_that_get_a_head_do_not_hide_a_frozen_engine():
    """vLLM's HTTP server sends the head at once, and errors of its own."""

    async def answer(request: Received, wire: Wire) -> None:
        if request.json().get("prompt") == "1" or not request.json().get("stream"):
            await core.runs.wait()
            await wire.answer()
            return
        await wire.begin_stream()
        await core.runs.wait()
        await wire.piece(token_event("a"))
        await wire.end_stream()

    engine, core = freezable(plain)
    engine.answer = answer
    configs = await with_kind("vllm", engine)
    clients = []
    async with running(engine, configs=configs, health=WATCHFUL) as up:
        core.runs.clear()
        while states(up) != ["stalled"]:
            client = await RawClient.connect(up.port)
            await client.send(post(chat(stream=True)))
            clients.append(client)
            await asyncio.sleep(0.02)
        core.runs.set()
        await eventually(lambda: states(up)[0] in ("warming", "available"))
        for client in clients:
            client.close()


async def test_an_engine_that_is_silent_but_counts_is_not_stalled():
    """A request that does not stream is silent for as long as it takes."""
    engine, core = freezable()
    configs = await with_kind("vllm", engine)

    def page() -> bytes:
        core.num_tokens += 1
        return Freezable.page(core)

    engine.metrics = page
    async with running(engine, configs=configs, health=WATCHFUL) as up:
        core.runs.clear()
        waiting = asyncio.ensure_future(up.ask(post(chat())))
        await eventually(lambda: core.num_looks >= 6)
        assert len(engine.requests) == 1  # moving counters need no trial
        core.runs.set()
        assert (await waiting).status == 200
        assert up.gateway.replicas()[0].transitions["stalled"] == 0


async def test_an_engine_whose_counters_stand_but_that_generates_is_not_stalled():
    """It waits for something else, such as a picture that it fetches."""

    async def answer(request: Received, wire: Wire) -> None:
        if request.json().get("prompt") != "1":
            await fetched.wait()
        await wire.answer()

    fetched = asyncio.Event()
    engine, core = freezable()
    engine.answer = answer
    configs = await with_kind("vllm", engine)
    health = replace(WATCHFUL, stall_s=1.0)  # its token must be in time on a busy machine, too
    async with running(engine, configs=configs, health=health) as up:
        waiting = asyncio.ensure_future(up.ask(post(chat())))
        await eventually(lambda: core.num_looks >= 4)
        fetched.set()
        assert (await waiting).status == 200
        assert up.gateway.replicas()[0].transitions["stalled"] == 0
    trial = next(each for each in engine.requests if each.json().get("prompt") == "1")
    assert trial.json() == {"model": "m", "prompt": "1", "max_tokens": 1}


@pytest.mark.parametrize("page", [None, lambda: b"process_cpu_seconds_total 10\n"])
async def test_silence_alone_is_no_evidence(page):
    """An engine that counts nothing is given its time."""

    async def answer(request: Received, wire: Wire) -> None:
        looked.append(request.target)
        await may_answer.wait()
        await wire.answer()

    looked, may_answer = [], asyncio.Event()
    engine = ScriptedEngine(answer)
    engine.metrics = lambda: (looked.append("/metrics"), page and page())[1]
    configs = await with_kind("vllm", engine)
    async with running(engine, configs=configs, health=WATCHFUL) as up:
        waiting = asyncio.ensure_future(up.ask(post(chat())))
        await eventually(lambda: looked.count("/metrics") >= 3)
        may_answer.set()
        assert (await waiting).status == 200
        assert states(up) == ["available"]
    assert looked.count("/v1/completions") == 0


async def test_an_engine_is_known_by_its_list_of_models():
    """`headstart serve --engine URL` names no kind."""
    engine, core = freezable()
    engine.models_body = b'{"data":[{"id":"m","owned_by":"vllm"}]}'
    other = ScriptedEngine(name="r1")
    async with running(engine, other, health=WATCHFUL, routing=TURNS) as up:
        core.runs.clear()
        reply = await (await ask_soon(up, engine))
        assert reply.headers["x-headstart-replica"] == "r1"
        assert states(up)[0] == "stalled"
        core.runs.set()


async def test_a_server_that_accepts_and_says_nothing_loses_its_requests_to_another():
    """An engine's orphan may hold the port of a server that has died."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read()

    writers: list[asyncio.StreamWriter] = []
    engine, other = ScriptedEngine(), ScriptedEngine(name="r1")
    health = replace(WATCHFUL, up_interval_s=0.05, timeout_s=0.1)
    async with running(engine, other, health=health, routing=TURNS) as up:
        await engine.stop()
        orphan = await asyncio.start_server(accept, "127.0.0.1", engine.port)
        replies = [await up.ask(post(chat())) for _ in range(4)]
        assert {reply.status for reply in replies} == {200}
        await eventually(lambda: states(up)[0] == "down")
        orphan.close()
        for writer in writers:
            writer.close()


async def test_a_provider_whose_list_fails_keeps_what_it_works_on():
    """Sending it elsewhere would be paid twice."""

    async def answer(_request: Received, wire: Wire) -> None:
        await may_answer.wait()
        await wire.answer()

    may_answer = asyncio.Event()
    engine, other = ScriptedEngine(answer), ScriptedEngine(name="r1")
    health = replace(WATCHFUL, stall_s=0.02, up_interval_s=0.02)
    async with running(engine, other, health=health, routing=TURNS) as up:
        waiting = await ask_soon(up, engine)
        engine.models_status = 500
        await eventually(lambda: states(up)[0] == "down")
        num_checks = len(engine.checks)
        await eventually(lambda: len(engine.checks) > num_checks + 5)
        may_answer.set()
        assert (await waiting).headers["x-headstart-replica"] == "r0"


async def test_a_frozen_engine_that_is_restarted_is_tried_before_it_is_used():
    """Its checks succeed long before its first token, and a trial tells at once."""
    engine, core = freezable()
    configs = await with_kind("vllm", engine)
    health = replace(WATCHFUL, up_interval_s=0.02)
    async with running(engine, configs=configs, health=health) as up:
        core.runs.clear()
        waiting = asyncio.ensure_future(up.ask(post(chat())))
        await eventually(lambda: states(up) == ["stalled"])
        await engine.stop()
        assert (await waiting).status == 502
        await eventually(lambda: states(up) == ["down"])
        await engine.start()
        await eventually(lambda: states(up) == ["stalled"])
        core.runs.set()
        await eventually(lambda: states(up) == ["warming"])
        assert (await up.ask(post(chat()))).status == 200


async def test_streams_of_another_kind_that_all_fall_silent_open_its_breaker():
    """Nothing else can be known of a provider; a byte, and it is used again."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(token_event("a"))
        await goes_on.wait()
        await wire.piece(token_event("b"))
        await wire.end_stream()

    goes_on = asyncio.Event()
    engine = ScriptedEngine(answer)
    health = replace(WATCHFUL, stall_s=0.02)
    async with running(engine, health=health) as up:
        clients = [await RawClient.connect(up.port) for _ in range(2)]
        for client in clients:
            await client.send(post(chat(stream=True)))
            await client.read_head()
            assert await client.read_piece() == token_event("a")
        await eventually(lambda: states(up)[0] in ("open", "half_open"))
        assert "2 streams were silent" in up.gateway.replicas()[0].reason
        goes_on.set()
        await eventually(lambda: states(up)[0] in ("warming", "available"))
        for client in clients:
            assert await client.read_piece() == token_event("b")
            client.close()
    assert len(engine.requests) == 2  # nobody was sent twice


async def test_requests_of_another_kind_are_silent_for_as_long_as_they_like():
    """One that does not stream says nothing of the others."""

    async def answer(_request: Received, wire: Wire) -> None:
        await may_answer.wait()
        await wire.answer()

    may_answer = asyncio.Event()
    engine = ScriptedEngine(answer)
    health = replace(WATCHFUL, stall_s=0.01, up_interval_s=0.02)
    async with running(engine, health=health) as up:
        waiting = [asyncio.ensure_future(up.ask(post(chat()))) for _ in range(3)]
        await eventually(lambda: len(engine.requests) == 3)
        num_checks = len(engine.checks)
        await eventually(lambda: len(engine.checks) > num_checks + 10)
        assert states(up) == ["available"]
        may_answer.set()
        assert {(await each).status for each in waiting} == {200}
