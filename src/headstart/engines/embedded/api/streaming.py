"""Write one server-sent event stream to a client."""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from headstart.errors import HeadstartError
from headstart.wire.openai import error_event


class EventStream:
    """The response side of a stream; does not know what the events mean."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
            }
        )

    async def open(self) -> None:
        """Send the status line and headers."""
        await self.response.prepare(self._request)

    async def send(self, body: Mapping[str, object]) -> None:
        """Send one event.

        Raises:
            ConnectionResetError: the client is gone.
        """
        await self.response.write(b"data: %b\n\n" % msgspec.json.encode(body))

    async def fail(self, error: HeadstartError) -> None:
        """Send an error in the stream's place: the status line is gone already."""
        await self.response.write(error_event(error))

    async def done(self) -> None:
        """Send the end marker."""
        await self.response.write(b"data: [DONE]\n\n")
        await self.response.write_eof()
