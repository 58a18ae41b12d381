"""GET /v1/models, /health and /ready, and the checks that feed them."""

import asyncio
import contextlib

import pytest

from headstart.engines.base import HealthConfig
from loopback import (
    QUICK_CHECKS,
    RawClient,
    Received,
    ScriptedEngine,
    Wire,
    chat,
    eventually,
    get,
    post,
    running,
    token_event,
)


async def test_models_of_all_engines_in_openais_form():
    """Each once, with the engine's own fields."""
    engines = [ScriptedEngine(models=["m", "n"]), ScriptedEngine(name="r1", models=["m", "o"])]
    async with running(*engines) as up:
        listed = (await up.ask(get("/v1/models"))).json()
        one = (await up.ask(get("/v1/models/o"))).json()
        missing = await up.ask(get("/v1/models/x"))
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == ["m", "n", "o"]
    assert all(entry["x_own"] == 1 for entry in listed["data"])
    assert one["id"] == "o"
    assert missing.status == 404
    assert "m, n, o" in missing.json()["error"]["message"]
    assert [record.path for record in up.records][:2] == ["/v1/models", "/v1/models/o"]


async def test_a_models_name_may_contain_a_slash():
    """Hugging Face names do, escaped or not."""
    async with running(ScriptedEngine(models=["org/name"])) as up:
        for path in ("/v1/models/org/name", "/v1/models/org%2Fname"):
            assert (await up.ask(get(path))).json()["id"] == "org/name"


async def test_configured_models_hide_the_others():
    """And are listed even if the engine does not mention them."""
    engine = ScriptedEngine(models=["m", "secret"])
    await engine.start()
    async with running(engine, configs=[engine.config(models=("m", "alias"))]) as up:
        listed = (await up.ask(get("/v1/models"))).json()["data"]
        assert (await up.ask(post({"model": "secret", "messages": []}))).status == 404
    assert [entry["id"] for entry in listed] == ["alias", "m"]
    assert listed[1]["x_own"] == 1
    assert "x_own" not in listed[0]


async def test_ready_lists_what_can_and_what_cannot_be_used():
    """With the reason, for whoever is on call."""
    good, bad = ScriptedEngine(), ScriptedEngine(name="r1")
    bad.models_status = 500
    async with running(good, bad, waits=False) as up:
        statuses = up.gateway.replicas
        await eventually(lambda: statuses()[0].is_available and "500" in statuses()[1].reason)
        reply = await up.ask(get("/ready"))
    assert reply.status == 200
    assert reply.json()["available"] == ["r0"]
    assert "500" in reply.json()["unavailable"]["r1"]


@pytest.mark.parametrize(
    ("status", "is_available"), [(200, True), (404, True), (401, False), (403, False), (503, False)]
)
async def test_what_a_check_concludes_from_a_status(status, is_available):
    """A server without the list is alive; one that refuses our key is of no use."""
    engine = ScriptedEngine()
    engine.models_status = status
    async with running(engine, waits=False) as up:
        await eventually(lambda: up.gateway.replicas()[0].reason != "not checked yet")
        assert up.gateway.replicas()[0].is_available is is_available


async def test_a_gateway_that_has_started_knows_its_replicas():
    """The first request finds those that answer, and learns why not of those that do not."""
    gone = ScriptedEngine(name="r1")
    await gone.start()
    await gone.stop()
    engine = ScriptedEngine()
    await engine.start()
    configs = [engine.config(), gone.config()]
    async with running(configs=configs, waits=False) as up:
        assert up.gateway.is_ready
        assert up.gateway.replicas()[1].reason.startswith("Cannot connect")
        assert (await up.ask(post(chat()))).status == 200
    await engine.stop()


async def test_a_replica_that_is_silent_does_not_hold_the_start_for_ever():
    """It stays unavailable, and says why."""
    engine = ScriptedEngine()
    engine.models_status = 0
    async with running(engine, waits=False) as up:
        assert not up.gateway.is_ready
        assert up.gateway.replicas()[0].reason == "not checked yet"
        assert (await up.ask(post(chat()))).status == 503


async def test_a_late_check_of_a_busy_replica_takes_it_down_only_the_second_time():
    """It computes on the processor that answers checks, and its stream shows that it lives."""

    async def answer(_request: Received, wire: Wire) -> None:
        await wire.begin_stream()
        with contextlib.suppress(ConnectionError):
            while True:
                await wire.piece(token_event("a"))
                await asyncio.sleep(0.005)

    engine = ScriptedEngine(answer)
    health = HealthConfig(up_interval_s=0.05, down_interval_s=0.05, timeout_s=0.1)
    async with running(engine, health=health) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat(stream=True)))
        await client.read_head()
        engine.models_status, num_checks = 0, len(engine.checks)
        await eventually(lambda: not up.gateway.replicas()[0].is_available)
        assert len(engine.checks) >= num_checks + 2
        assert "no answer" in up.gateway.replicas()[0].reason
        client.close()


async def test_a_late_check_of_a_replica_that_says_nothing_takes_it_down():
    """A frozen process has no more to show."""
    engine = ScriptedEngine()
    health = HealthConfig(up_interval_s=0.05, down_interval_s=30, timeout_s=0.05)
    async with running(engine, health=health) as up:
        engine.models_status, num_checks = 0, len(engine.checks)
        await eventually(lambda: not up.gateway.replicas()[0].is_available)
        assert len(engine.checks) == num_checks + 1


async def test_a_check_on_a_kept_connection_that_was_closed_is_asked_again():
    """The engine closes idle connections when it likes; that is no failure."""
    engine = ScriptedEngine()
    engine.closes_kept = True
    health = HealthConfig(up_interval_s=0.02, down_interval_s=30)
    async with running(engine, health=health) as up:
        seen = len(engine.checks)
        await eventually(lambda: len(engine.checks) >= seen + 6)
        assert up.gateway.is_ready


async def test_a_list_of_models_that_is_nested_too_deeply_is_not_read():
    """And its replica is watched further."""
    engine = ScriptedEngine()
    engine.models_body = b'{"data":[{"id":' + b"[" * 100_000
    health = HealthConfig(up_interval_s=0.02, down_interval_s=0.02)
    async with running(engine, health=health) as up:
        engine.models_body = None
        await eventually(lambda: up.gateway.replicas()[0].models == ("m",))


async def test_a_replica_that_does_not_answer_its_check_is_down():
    """A frozen process accepts connections and says nothing."""
    engine = ScriptedEngine()
    engine.models_status = 0
    health = HealthConfig(up_interval_s=30, down_interval_s=0.01, timeout_s=0.05)
    async with running(engine, waits=False, health=health) as up:
        await eventually(lambda: "no answer" in up.gateway.replicas()[0].reason)


async def test_a_check_carries_nothing_of_a_clients():
    """No body, no client headers."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        await up.ask(post(chat("secret"), headers=["X-Mine: 1"]))
    for check in engine.checks:
        assert check.body == b""
        assert check.header("x-mine") is None


async def test_models_may_change_while_the_gateway_runs():
    """The next check tells."""
    engine = ScriptedEngine()
    health = HealthConfig(up_interval_s=0.02, down_interval_s=0.02)
    async with running(engine, health=health) as up:
        engine.models = ["new"]
        await eventually(lambda: up.gateway.replicas()[0].models == ("new",))
        assert (await up.ask(post({"model": "new", "messages": []}))).status == 200


async def test_state_for_the_admin_port():
    """What the gateway shows of itself."""
    engine = ScriptedEngine()
    async with running(engine, health=QUICK_CHECKS) as up:
        await up.ask(post(chat()))
        (status,) = up.gateway.replicas()
        assert (status.name, status.kind, status.models) == ("r0", "openai-compatible", ("m",))
        assert status.url.endswith(str(engine.port))
        assert status.in_flight == status.in_flight_bytes == 0
        assert status.idle_connections == 1
        assert up.gateway.is_ready
        assert not up.gateway.is_draining
