"""The data path runs on uvloop, and so do its tests."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops: uvloop writes at once where asyncio waits, and differs in what it allows."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
async def start():
    """Starts engines besides those that a gateway begins with; they end with the test."""
    started = []

    async def start_one(engine):
        started.append(engine)
        await engine.start()

    yield start_one
    for engine in started:
        await engine.stop()
