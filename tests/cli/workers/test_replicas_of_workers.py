"""Replicas added and removed while several workers serve."""

import os
import signal

import aiohttp
import pytest
from aiohttp import web

from served import ScriptedEngine, chat
from served_workers import children, total, two_workers, until


@pytest.fixture
async def late():
    """A second engine, which no configuration names."""
    one = ScriptedEngine()
    runner = web.AppRunner(one.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield one
    await runner.cleanup()


async def states(session, served):
    """Each replica's state, and whether all workers share it: else one of them is named."""
    async with session.get(f"{served.admin}/replicas") as response:
        data = (await response.json())["data"]
    return {each["name"]: (each["state"], "worker-" in each["reason"]) for each in data}


async def is_used_by_all(session, served, name):
    state, is_split = (await states(session, served)).get(name, ("", True))
    return state in ("available", "warming") and not is_split


async def test_a_replica_is_added_to_and_removed_from_all_workers(engine, late, tmp_path):
    """Also for one that is started later."""
    async with two_workers(engine, tmp_path) as served, aiohttp.ClientSession() as session:
        form = {"name": "late", "url": late.url}
        async with session.post(f"{served.admin}/replicas", json=form) as response:
            assert response.status == 201, await response.text()
            assert [each["name"] for each in (await response.json())["data"]] == ["late"]
        await until(lambda: is_used_by_all(session, served, "late"))
        async with session.post(f"{served.admin}/replicas", json=form) as response:
            assert response.status == 409
        os.kill(children(served.process.pid)[0], signal.SIGKILL)
        await served.said_line("was ended by SIGKILL")
        await until(lambda: all_up(session, served))
        await until(lambda: is_used_by_all(session, served, "late"))

        first = engine.url.removeprefix("http://")
        async with session.delete(f"{served.admin}/replicas/{first}?now=1") as response:
            assert response.status == 200
            assert (await response.json())["data"] == []
        assert set(await states(session, served)) == {"late"}
        for _ in range(4):
            async with aiohttp.ClientSession() as other, chat(other, served) as response:
                assert response.headers["x-headstart-replica"] == "late"
        os.kill(children(served.process.pid)[0], signal.SIGKILL)
        await until(lambda: restarted(session, served, 2))
        await until(lambda: all_up(session, served))
        assert set(await states(session, served)) == {"late"}
        async with session.delete(f"{served.admin}/replicas/{first}") as response:
            assert response.status == 404


async def all_up(session, served):
    return await total(session, served, "headstart_worker_up") == 2


async def restarted(session, served, number):
    return await total(session, served, "headstart_worker_restarts_total") == number


async def test_an_order_to_drain_ends_with_its_replica(engine, late, tmp_path):
    """Another one of that name has another address."""
    async with two_workers(engine, tmp_path) as served, aiohttp.ClientSession() as session:
        form = {"name": "late", "url": "http://127.0.0.1:1"}
        async with session.post(f"{served.admin}/replicas", json=form) as response:
            assert response.status == 201
        async with session.post(f"{served.admin}/replicas/late/drain") as response:
            assert (await response.json())["data"][0]["state"] == "draining"
        async with session.delete(f"{served.admin}/replicas/late") as response:
            assert response.status == 200
        async with session.post(f"{served.admin}/replicas", json=form | {"url": late.url}):
            pass
        os.kill(children(served.process.pid)[0], signal.SIGKILL)
        await until(lambda: restarted(session, served, 1))
        await until(lambda: all_up(session, served))
        await until(lambda: is_used_by_all(session, served, "late"))
