"""Our own questions to an engine: whole answers, or a clear failure in time."""

import asyncio

import pytest
from aiohttp import web

from headstart.engines.base import ReplicaConfig
from headstart.engines.origin import Origin
from headstart.engines.questions import EngineAnswer, Questions
from headstart.errors import UpstreamError, UpstreamTimeout


@pytest.fixture
async def ask():
    """Questions to a server that answers with a status, a body, or not at all."""
    seen = []

    async def answer(request):
        seen.append((request.path, request.headers.get("Authorization")))
        if request.path.endswith("/silent"):
            await asyncio.Event().wait()
        if request.path.endswith("/long"):
            return web.Response(body=b"x" * 2000)
        return web.Response(status=404, body=b"no")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/below"
    config = ReplicaConfig("r0", url, "vllm", api_key="secret")
    questions = Questions(Origin(config, strips_credentials=True), max_answer_bytes=1000)
    questions.seen = seen
    yield questions
    await questions.close()
    await runner.cleanup()


async def test_an_answer_is_status_and_body_whatever_it_says(ask):
    """The engine's own key goes along, and its path prefix."""
    assert await ask.get("/metrics", 5.0) == EngineAnswer(404, b"no")
    assert ask.seen == [("/below/metrics", "Bearer secret")]


async def test_an_answer_that_does_not_end_is_given_up(ask):
    """A question has a deadline."""
    with pytest.raises(UpstreamTimeout, match="/silent"):
        await ask.get("/silent", 0.05)


async def test_an_answer_that_is_too_long_is_none(ask):
    """Nothing that an engine sends may fill our memory."""
    with pytest.raises(UpstreamError, match="1000 bytes"):
        await ask.get("/long", 5.0)


async def test_nobody_there_is_an_error():
    """And not a wait."""
    config = ReplicaConfig("r0", "http://127.0.0.1:9", "vllm")
    questions = Questions(Origin(config, strips_credentials=True))
    with pytest.raises(UpstreamError, match="Cannot connect"):
        await questions.get("/metrics", 5.0)
    await questions.close()
