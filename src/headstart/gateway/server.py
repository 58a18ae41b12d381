"""The data port: listens, keeps the clients' connections, and ends them."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Final

from headstart.clock import Clock
from headstart.gateway.acceptor import Acceptor, ConnectionBoard
from headstart.gateway.connection import ClientConnection, RequestHandler
from headstart.wire.http1 import HttpLimits

_BACKLOG: Final = 1024

# A request may be so long behind its connection, which would otherwise be closed under it.
_SETTLE_S: Final = 0.25

# For the errors of what is cut off to reach its clients.
_LAST_WORDS_S: Final = 0.5


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
        self._acceptor: Acceptor | None = None
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

    async def bind(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Take the port and return its number; connections are refused until `listen`."""
        self._server = await asyncio.get_running_loop().create_server(
            self._make_connection,
            host,
            port,
            backlog=_BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self._limits.head_s,
            start_serving=False,
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def share(
        self,
        sockets: Sequence[socket.socket],
        board: ConnectionBoard,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Use a port that other processes use, too; closes its `sockets` in the end."""
        self._acceptor = Acceptor(
            sockets,
            self._make_connection,
            lambda: len(self._connections),
            board,
            tls=tls,
            handshake_s=self._limits.head_s,
        )

    async def listen(self) -> None:
        """Accept connections on the port of `bind` or `share`."""
        if self._acceptor is not None:
            self._acceptor.start()
            return
        assert self._server is not None
        await self._server.start_serving()

    def leave(self) -> None:
        """Leave a shared port to the other processes."""
        assert self._acceptor is not None
        self._acceptor.stop()

    def rejoin(self) -> None:
        """Accept from a shared port again, if `leave` was called."""
        if self._acceptor is not None:
            self._acceptor.start()

    def _make_connection(self) -> ClientConnection:
        return ClientConnection(self._handler, self._limits, self._clock, self)

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
        """Let open requests finish for at most `within_s`; close what is idle.

        The port stays open, because a refusal in form (the handler's 503) tells a client more
        than a refused connection.
        """
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                if self._connections:
                    await asyncio.sleep(_SETTLE_S)
                for connection in list(self._connections):
                    connection.close_when_idle()
                self._is_drained.clear()  # it may have been set while this waited
                self._check_drained()
                await self._is_drained.wait()

    async def close(self) -> None:
        """Stop listening, let what is open fail in form, and cut who does not take that."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        if self._acceptor is not None:
            await self._acceptor.close()
        for connection in list(self._connections):
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                while self._connections:
                    await asyncio.sleep(_LAST_WORDS_S / 50)
        for connection in list(self._connections):
            connection.cut()
        while self._connections:
            await asyncio.sleep(0)  # `connection_lost` comes with the loop's next turns

    def _check_drained(self) -> None:
        if self.is_draining and self.num_open_requests == 0:
            self._is_drained.set()
