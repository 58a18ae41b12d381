"""A running server on the tiny model, the official client, and a bare HTTP client."""

import asyncio

import aiohttp
import openai
import pytest

from headstart.clock import SystemClock
from headstart.engines.embedded.server import EngineServer
from headstart.engines.embedded.settings import EngineSettings


@pytest.fixture
async def start_server(tiny_gguf):
    servers = []

    async def start(**overrides):
        settings = EngineSettings(model_path=tiny_gguf, model_name="tiny", **overrides)
        server = EngineServer(settings, SystemClock())
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        hurry = asyncio.Event()
        hurry.set()
        await server.stop(hurry)


@pytest.fixture
async def server(start_server):
    return await start_server()


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def client(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client
