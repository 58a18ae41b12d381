"""Sources run on uvloop in the service, and on the loop of asyncio in other programs."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both: they resolve names in different ways."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
