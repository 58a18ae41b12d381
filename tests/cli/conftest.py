"""An engine for the commands that serve."""

import pytest
from aiohttp import web

from served import ScriptedEngine


@pytest.fixture
async def engine():
    engine = ScriptedEngine()
    runner = web.AppRunner(engine.app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield engine
    engine.go_on.set()
    await runner.cleanup()
