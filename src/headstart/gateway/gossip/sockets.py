"""ZeroMQ sockets on an event loop, without tasks: what comes is handed to a callback.

A socket's descriptor says that something has happened, once, and not that something is there: after
each such sign everything is read, and where that is put off, it is taken up again unasked.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from headstart.errors import ConfigError
from headstart.gateway.gossip.links import Links, encrypt
from headstart.wire.gossip import MAX_MESSAGE_BYTES

HIGH_WATER_MARK: Final = 256
"""Messages that wait for one receiver, and of one sender: about a second of them. Beyond that they
are dropped by the library, and the receiver sees by their numbers how many were."""

_MESSAGES_PER_TURN: Final = 16
_LINGER_MS: Final = 100
_RECONNECT_MS: Final = 100
_RECONNECT_MAX_MS: Final = 2000
_HEARTBEAT_MS: Final = 1000
_HEARTBEAT_TIMEOUT_MS: Final = 5000
"""A connection whose other end has vanished is given up, and made anew."""

_RETRY_S: Final = 1.0

_FAILED_HANDSHAKES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

_Socket = zmq.Socket[bytes]
_Context = zmq.Context[_Socket]


class Reader:
    """Hands a socket's messages to a callback, a few in each turn of the loop.

    Args:
        zmq_socket: read from here on; not closed here.
        take: called with the frames of each message.
    """

    def __init__(self, zmq_socket: _Socket, take: Callable[[list[bytes]], None]) -> None:
        self._socket = zmq_socket
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._descriptor: int = zmq_socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        self._loop.add_reader(self._descriptor, self.read)
        # What came before nobody is told of.
        self._later: asyncio.Handle | None = self._loop.call_soon(self.read)

    def read(self) -> None:
        """Hand on what is there; the rest in the next turn."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        for _ in range(_MESSAGES_PER_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(frames)
        self._later = self._loop.call_soon(self.read)

    def stop(self) -> None:
        """Read no more."""
        self._loop.remove_reader(self._descriptor)
        if self._later is not None:
            self._later.cancel()
            self._later = None


class Watcher:
    """Counts a socket's connections that failed before a message could pass.

    Args:
        zmq_socket: watched until it is closed.
        failed: called for each.
    """

    def __init__(self, zmq_socket: _Socket, failed: Callable[[], None]) -> None:
        self._socket = zmq_socket
        self._failed = failed
        self._events = zmq_socket.get_monitor_socket(_FAILED_HANDSHAKES)
        self._reader = Reader(self._events, self._take)

    def stop(self) -> None:
        """Watch no more; the socket is closed next."""
        self._reader.stop()
        self._socket.disable_monitor()
        self._events.close()

    def _take(self, frames: list[bytes]) -> None:
        if parse_monitor_message(frames)["event"] & _FAILED_HANDSHAKES:
            self._failed()


class Ear:
    """A subscription, made anew when it was refused.

    The library gives up for good on a peer that speaks otherwise, as one does that has not been
    given the key yet; and whoever has another key today may have the right one tomorrow.

    Args:
        context: of the socket.
        endpoint: to which it connects.
        key: encrypts; None does not.
        take: called with the frames of each message.
        refused: called for each connection that failed.
    """

    def __init__(
        self,
        context: _Context,
        endpoint: str,
        key: str | None,
        take: Callable[[list[bytes]], None],
        refused: Callable[[], None],
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._key = key
        self._take = take
        self._refused = refused
        self._retry: asyncio.TimerHandle | None = None
        self._open()

    def read(self) -> None:
        """Take what has come and was not handed on yet."""
        self._reader.read()

    def close(self) -> None:
        """Hear no more."""
        if self._retry is not None:
            self._retry.cancel()
        self._shut()

    def _open(self) -> None:
        self._socket = make_socket(self._context, zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._watcher = Watcher(self._socket, self._fail)
        self._reader = Reader(self._socket, self._take)
        encrypt(self._socket, self._key, is_listener=False)
        self._socket.setsockopt(zmq.IPV6, int("[" in self._endpoint))
        self._socket.connect(self._endpoint)

    def _shut(self) -> None:
        self._reader.stop()
        self._watcher.stop()
        self._socket.close()

    def _fail(self) -> None:
        self._refused()
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._shut()
        self._open()


class Hub:
    """Publishes on some endpoints and hears what is published on others.

    Args:
        take: called with each message that comes.

    Attributes:
        num_refused: connections, made or taken, that failed before a message passed: another key,
            or none, or no gateway.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._context: _Context = zmq.Context()
        self._publisher = make_socket(self._context, zmq.PUB)
        self._watcher: Watcher | None = None
        self._ears: list[Ear] = []
        self.num_refused = 0

    def start(self, links: Links) -> None:
        """Bind, connect and begin to read; once, within the loop.

        Raises:
            ConfigError: an endpoint cannot be bound. Close the hub then, too.
        """
        self._watcher = Watcher(self._publisher, self._refused)
        encrypt(self._publisher, links.key, is_listener=True)
        for endpoint in links.binds:
            self._bind(endpoint)
        for endpoint in links.connects:
            ear = Ear(self._context, endpoint, links.key, self._take_frames, self._refused)
            self._ears.append(ear)

    def send(self, message: bytes) -> None:
        """Send to whoever listens; never blocks."""
        self._publisher.send(message, zmq.NOBLOCK)

    def read(self) -> None:
        """Take what has come and was not handed on yet."""
        for ear in self._ears:
            ear.read()

    def close(self) -> _Context:
        """Close the sockets; returns what is to be ended with `term` off the loop.

        That may take 100 ms: for so long what was sent last has time to leave.
        """
        for ear in self._ears:
            ear.close()
        self._ears.clear()
        if self._watcher is not None:
            self._watcher.stop()
        self._publisher.close()
        return self._context

    def _bind(self, endpoint: str) -> None:
        self._publisher.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            self._publisher.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"gossip cannot listen on {endpoint}: {error.strerror}; choose a free port and an "
                "address of this machine",
                param="gossip.listen",
            ) from error

    def _take_frames(self, frames: list[bytes]) -> None:
        # We send one frame; what has more is not ours, and the codec will say so.
        self._take(frames[0] if len(frames) == 1 else b"")

    def _refused(self) -> None:
        self.num_refused += 1


def make_socket(context: _Context, kind: int) -> _Socket:
    """Return a new socket with bounds and deadlines."""
    zmq_socket = context.socket(kind)
    zmq_socket.set_hwm(HIGH_WATER_MARK)
    for option, value in (
        (zmq.LINGER, _LINGER_MS),
        (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
        (zmq.RECONNECT_IVL, _RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS),
        (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS),
    ):
        zmq_socket.setsockopt(option, value)
    return zmq_socket
