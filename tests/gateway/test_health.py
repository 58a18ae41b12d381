"""Replicas that fail, flap, return and are taken out: who gets requests, and how soon again."""

import asyncio
import logging
from dataclasses import replace

import pytest
from trouble import (
    TURNS,
    WATCHFUL,
    ask_soon,
    clients_requests,
    freezable,
    states,
    until_used,
    with_kind,
)

from headstart.engines.base import UpstreamConfig
from headstart.errors import NotFound
from headstart.routing.breaker import BreakerConfig
from headstart.routing.config import RoutingConfig
from loopback import (
    PLAIN,
    QUICK_CHECKS,
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    eventually,
    post,
    running,
    stream,
)

# Failing.


class Faulty:
    """Answers 500 while told to."""

    def __init__(self) -> None:
        self.is_broken = True

    async def __call__(self, _request: Received, wire: Wire) -> None:
        await wire.answer(500 if self.is_broken else 200, PLAIN)


LONG_OPEN = BreakerConfig(failures=3, open_s=1000.0, max_open_s=1000.0)
SHORT_OPEN = BreakerConfig(failures=3, open_s=0.05, max_open_s=0.05)


async def test_an_engine_that_answers_500_to_everything_is_left_out():
    """A vLLM without its worker answers its checks and nothing else."""
    engine, other = ScriptedEngine(Faulty()), ScriptedEngine(name="r1")
    health = replace(QUICK_CHECKS, breaker=LONG_OPEN)
    async with running(engine, other, health=health, routing=TURNS) as up:
        while states(up)[0] != "open":
            await up.ask(post(chat()))
        assert len(engine.requests) == 3
        assert up.gateway.replicas()[0].reason == "failures: it answered 500"
        for _ in range(4):
            reply = await up.ask(post(chat()))
            assert (reply.status, reply.headers["x-headstart-replica"]) == (200, "r1")
        assert len(engine.requests) == 3
        assert up.gateway.is_ready


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_what_the_client_did_wrong_opens_nothing(status):
    """An engine that refuses is well."""

    async def refuse(_request: Received, wire: Wire) -> None:
        await wire.answer(status)

    engine = ScriptedEngine(refuse)
    async with running(engine, health=replace(QUICK_CHECKS, breaker=LONG_OPEN)) as up:
        for _ in range(5):
            assert (await up.ask(post(chat()))).status == status
        assert states(up) == ["available"]


async def test_one_client_at_a_time_tries_an_engine_of_another_kind():
    """Its failure costs one request, its success brings the engine back."""
    faulty = Faulty()
    engine, other = ScriptedEngine(faulty), ScriptedEngine(name="r1")
    health = replace(QUICK_CHECKS, breaker=SHORT_OPEN, slow_start_s=0.05)
    async with running(engine, other, health=health, routing=TURNS) as up:
        while states(up)[0] != "open":
            await up.ask(post(chat()))
        await eventually(lambda: states(up)[0] == "half_open")
        before = len(engine.requests)
        while len(engine.requests) == before:
            await up.ask(post(chat()))
        assert up.gateway.replicas()[0].transitions["open"] == 2
        assert (up.records[-1].status, up.records[-1].reason) == (500, "next in turn, on trial")
        faulty.is_broken = False
        while states(up)[0] not in ("warming", "available"):
            await up.ask(post(chat()))
        assert any(record.reason.endswith(", on trial") for record in up.records)
        await eventually(lambda: states(up)[0] == "available")


async def test_a_trial_whose_client_leaves_is_followed_by_another():
    """It has no outcome."""

    async def answer(request: Received, wire: Wire) -> None:
        await (wire.closed() if holds else faulty(request, wire))

    holds, faulty = [], Faulty()
    engine, other = ScriptedEngine(answer), ScriptedEngine(name="r1")
    health = replace(QUICK_CHECKS, breaker=SHORT_OPEN)
    async with running(engine, other, health=health, routing=TURNS) as up:
        while states(up)[0] != "open":
            await up.ask(post(chat()))
        await eventually(lambda: states(up)[0] == "half_open")
        holds.append(True)
        before = len(engine.requests)
        clients = []
        while len(engine.requests) == before:
            clients.append(await RawClient.connect(up.port))
            await clients[-1].send(post(chat()))
            await asyncio.sleep(0.01)
        for _ in range(4):
            assert (await up.ask(post(chat()))).headers["x-headstart-replica"] == "r1"
        assert len(engine.requests) == before + 1
        for client in clients:
            client.close()
        holds.clear()
        faulty.is_broken = False
        while states(up)[0] not in ("warming", "available"):
            await up.ask(post(chat()))


async def test_an_engine_of_our_own_is_tried_with_one_token_and_no_clients_request():
    """Its failures cost nobody anything."""
    faulty = Faulty()
    engine, other = ScriptedEngine(faulty), ScriptedEngine(name="r1")
    configs = await with_kind("vllm", engine, other)
    health = replace(QUICK_CHECKS, breaker=SHORT_OPEN)
    async with running(engine, other, configs=configs, health=health, routing=TURNS) as up:
        while states(up)[0] not in ("open", "half_open"):
            await up.ask(post(chat()))
        failed = len(clients_requests(engine))
        await eventually(lambda: len(engine.requests) > failed + 3)
        for _ in range(6):
            assert (await up.ask(post(chat()))).headers["x-headstart-replica"] == "r1"
        assert len(clients_requests(engine)) == failed
        assert states(up)[0] == "half_open"
        faulty.is_broken = False
        await eventually(lambda: states(up)[0] in ("warming", "available"))
        await until_used(up, engine)


async def test_if_all_have_failed_they_are_used_all_the_same():
    """Refusing would be worse; the record says so."""
    faulty = Faulty()
    engine = ScriptedEngine(faulty)
    async with running(engine, health=replace(QUICK_CHECKS, breaker=LONG_OPEN)) as up:
        for _ in range(3):
            assert (await up.ask(post(chat()))).status == 500
        assert states(up) == ["open"]
        faulty.is_broken = False
        assert (await up.ask(post(chat()))).status == 200
        assert up.records[-1].reason.endswith("as a last resort: every replica has failed lately")


async def test_an_error_inside_streams_counts_as_a_failure():
    """vLLM reports a dead worker with status 200."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(b'data: {"error":{"message":"worker died","code":500}}\n\n')
        await wire.end_stream()

    engine = ScriptedEngine(answer)
    async with running(engine, health=replace(QUICK_CHECKS, breaker=LONG_OPEN)) as up:
        for _ in range(3):
            await up.ask(post(chat(stream=True)))
        assert states(up) == ["open"]


async def test_an_engine_that_does_not_answer_in_time_fails():
    """A deadline that passes is a failure, and not a reason to take it down at once."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.closed()

    engine = ScriptedEngine(answer)
    upstream = UpstreamConfig(first_byte_s=0.05)
    health = replace(QUICK_CHECKS, breaker=LONG_OPEN)
    async with running(engine, health=health, upstream=upstream) as up:
        for number in range(3):
            assert states(up) == ["available"], number
            assert (await up.ask(post(chat()))).status == 504
        assert states(up) == ["open"]


# Returning.


async def test_a_replica_that_returns_takes_a_request_under_load_while_it_warms():
    """Whatever little share it has: nothing is in flight there."""

    async def answer(_request: Received, wire: Wire) -> None:
        await may_end.wait()
        await wire.answer()

    may_end = asyncio.Event()
    engine, other = ScriptedEngine(), ScriptedEngine(answer, name="r1")
    health = replace(QUICK_CHECKS, slow_start_s=1000.0)
    routing = RoutingConfig(policy="least_loaded")
    async with running(engine, other, health=health, routing=routing) as up:
        await engine.stop()
        loads = [asyncio.ensure_future(up.ask(post(chat()))) for _ in range(20)]
        await eventually(lambda: up.gateway.replicas()[1].in_flight == 20)
        engine.answer = answer
        await engine.start()
        await eventually(lambda: states(up)[0] == "warming")
        assert up.gateway.replicas()[0].weight == pytest.approx(0.1)
        loads += [asyncio.ensure_future(up.ask(post(chat()))) for _ in range(4)]
        await eventually(lambda: sum(each.in_flight for each in up.gateway.replicas()) == 24)
        assert 1 <= up.gateway.replicas()[0].in_flight <= 3
        may_end.set()
        assert {(await each).status for each in loads} == {200}


async def test_each_change_is_told_once(caplog):
    """In the log, and counted."""
    caplog.set_level(logging.INFO, "headstart.gateway.monitor")
    engine = ScriptedEngine()
    health = replace(QUICK_CHECKS, up_interval_s=0.02, slow_start_s=0.1)
    async with running(engine, health=health) as up:
        await engine.stop()
        await eventually(lambda: states(up) == ["down"])
        await engine.start()
        await eventually(lambda: states(up) == ["available"])
        counts = {k: n for k, n in up.gateway.replicas()[0].transitions.items() if n}
    assert counts == {"available": 2, "down": 1, "warming": 1}
    told = [record.getMessage().split(":")[0] for record in caplog.records]
    assert told == [f"replica r0 is {state}" for state in ("available", "down", "warming")] + [
        "replica r0 is available"
    ]


# The operator.


async def test_a_drained_replica_finishes_what_it_has_and_gets_nothing_new():
    """Until it is resumed."""

    async def answer(request: Received, wire: Wire) -> None:
        await may_end.wait()
        await stream(request, wire)

    may_end = asyncio.Event()
    engine, other = ScriptedEngine(answer), ScriptedEngine(name="r1")
    async with running(engine, other, routing=TURNS) as up:
        open_one = await ask_soon(up, engine, stream=True)
        up.gateway.drain_replica("r0")
        assert states(up) == ["draining", "available"]
        assert up.gateway.replicas()[0].in_flight == 1
        for _ in range(4):
            assert (await up.ask(post(chat()))).headers["x-headstart-replica"] == "r1"
        may_end.set()
        assert (await open_one).is_complete
        up.gateway.resume_replica("r0")
        assert states(up) == ["available", "available"]
        await until_used(up, engine)


async def test_a_drained_replica_that_freezes_loses_its_requests_to_another():
    """Draining a replica that seems stuck is what an operator does first."""
    engine, core = freezable()
    other = ScriptedEngine(name="r1")
    configs = await with_kind("vllm", engine, other)
    async with running(engine, other, configs=configs, health=WATCHFUL, routing=TURNS) as up:
        core.runs.clear()
        waiting = await ask_soon(up, engine)
        up.gateway.drain_replica("r0")
        assert (await waiting).headers["x-headstart-replica"] == "r1"
        assert states(up)[0] == "draining"
        core.runs.set()


async def test_draining_every_replica_refuses():
    """The operator's word goes before everything."""
    async with running(ScriptedEngine()) as up:
        up.gateway.drain_replica("r0")
        assert (await up.ask(post(chat()))).status == 503
        assert not up.gateway.is_ready


async def test_draining_what_is_not_there_names_what_is():
    """Names are typed by people."""
    async with running(ScriptedEngine()) as up:
        with pytest.raises(NotFound, match="there are: r0"):
            up.gateway.drain_replica("nobody")
