"""Replicas in trouble: an engine that can be frozen, and questions to a fleet."""

import asyncio
from dataclasses import replace

from headstart.routing.config import RoutingConfig
from loopback import QUICK_CHECKS, Received, ScriptedEngine, Wire, chat, plain, post

WATCHFUL = replace(QUICK_CHECKS, stall_s=0.1, slow_start_s=0.2)
TURNS = RoutingConfig(policy="round_robin")


class Freezable:
    """An engine's computing part: its HTTP server answers on while this is frozen."""

    def __init__(self, answer=plain) -> None:
        self.answer = answer
        self.runs = asyncio.Event()
        self.runs.set()
        self.num_tokens = 0
        self.num_looks = 0

    def page(self) -> bytes:
        self.num_looks += 1
        return b'vllm:generation_tokens_total{engine="0"} %d\n' % self.num_tokens

    async def __call__(self, request: Received, wire: Wire) -> None:
        await self.runs.wait()
        self.num_tokens += 1
        await self.answer(request, wire)


def freezable(answer=plain, *, name="r0") -> tuple[ScriptedEngine, Freezable]:
    core = Freezable(answer)
    engine = ScriptedEngine(core, name=name)
    engine.metrics = core.page
    return engine, core


async def with_kind(kind, *engines):
    """Start `engines`; returns their configurations with this kind."""
    for engine in engines:
        await engine.start()
    return [engine.config(kind=kind) for engine in engines]


def states(up) -> list[str]:
    return [each.state for each in up.gateway.replicas()]


def clients_requests(engine) -> list[Received]:
    """What reached it, without the gateway's own trials."""
    return [each for each in engine.requests if each.json().get("prompt") != "1"]


async def ask_soon(up, engine, **more) -> asyncio.Task:
    """Ask until a request waits at `engine`; returns the task of that one."""
    before = len(clients_requests(engine))
    while True:
        task = asyncio.ensure_future(up.ask(post(chat(**more))))
        while not task.done():
            if len(clients_requests(engine)) > before:
                return task
            await asyncio.sleep(0.002)


async def until_used(up, engine) -> None:
    """Ask until `engine` has got one more request."""
    before = len(clients_requests(engine))
    while len(clients_requests(engine)) == before:
        assert (await up.ask(post(chat()))).status == 200
