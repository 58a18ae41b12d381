"""A `headstart serve` of several processes: traffic for it, and what it says of itself."""

import asyncio
import contextlib
import json
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from served import chat, serve

REQUESTS = "headstart_requests_total"


async def samples(session, served):
    """Every sample of /metrics, by name and labels."""
    async with session.get(f"{served.admin}/metrics") as response:
        text = await response.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def total(session, served, name=REQUESTS, **labels):
    """Sum of a metric's samples that have these labels."""
    found = await samples(session, served)
    return sum(
        value
        for (one, values), value in found.items()
        if one == name and labels.items() <= dict(values).items()
    )


async def until(is_true):
    """Ask again and again; the test's own timeout is the deadline."""
    while not await is_true():
        await asyncio.sleep(0.02)


def children(pid):
    """Process ids of the workers."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    if not path.exists():
        pytest.skip("this system does not list a process's children")
    return [int(child) for child in path.read_text().split()]


def worker_of(response):
    """Which worker answered: each has a prefix of its own for request ids."""
    return response.headers["x-headstart-request-id"].split("-")[0]


async def open_streams(stack, served, number):
    """Begin so many streams, each on a connection of its own."""
    session = await stack.enter_async_context(aiohttp.ClientSession())
    streams = [
        await stack.enter_async_context(chat(session, served, stream=True)) for _ in range(number)
    ]
    for stream in streams:
        assert b"one" in await stream.content.readline()
    return streams


class Client:
    """Asks again and again on one connection, and keeps what it was answered."""

    def __init__(self, served):
        self.served = served
        self.answered = []
        self.num_broken = 0
        self.is_over = False

    async def run(self):
        async with aiohttp.ClientSession() as session:
            while not self.is_over:
                try:
                    async with chat(session, self.served) as response:
                        await response.read()
                        assert response.status == 200
                        self.answered.append(response.headers["x-headstart-request-id"])
                except aiohttp.ClientError:
                    self.num_broken += 1


@contextlib.asynccontextmanager
async def traffic(served, number):
    """Clients that ask until the block is left."""
    clients = [Client(served) for _ in range(number)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run())
        try:
            yield clients
        finally:
            for client in clients:
                client.is_over = True


@contextlib.asynccontextmanager
async def two_workers(engine, tmp_path, *flags, number=2):
    """A gateway of several processes whose request log goes into a file."""
    log = ("--request-log", str(tmp_path / "requests.jsonl"))
    common = ("--engine", engine.url, "--workers", str(number))
    async with serve(*common, *log, *flags, cwd=tmp_path) as served:
        yield served


def answered_ids(clients):
    return [request_id for client in clients for request_id in client.answered]


def logged_ids(path):
    """The log's request ids; every line is one whole JSON object."""
    return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]
