"""A server between the gateway and an engine that keeps what it passes on."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

_OF_A_CONNECTION = ("Host", "Connection", "Content-Length", "Transfer-Encoding")


@dataclass
class Wiretap:
    """What went through.

    Attributes:
        url: for the gateway.
        exchanges: path, request body and response body of each, in the order of their ends.
    """

    url: str = ""
    exchanges: list[tuple[str, bytes, bytes]] = field(default_factory=list)

    def taken(self, path: str) -> list[bytes]:
        """The request bodies to a path."""
        return [taken for each, taken, _given in self.exchanges if each == path]

    def given(self, path: str) -> list[bytes]:
        """The response bodies of a path."""
        return [given for each, _taken, given in self.exchanges if each == path]


@contextlib.asynccontextmanager
async def wiretap(engine_url: str) -> AsyncIterator[Wiretap]:
    """Pass everything on to an engine, piece by piece."""
    tap = Wiretap()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k not in _OF_A_CONNECTION}
        given = b""
        async with client.request(
            request.method, engine_url + request.path_qs, data=body, headers=headers
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                given += piece
                await response.write(piece)
        tap.exchanges.append((request.path, body, given))
        return response

    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client:
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            tap.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield tap
        finally:
            await runner.cleanup()
