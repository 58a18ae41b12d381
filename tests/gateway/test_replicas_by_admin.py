"""Replicas added and removed through the admin port of a running gateway."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest
from held import Held
from trouble import until_used

from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.recorder import Recorder
from headstart.engines.discovery.roster import Roster
from headstart.gateway.admin import AdminServer
from headstart.gateway.overview import LocalSource
from headstart.routing.config import RoutingConfig
from loopback import ScriptedEngine, chat, eventually, post, running

TURNS = RoutingConfig(policy="round_robin")


@asynccontextmanager
async def governed(*engines, roster=None, **options):
    """A gateway in front of `engines`, and a session with its admin port."""
    async with running(*engines, routing=TURNS, **options) as up:
        metrics = RequestMetrics()
        recorder = Recorder(observe=metrics.observe)
        source = LocalSource(up.gateway, metrics, recorder, roster and roster(up.gateway))
        server = AdminServer(source)
        port = await server.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                yield up, session
        finally:
            await server.close()


async def listed(session):
    async with session.get("/replicas") as response:
        return {each["name"]: each["state"] for each in (await response.json())["data"]}


async def test_one_that_is_added_takes_requests(start):
    """The answer shows it, and that a restart forgets it."""
    engine, late = ScriptedEngine(), ScriptedEngine(name="late")
    await start(late)
    async with governed(engine) as (up, session):
        form = {"name": "late", "url": late.config().url, "kind": "vllm", "api_key": "sk-secret"}
        async with session.post("/replicas", json=form) as response:
            assert response.status == 201
            answer = await response.json()
        (shown,) = answer["data"]
        assert (shown["name"], shown["state"], shown["kind"]) == ("late", "down", "vllm")
        assert "not saved" in answer["note"]
        assert "sk-secret" not in str(answer)
        await until_used(up, late)
        assert late.requests[-1].header("authorization") == "Bearer sk-secret"


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"url": "nonsense"}, 400, "bad_request"),
        ({"name": "r0", "url": "http://127.0.0.1:1"}, 409, "conflict"),
    ],
)
async def test_what_cannot_be_added_is_refused_in_form(form, status, code):
    """And nothing has changed."""
    async with governed(ScriptedEngine()) as (_up, session):
        async with session.post("/replicas", json=form) as response:
            assert response.status == status
            assert (await response.json())["error"]["code"] == code
        assert await listed(session) == {"r0": "available"}


async def test_one_that_is_removed_finishes_and_then_is_gone():
    """Its request is answered; `?now=1` does not wait, also while it leaves."""
    held = Held()
    engine, other = ScriptedEngine(held), ScriptedEngine(name="r1")
    async with governed(engine, other, drain_s=60.0) as (up, session):
        asked = [asyncio.ensure_future(up.ask(post(chat()))) for _ in range(2)]
        await eventually(lambda: held.num_held == 1)
        async with session.delete("/replicas/r0") as response:
            assert response.status == 200
            (shown,) = (await response.json())["data"]
            assert (shown["state"], shown["in_flight"]) == ("draining", 1)
            assert shown["reason"].startswith("removed")
        held.open()
        assert {(await each).status for each in asked} == {200}
        async with session.delete("/replicas/r0?now=1") as response:
            assert response.status == 200
            assert (await response.json())["data"] == []
        assert await listed(session) == {"r1": "available"}
        async with session.delete("/replicas/r0") as response:
            assert response.status == 404
            assert "there are: r1" in (await response.json())["error"]["message"]


async def test_removed_now_a_request_is_answered_by_another():
    """It had no byte yet."""
    held = Held()
    engine, other = ScriptedEngine(held), ScriptedEngine(name="r1")
    async with governed(engine, other, drain_s=60.0) as (up, session):
        asked = [asyncio.ensure_future(up.ask(post(chat()))) for _ in range(2)]
        await eventually(lambda: held.num_held == 1)
        async with session.delete("/replicas/r0?now=1") as response:
            assert (await response.json())["data"] == []
        assert {(await each).headers["x-headstart-replica"] for each in asked} == {"r1"}


async def test_draining_and_resuming_work_as_before(start):
    """On replicas that came through the admin port, too."""
    engine, late = ScriptedEngine(), ScriptedEngine(name="late")
    await start(late)
    async with governed(engine) as (up, session):
        await session.post("/replicas", json={"name": "late", "url": late.config().url})
        await until_used(up, late)
        for order, wanted in (("drain", {"draining"}), ("resume", {"available", "warming"})):
            async with session.post(f"/replicas/late/{order}") as response:
                assert (await response.json())["data"][0]["state"] in wanted


async def test_sources_are_shown_with_what_is_wrong_with_them(start):
    """A file with a slip of the pen keeps the last list, and somebody must see it."""

    class Place:
        label = "file engines.yaml"
        grace_s = 0.0

    listings = []

    def roster(gateway):
        one = Roster(gateway.replica_configs(), gateway.set_replicas)
        listings.append(one.listing(Place()))
        return one

    late = ScriptedEngine(name="late")
    await start(late)
    async with governed(ScriptedEngine(), roster=roster) as (up, session):
        listings[0].found([late.config()])
        listings[0].failed("engines.yaml:3: this is not YAML")
        await until_used(up, late)
        async with session.get("/replicas") as response:
            (shown,) = (await response.json())["sources"]
        assert shown == {
            "label": "file engines.yaml",
            "num_replicas": 1,
            "trouble": "engines.yaml:3: this is not YAML",
        }
