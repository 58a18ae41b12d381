"""Connections from a port that several processes share: each takes its part of them.

All processes wait on the same listening sockets, and the system wakes them all for a connection.
Whoever comes first would take it, and under little load that is nearly always the same one. So a
process that holds more connections than another leaves a new one to the others for a moment, and
takes it only if nobody did: nothing waits for a process that hangs. A process that ends leaves the
connections that nobody has taken yet to the others.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol

_log = logging.getLogger(__name__)

_BACKLOG: Final = 1024

_DEFER_S: Final = 0.001
"""How long a connection is left to the others. Longer ones balance no better and cost each client
that connects while all are busy as much."""

_SLACK: Final = 16
"""A process may hold one connection in so many more than the least loaded: an even share does not
matter so much that bursts should wait for it."""

_FULL_S: Final = 0.5
"""Rest after the system had no descriptor left; connections wait in the queue meanwhile."""


class ConnectionBoard(Protocol):
    """Where the processes that share a port write how many connections each holds."""

    def publish(self, num_connections: int) -> None:
        """Tell the others."""
        ...

    def fewest(self) -> int:
        """Return the smallest number that any process told, this one included."""
        ...

    def leave(self) -> None:
        """Tell the others that this process takes no connections."""
        ...


class Acceptor:
    """Takes connections from shared listening sockets.

    Args:
        sockets: bound, not blocking; several processes may hold them.
        make_protocol: called for each connection.
        count: returns how many connections this process holds.
        board: how many the others hold.
        tls: serve https with this context.
        handshake_s: longest time a TLS handshake may take.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        count: Callable[[], int],
        board: ConnectionBoard,
        *,
        tls: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        self._sockets = tuple(sockets)
        self._make_protocol = make_protocol
        self._count = count
        self._board = board
        self._tls = tls
        self._handshake_s = handshake_s if tls is not None else None
        self._starting: set[asyncio.Task[None]] = set()
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._is_open = False

    def start(self) -> None:
        """Take connections from now on; without effect if it does."""
        if self._is_open:
            return
        self._is_open = True
        self._board.publish(self._count())
        for listener in self._sockets:
            listener.listen(_BACKLOG)
            self._listen(listener)

    def stop(self) -> None:
        """Take no more; the sockets stay open for the other processes."""
        self._is_open = False
        self._board.leave()
        for listener in self._sockets:
            asyncio.get_running_loop().remove_reader(listener)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def close(self) -> None:
        """Take no more, and end the handshakes that are under way."""
        self.stop()
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for listener in self._sockets:
            listener.close()

    def _listen(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listener, self._ready, listener)

    def _ready(self, listener: socket.socket) -> None:
        held = self._count() + len(self._starting)
        self._board.publish(held)
        fewest = self._board.fewest()
        if held > fewest + fewest // _SLACK:
            self._rest(listener, _DEFER_S)
            return
        self._accept(listener)

    def _rest(self, listener: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._timers[listener] = loop.call_later(seconds, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        del self._timers[listener]
        self._listen(listener)
        self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was quicker, or the client has left
        except OSError as error:
            _log.error("cannot take connections now: %s", error.strerror or error)
            self._rest(listener, _FULL_S)
            return
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_s,
            )
        except OSError:  # ssl.SSLError among them: a client that does not speak TLS
            connection.close()
