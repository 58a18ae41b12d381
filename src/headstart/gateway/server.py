"""The data port: listens, keeps the clients' connections, and ends them."""

import asyncio
import contextlib
import ssl
from typing import Final

from headstart.clock import Clock
from headstart.gateway.connection import ClientConnection, RequestHandler
from headstart.wire.http1 import HttpLimits

_BACKLOG: Final = 1024


class DataServer:
    """Listens, keeps the connections, and ends them.

    Args:
        handler: answers the requests.
        limits: of each connection.
        clock: monotonic readings.

    Attributes:
        is_draining: connections close after the answer that they are giving.
    """

    def __init__(self, handler: RequestHandler, limits: HttpLimits, clock: Clock) -> None:
        self._handler = handler
        self._limits = limits
        self._clock = clock
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self.is_draining = False
        self._is_drained = asyncio.Event()

    @property
    def num_connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def num_open_requests(self) -> int:
        """Requests that are being answered."""
        return sum(connection.is_answering for connection in self._connections)

    async def bind(
        self, host: str, port: int, *, reuse_port: bool = False, tls: ssl.SSLContext | None = None
    ) -> int:
        """Take the port and return its number; connections are refused until `listen`."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self._handler, self._limits, self._clock, self),
            host,
            port,
            backlog=_BACKLOG,
            reuse_port=reuse_port or None,
            ssl=tls,
            start_serving=False,
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def listen(self) -> None:
        """Accept connections on the port that `bind` took."""
        assert self._server is not None
        await self._server.start_serving()

    def opened(self, connection: ClientConnection) -> None:
        """Keep a new connection."""
        self._connections.add(connection)

    def lost(self, connection: ClientConnection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self._check_drained()

    def sweep(self, now: float) -> None:
        """Close connections whose deadlines have passed."""
        for connection in list(self._connections):
            connection.sweep(now)

    async def drain(self, within_s: float) -> None:
        """Let open requests finish for at most `within_s`; idle connections close at once.

        The port stays open, because a refusal in form (the handler's 503) tells a client more
        than a refused connection.
        """
        self.is_draining = True
        for connection in list(self._connections):
            connection.close_when_idle()
        self._check_drained()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._is_drained.wait()

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cut()
        while self._connections:
            await asyncio.sleep(0)  # `connection_lost` comes with the loop's next turns

    def _check_drained(self) -> None:
        if self.is_draining and self.num_open_requests == 0:
            self._is_drained.set()
