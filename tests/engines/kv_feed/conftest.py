"""The feed runs on uvloop, and so do its tests."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import uvloop
from kv_publishers import FedEngine, ScriptedPublisher, embedded_publisher
from listening_sink import ListeningSink

from headstart.engines.kv_feed.config import KvFeedConfig
from headstart.engines.kv_feed.feed import KvFeed


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops: uvloop watches descriptors in its own way."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


QUICK = KvFeedConfig(
    retry_s=0.02, capacity_s=30.0, silence_s=30.0, replay_idle_s=0.2, replay_pause_s=0.02
)
"""Nothing is waited for that a test does not wait for."""


@pytest.fixture
async def engine():
    """The HTTP side of one replica."""
    engine = FedEngine()
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def sink():
    """Who listens."""
    return ListeningSink()


@pytest.fixture
async def start_feed(sink):
    """Start a feed; it is closed in the end, and must leave nothing behind."""
    before = asyncio.all_tasks()
    feeds = []

    def start(*replicas, to=sink, **changes):
        feeds.append(KvFeed(to, replace(QUICK, **changes)))
        feeds[-1].start(replicas)
        return feeds[-1]

    yield start
    for feed in feeds:
        await feed.close()
    left = {task for task in asyncio.all_tasks() - before if "kv " in task.get_name()}
    assert not left


@pytest.fixture
def publishers():
    """The embedded engine's publishers; those still open are closed in the end."""
    opened = []

    def start(*args, **options):
        opened.append(embedded_publisher(*args, **options))
        return opened[-1]

    yield start
    for publisher in opened:
        if publisher._thread.is_alive():
            publisher.close()


@pytest.fixture
async def scripted():
    """A publisher that errs as it is told."""
    publisher = ScriptedPublisher()
    yield publisher
    await publisher.close()
