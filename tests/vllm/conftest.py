"""Two real vLLM replicas for the session, and a gateway process in front of them."""

import os
from pathlib import Path

import aiohttp
import pytest
from gateway_process import UNHURRIED, GatewayProcess
from vllm_replica import VllmReplica, all_healthy, running

DRAINS_S = 90


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    """The folder with vLLM's virtual environment and model; skipped without it."""
    named = os.environ.get("HEADSTART_TEST_VLLM")
    if not named:
        pytest.skip("HEADSTART_TEST_VLLM is not set; `.ci/vllm` makes what it names")
    return Path(named)


@pytest.fixture(scope="session")
def long_run() -> None:
    """Skip what starts engines of its own and takes many minutes, unless it is asked for."""
    if not os.environ.get("HEADSTART_TEST_VLLM_LONG"):
        pytest.skip("HEADSTART_TEST_VLLM_LONG is not set; these tests start engines of their own")


@pytest.fixture(scope="session")
def replicas(vllm_home, tmp_path_factory):
    """Two engines; they outlive the tests that do not harm them.

    The first one ends as vLLM does by default, at once; the second drains.
    """
    folder = tmp_path_factory.mktemp("vllm")
    cores = sorted(os.sched_getaffinity(0))
    engines = [
        VllmReplica(vllm_home, folder, cores[0], "default"),
        VllmReplica(vllm_home, folder, cores[-1], "draining", "--shutdown-timeout", str(DRAINS_S)),
    ]
    with running(engines):
        yield engines


@pytest.fixture
async def gateway(replicas, tmp_path):
    """`headstart serve` in front of both."""
    urls = [engine.url for engine in replicas]
    async with GatewayProcess.serving(urls, tmp_path, **UNHURRIED) as process:
        yield process


@pytest.fixture
async def in_turn(replicas, tmp_path):
    """A gateway that asks both in turn, and is soon at the end of its patience."""
    urls = [engine.url for engine in replicas]
    settings = {"routing_policy": "round_robin", "health_stall_s": 8}
    async with GatewayProcess.serving(
        urls, tmp_path, upstream_between_chunks_s=30, **settings
    ) as process:
        yield process


@pytest.fixture
async def mended(replicas):
    """Whatever a test does to the replicas, both serve again afterwards."""
    yield replicas
    for engine in replicas:
        if not engine.is_whole():
            engine.stop()
            engine.start()
    await all_healthy(replicas)


@pytest.fixture
async def session():
    """A client without limits."""
    timeout = aiohttp.ClientTimeout(total=180)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
        yield client
