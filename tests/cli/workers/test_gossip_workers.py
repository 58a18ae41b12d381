"""Workers of one `headstart serve` know what the others sent where."""

import contextlib
import os
import signal

import aiohttp
import pytest
from aiohttp import web

from served import serve
from served_workers import children, samples, until, worker_of

NAMES = ("r0", "r1")
SETTINGS = ("request_log: off", "routing: {policy: lmetric}")
"""A policy for which what a replica holds decides alone, where nothing is in flight."""
MESSAGES = "headstart_gossip_messages_total"


class CachingEngine:
    """An engine that says of its cache what is true: a prompt that it had is cached."""

    def __init__(self):
        self.seen = set()
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_post("/v1/chat/completions", self.chat)

    async def models(self, _request):
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def chat(self, request):
        text = (await request.json())["messages"][0]["content"]
        num_tokens = len(text) // 4
        cached = (num_tokens - 1) // 16 * 16 if text in self.seen else 0
        self.seen.add(text)
        message = {"role": "assistant", "content": "hello"}
        usage = {
            "prompt_tokens": num_tokens,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return web.json_response(
            {"id": "c", "choices": [{"index": 0, "message": message}], "usage": usage}
        )


@pytest.fixture
async def engines():
    """Two engines, by name."""
    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for name in NAMES:
            runner = web.AppRunner(CachingEngine().app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            urls[name] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield urls


@contextlib.asynccontextmanager
async def two_workers(engines, tmp_path):
    """A gateway of two workers in front of both engines, which hear each other."""
    lines = [f"  - {{name: {name}, url: '{url}', models: [m]}}" for name, url in engines.items()]
    (tmp_path / "headstart.yaml").write_text("\n".join([*SETTINGS, "engines:", *lines]))
    async with serve("--workers", "2", cwd=tmp_path) as served, aiohttp.ClientSession() as session:
        await until(lambda: hear_each_other(session, served))
        yield served, session


async def by_worker(session, served, name, **labels):
    """A gossip metric of each worker."""
    return {
        dict(values)["process"]: value
        for (one, values), value in (await samples(session, served)).items()
        if one == name and labels.items() <= dict(values).items()
    }


async def hear_each_other(session, served):
    peers = await by_worker(session, served, "headstart_gossip_peers")
    return [peers.get(f"worker-{index}") for index in range(2)] == [1, 1]


async def all_is_heard(session, served):
    """Wait until each worker has heard what the other has to tell now.

    Messages come in order, and each holds all that there was to tell: two more are enough.
    """
    before = await by_worker(session, served, MESSAGES, fate="received")

    async def has_grown():
        now = await by_worker(session, served, MESSAGES, fate="received")
        return all(now[worker] >= count + 2 for worker, count in before.items())

    await until(has_grown)


async def order(session, served, name, what):
    async with session.post(f"{served.admin}/replicas/{name}/{what}") as response:
        assert response.status == 200, await response.text()


async def is_used_by_both(session, served, name):
    async with session.get(f"{served.admin}/replicas") as response:
        found = {each["name"]: each for each in (await response.json())["data"]}[name]
    return found["state"] == "available" and "worker-" not in found["reason"]


async def send(session, served, prompt):
    """Ask, and return which replica answered, and which worker asked it."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    async with session.post(f"{served.data}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        await response.read()
        return response.headers["x-headstart-replica"], worker_of(response)


def prompts(word, number=6):
    return [f"{word} {index} ".ljust(4096, "x") for index in range(number)]


async def test_a_prefix_that_one_worker_sent_somewhere_is_found_by_the_other(engines, tmp_path):
    """Without that it would find both replicas equal, and take them in turn."""
    async with (
        two_workers(engines, tmp_path) as (served, session),
        contextlib.AsyncExitStack() as stack,
    ):
        sessions = [await stack.enter_async_context(aiohttp.ClientSession()) for _ in range(8)]
        await order(session, served, "r0", "drain")
        moved = []
        while len(moved) < 6:  # the order may reach one of the workers a little later
            for prompt in prompts(f"moved {len(moved)}"):
                replica, _ = await send(session, served, prompt)
                if replica == "r1":
                    moved.append(prompt)
        await all_is_heard(session, served)
        await order(session, served, "r0", "resume")
        await until(lambda: is_used_by_both(session, served, "r0"))
        # Each session keeps its connection, and half of them are with each worker.
        for prompt in moved[:6]:
            answers = [await send(each, served, prompt) for each in sessions]
            assert {replica for replica, _ in answers} == {"r1"}
            assert len({worker for _, worker in answers}) == 2
        fresh = [await send(session, served, prompt) for prompt in prompts("fresh", 12)]
        assert {replica for replica, _ in fresh} == {"r0", "r1"}


async def test_a_worker_that_was_killed_is_heard_again_once_it_is_replaced(engines, tmp_path):
    """The others do not wait for it meanwhile."""
    async with two_workers(engines, tmp_path) as (served, session):
        os.kill(children(served.process.pid)[0], signal.SIGKILL)
        await served.said_line("was ended by SIGKILL")
        await send(session, served, prompts("meanwhile", 1)[0])
        await until(lambda: hear_each_other(session, served))
