"""GET /v1/models, /health and /ready, and the checks that feed them."""

import pytest

from headstart.engines.base import HealthConfig
from loopback import QUICK_CHECKS, ScriptedEngine, chat, eventually, get, post, running


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


async def test_before_the_first_check_no_replica_is_used():
    """Nobody knows yet whether it is there."""
    engine = ScriptedEngine()
    async with running(engine, waits=False) as up:
        assert not up.gateway.is_ready
        assert up.gateway.replicas()[0].reason == "not checked yet"
        await eventually(lambda: up.gateway.is_ready)


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
