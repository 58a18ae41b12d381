"""Two real vLLM replicas for the session, and a gateway process in front of them."""

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest
from gateway_process import GatewayProcess
from vllm_replica import VllmReplica


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    """The folder with vLLM's virtual environment and model; skipped without it."""
    named = os.environ.get("HEADSTART_TEST_VLLM")
    if not named:
        pytest.skip("HEADSTART_TEST_VLLM is not set; `.ci/vllm` makes what it names")
    return Path(named)


@pytest.fixture(scope="session")
def replicas(vllm_home, tmp_path_factory):
    """Two engines, one per core; they outlive the tests that do not harm them."""
    folder = tmp_path_factory.mktemp("vllm")
    engines = [VllmReplica(vllm_home, folder, core) for core in range(2)]
    try:
        for engine in engines:
            engine.start()
        asyncio.run(_all_healthy(engines))
        yield engines
    finally:
        for engine in engines:
            engine.stop()


@pytest.fixture
async def gateway(replicas, tmp_path):
    """`headstart serve` in front of both."""
    async with GatewayProcess.serving([engine.url for engine in replicas], tmp_path) as process:
        yield process


@pytest.fixture
async def session():
    """A client without limits."""
    timeout = aiohttp.ClientTimeout(total=180)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
        yield client


async def _all_healthy(engines):
    await asyncio.gather(*(engine.wait_healthy() for engine in engines))
