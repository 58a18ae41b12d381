"""Replicas that come and go while requests run, in front of real sockets."""

import asyncio
import logging
import random
from collections import Counter
from dataclasses import replace

import pytest
from held import Held
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

from headstart.engines.base import ReplicaConfig
from headstart.errors import NotFound
from headstart.routing.queue import QueueConfig
from loopback import (
    DONE_EVENT,
    QUICK_CHECKS,
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    eventually,
    pair,
    post,
    running,
    stream,
    token_event,
)

QUICK_START = replace(QUICK_CHECKS, slow_start_s=0.0)


def names(up) -> list[str]:
    return [each.name for each in up.gateway.replicas()]


async def served_by(up, number=4) -> set[str]:
    return {(await up.ask(post(chat()))).headers["x-headstart-replica"] for _ in range(number)}


async def dropped(up, count: int) -> None:
    """Wait until all that was to be dropped is."""
    await eventually(lambda: len(up.gateway.replicas()) == count)
    await eventually(lambda: not up.gateway._replicas._ends)


class Gate:
    """An engine's answer whose first piece comes at once and whose end when the test says so."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, _request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.piece(token_event("a"))
        await self.may_end.wait()
        await wire.piece(DONE_EVENT)
        await wire.end_stream()


async def open_stream(up, text="hi") -> RawClient:
    """Begin a stream; returns once its first token has come."""
    client = await RawClient.connect(up.port)
    await client.send(post(chat(text, stream=True)))
    await client.read_head()
    await client.read_piece()
    return client


# Coming.


async def test_an_added_replica_is_used_once_its_check_has_succeeded(start):
    """Its share begins small, because its cache is cold."""
    engine, late = pair(stream)
    async with running(engine, routing=TURNS) as up:
        late.models_status = 500
        await start(late)
        up.gateway.set_replicas([engine.config(), late.config()])
        assert states(up) == ["available", "down"]
        assert up.gateway.replicas()[1].reason == "not checked yet"
        await eventually(lambda: "answers 500" in up.gateway.replicas()[1].reason)
        assert await served_by(up) == {"r0"}
        late.models_status = 200
        await eventually(lambda: states(up)[1] == "warming")
        assert up.gateway.replicas()[1].weight == pytest.approx(0.1)
        await until_used(up, late)


async def test_one_that_does_not_answer_yet_joins_when_it_does(start):
    """It was listed before its engine had loaded."""
    engine, late = pair(stream)
    await start(late)
    await late.stop()
    async with running(engine, routing=TURNS, health=QUICK_START) as up:
        up.gateway.set_replicas([engine.config(), late.config()])
        await eventually(lambda: "Cannot connect" in up.gateway.replicas()[1].reason)
        assert await served_by(up) == {"r0"}
        await late.start()
        await until_used(up, late)


async def test_a_gateway_that_starts_with_none_refuses_until_there_is_one(start):
    """Sources may take longer than the gateway."""
    late = ScriptedEngine()
    await start(late)
    async with running(routing=TURNS) as up:
        assert (await up.ask(post(chat()))).status == 503
        assert not up.gateway.is_ready
        up.gateway.set_replicas([late.config()])
        await eventually(lambda: states(up) == ["available"])
        assert (await up.ask(post(chat()))).status == 200
        assert up.gateway.is_ready


async def test_what_cannot_be_used_is_left_out_and_said_once(caplog, start):
    """It keeps nothing else from changing."""
    engine, late = pair(stream)
    await start(late)
    async with running(engine, routing=TURNS, health=QUICK_START) as up:
        wrong = ReplicaConfig("wrong", "https://127.0.0.1:1", ca_file="/nowhere/ca.pem")
        for _ in range(2):
            up.gateway.set_replicas([engine.config(), wrong, late.config()])
        assert names(up) == ["r0", "r1"]
        await until_used(up, late)
        told = [each for each in caplog.records if "wrong cannot be used" in each.getMessage()]
        assert len(told) == 1


async def test_one_that_is_added_has_the_limit_of_the_others_and_takes_what_waits(start):
    """Requests that wait for a replica wait for any."""
    held = Held()
    engine, late = pair(held)
    queue = QueueConfig(max_in_flight=1)
    async with running(engine, routing=TURNS, queue=queue, health=QUICK_START) as up:
        asked = [asyncio.ensure_future(up.ask(post(chat(str(i))))) for i in range(4)]
        await eventually(lambda: up.gateway.status().num_waiting == 3)
        await start(late)
        up.gateway.set_replicas([engine.config(), late.config()])
        await eventually(lambda: up.gateway.status().num_waiting == 2)
        assert [each.in_flight for each in up.gateway.replicas()] == [1, 1]
        await eventually(lambda: held.num_held == 2)
        held.open()
        assert {(await each).status for each in asked} == {200}
        assert held.most == 2


# Going.


async def test_a_removed_replica_finishes_its_stream_and_gets_nothing_new():
    """It is listed until it has, and then it and its connections are gone."""
    gate = Gate()
    engine, other = ScriptedEngine(gate), ScriptedEngine(name="r1")
    async with running(engine, other, routing=TURNS, drain_s=60.0) as up:
        client = await open_stream(up)
        while not engine.requests:
            client.close()
            client = await open_stream(up)
        up.gateway.set_replicas([other.config()])
        assert names(up) == ["r1", "r0"]
        assert states(up) == ["available", "draining"]
        assert up.gateway.replicas()[1].reason == "removed; what it was sent finishes"
        assert await served_by(up) == {"r1"}
        gate.may_end.set()
        assert await client.read_piece() == DONE_EVENT
        assert await client.read_piece() == b""
        client.close()
        up.gateway.set_replicas([other.config()], cut={"r0"})
        await dropped(up, 1)
        assert "r0" not in up.gateway._replicas.pools
        await eventually(lambda: all(w.writer.is_closing() for w in engine._wires))


async def test_one_with_nothing_open_is_kept_for_a_while_and_then_gone():
    """Sources waver, and what was learned of it would be lost."""
    engine, other = pair(stream)
    async with running(engine, other, drain_s=0.2) as up:
        up.gateway.set_replicas([other.config()])
        assert names(up) == ["r1", "r0"]
        await dropped(up, 1)


async def test_what_is_open_when_drain_s_is_over_is_tried_elsewhere_or_ends_in_form(start):
    """What had no byte yet is answered by another; a stream gets an error event."""
    held, gate = Held(), Gate()

    async def answer(request: Received, wire: Wire) -> None:
        await (gate if request.json().get("stream") else held)(request, wire)

    engine, other = ScriptedEngine(answer), ScriptedEngine(name="r1")
    async with running(engine, drain_s=0.1) as up:
        client = await open_stream(up)
        waiting = asyncio.ensure_future(up.ask(post(chat())))
        await eventually(lambda: held.num_held == 1)
        await start(other)
        up.gateway.set_replicas([engine.config(), other.config()])
        await eventually(lambda: states(up)[1] in ("warming", "available"))
        up.gateway.set_replicas([other.config()])
        reply = await waiting
        assert (reply.status, reply.headers["x-headstart-replica"]) == (200, "r1")
        rest = b""
        while piece := await client.read_piece():
            rest += piece
        assert b"r0 was removed" in rest
        assert b"[DONE]" not in rest
        client.close()
        await dropped(up, 1)
        await eventually(lambda: len(up.records) == 2)
        assert sorted(record.retries for record in up.records) == [0, 1]


async def test_cut_does_not_wait():
    """Also when it is leaving already."""
    held = Held()
    engine = ScriptedEngine(held)
    async with running(engine, drain_s=60.0) as up:
        waiting = asyncio.ensure_future(up.ask(post(chat())))
        await eventually(lambda: held.num_held == 1)
        up.gateway.set_replicas([])
        assert states(up) == ["draining"]
        up.gateway.set_replicas([], cut={"r0"})
        reply = await waiting
        assert (reply.status, up.records[-1].error_code) == (503, "no_replica_available")
        await dropped(up, 0)
        assert (await up.ask(post(chat()))).status == 503


async def test_one_that_leaves_and_freezes_loses_its_requests_to_another():
    """It is watched until its last request has ended."""
    engine, core = freezable()
    other = ScriptedEngine(name="r1")
    configs = await with_kind("vllm", engine, other)
    options = {"configs": configs, "health": WATCHFUL, "routing": TURNS, "drain_s": 60.0}
    async with running(engine, other, **options) as up:
        core.runs.clear()
        waiting = await ask_soon(up, engine)
        up.gateway.set_replicas(configs[1:])
        assert (await waiting).headers["x-headstart-replica"] == "r1"
        core.runs.set()


async def test_requests_that_wait_for_what_was_removed_are_told():
    """A model that nobody serves any more is not waited for."""
    held = Held()
    engine, other = ScriptedEngine(held), ScriptedEngine(name="r1", models=["n"])
    queue = QueueConfig(max_in_flight=1)
    async with running(engine, other, queue=queue, drain_s=60.0) as up:
        asked = [asyncio.ensure_future(up.ask(post(chat()))) for _ in range(2)]
        await eventually(lambda: up.gateway.status().num_waiting == 1)
        up.gateway.set_replicas([other.config()])
        held.open()
        assert sorted([(await each).status for each in asked]) == [200, 404]


async def test_draining_what_leaves_is_draining_what_is_not_there():
    """Its operator has other orders for it."""
    engine, other = pair(stream)
    async with running(engine, other) as up:
        up.gateway.set_replicas([other.config()])
        with pytest.raises(NotFound, match=r"there are: r1\.$"):
            up.gateway.drain_replica("r0")


# Staying.


async def test_one_that_is_back_before_it_has_left_stays_who_it_was():
    """With its slot, its connections, its requests and what the operator has said about it."""
    gate = Gate()
    engine, other = ScriptedEngine(gate), ScriptedEngine(name="r1")
    async with running(engine, other, drain_s=60.0) as up:
        before = {each.replica.name: each.replica for each in up.gateway._replicas.watched}
        up.gateway.drain_replica("r0")
        up.gateway.set_replicas([other.config()])
        up.gateway.set_replicas([other.config(), engine.config()])
        assert states(up) == ["available", "draining"]
        up.gateway.resume_replica("r0")
        assert states(up) == ["available", "available"]
        after = {each.replica.name: each.replica for each in up.gateway._replicas.watched}
        assert all(after[name] is replica for name, replica in before.items())
        up.gateway._fleet.check_integrity()


async def test_a_name_with_another_url_is_another_replica(start):
    """The old one finishes what it has, and the new one takes what comes, under one name."""
    held = Held()
    old, new = ScriptedEngine(held), ScriptedEngine()
    await start(new)
    async with running(old, drain_s=60.0, health=QUICK_START) as up:
        waiting = asyncio.ensure_future(up.ask(post(chat())))
        await eventually(lambda: held.num_held == 1)
        up.gateway.set_replicas([new.config()])
        assert names(up) == ["r0"]
        await eventually(lambda: states(up) == ["available"])
        assert await served_by(up) == {"r0"}
        assert len(new.requests) == 4
        held.open()
        assert (await waiting).status == 200
        assert len(old.requests) == 1
        up.gateway._fleet.check_integrity()


@pytest.mark.parametrize("is_leaving", [False, True])
async def test_another_key_is_used_at_once_and_the_replica_stays(is_leaving):
    """For requests and for checks."""
    engine = ScriptedEngine()
    await engine.start()
    configs = [engine.config(api_key="old")]
    async with running(engine, configs=configs, drain_s=60.0) as up:
        (before,) = up.gateway._replicas.watched
        if is_leaving:
            up.gateway.set_replicas([])
        num_checks = len(engine.checks)
        up.gateway.set_replicas([engine.config(api_key="new", models=("m", "n"))])
        assert (await up.ask(post(chat(model="n")))).status == 200
        assert engine.requests[-1].header("authorization") == "Bearer new"
        await eventually(lambda: len(engine.checks) > num_checks)
        assert engine.checks[-1].header("authorization") == "Bearer new"
        (after,) = up.gateway._replicas.watched
        assert after is before
        assert up.gateway.replicas()[0].models == ("m", "n")


async def test_a_change_that_cannot_be_used_changes_nothing(caplog):
    """A key with a line break would be a second header."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        up.gateway.set_replicas([engine.config(api_key="two\nlines")])
        assert (await up.ask(post(chat()))).status == 200
        assert engine.requests[-1].header("authorization") is None
        assert "r0 stays as it was" in caplog.text
        assert "lines" not in caplog.text


# All together.


class Diary:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int]] = []

    def replica_added(self, replica, config, origin) -> None:
        assert (config.name, config.url) == (replica.name, origin.url)
        self.lines.append(("added", replica.name, replica.slot))

    def replica_returned(self, replica) -> None:
        self.lines.append(("returned", replica.name, replica.slot))

    def replica_changed(self, replica, config, origin) -> None:
        self.lines.append(("changed", replica.name, replica.slot))

    def replica_removed(self, replica) -> None:
        assert replica.in_flight == 0
        self.lines.append(("removed", replica.name, replica.slot))


async def test_listeners_hear_of_each_replica_before_its_first_and_after_its_last_request():
    """A slot is given away only after its last owner was said to be gone."""
    engine, other = pair(stream)
    diary = Diary()
    async with running(engine, other, drain_s=60.0) as up:
        up.gateway._replicas._listeners = (diary,)
        moved = replace(engine.config(), name="r2")
        up.gateway.set_replicas([other.config()], cut={"r0"})
        up.gateway.set_replicas([other.config(), moved])
        up.gateway.set_replicas([moved])
        up.gateway.set_replicas([moved, other.config(models=("m",))])
        lines = [("removed", "r0", 0), ("added", "r2", 0), ("changed", "r1", 1)]
        assert diary.lines == lines


async def test_listeners_hear_of_a_return_and_not_of_the_first_check():
    """The engine behind the address may be another process now."""
    engine, diary = ScriptedEngine(), Diary()
    async with running(engine) as up:
        up.gateway._replicas._listeners = (diary,)
        await engine.stop()
        assert (await up.ask(post(chat()))).status in (502, 503)
        await eventually(lambda: states(up) == ["down"])
        assert diary.lines == []
        await engine.start()
        await eventually(lambda: diary.lines == [("returned", "r0", 0)])


async def test_nothing_that_was_accepted_is_lost_while_replicas_come_and_go(caplog):
    """Each request is answered whole by one of them, and leaves one record."""
    caplog.set_level(logging.WARNING)
    engines = [ScriptedEngine(stream, name=f"r{i}") for i in range(4)]
    for engine in engines:
        await engine.start()
    rng, replies, is_over = random.Random(7), [], False

    async def client() -> None:
        while not is_over:
            replies.append(await up.ask(post(chat(str(len(replies)), stream=True))))

    health = replace(QUICK_START, up_interval_s=0.05)
    async with running(*engines, health=health, routing=TURNS, drain_s=60.0) as up:
        tasks = [asyncio.ensure_future(client()) for _ in range(6)]
        for _ in range(60):
            # The first stays, so that there is always somebody.
            there = [engines[0], *rng.sample(engines[1:], rng.randrange(4))]
            gone = {each.name for each in engines} if rng.random() < 0.3 else set()
            up.gateway.set_replicas([each.config() for each in there], cut=gone)
            up.gateway._fleet.check_integrity()
            before = len(replies)
            await eventually(lambda at=before: len(replies) > at + 4)
        is_over = True
        await asyncio.gather(*tasks)
        up.gateway.set_replicas([engines[0].config()], cut={each.name for each in engines})
        await dropped(up, 1)
        assert [each.in_flight for each in up.gateway.replicas()] == [0]
    assert {reply.status for reply in replies} == {200}
    assert len(up.records) == len(replies)
    broken = [reply for reply in replies if b"[DONE]" not in reply.body]
    # Only a stream that had begun on a replica that was cut may end with an error.
    assert all(b"was removed" in reply.body for reply in broken)
    answered = Counter(reply.headers["x-headstart-replica"] for reply in replies)
    assert len(answered) == 4
    assert sum(len(clients_requests(engine)) for engine in engines) >= len(replies)
