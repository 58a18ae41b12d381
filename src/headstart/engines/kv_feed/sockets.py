"""ZMQ sockets on the event loop: what to wait for, and when a connection is up.

Theory of operation: libzmq shows one file descriptor per socket, which becomes readable when
something *may* have changed, and stays so until the socket's events are asked for. `Readiness`
asks them in the loop's callback, so that one burst wakes its task once, and the task then receives
without waiting until nothing is left. Every call on a socket may swallow the descriptor's signal,
so after a send the events are asked for again.
"""

import asyncio
import contextlib
from enum import Enum
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from headstart.engines.kv_feed.config import KvFeedConfig

Frames = list[bytes]

_RECONNECT_MS: Final = 100
_RECONNECT_MAX_MS: Final = 1000
_WATCHED: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class Link(Enum):
    """What became of a connection."""

    UP = "up"
    DOWN = "down"


class Readiness:
    """Tells one task that a socket has something to receive; closes the socket in the end.

    Args:
        socket: owned from now on.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self.look)
        self.look()

    def look(self) -> None:
        """Ask for the socket's events; call it after every send."""
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._ready.set()

    async def wait(self) -> None:
        """Return once there is something to receive; then receive until nothing is left."""
        await self._ready.wait()

    def wake(self) -> None:
        """End a wait, whether or not there is something to receive."""
        self._ready.set()

    def receive(self) -> Frames | None:
        """Return the next message; None if none is left, after which `wait` waits again."""
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            self._ready.clear()
            return None

    def close(self) -> None:
        """Close the socket; nothing may use it any more."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=0)


class Subscription:
    """A SUB socket on one publisher.

    Messages and news of the connection are separate, because the second must be heard of in time
    even when there are many of the first.

    Args:
        context: whose I/O thread is used.
        endpoint: to connect to.
        topic: prefix of the topics to read.
        config: bounds and heartbeat.

    Raises:
        zmq.ZMQError: the endpoint is malformed.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        topic: str,
        config: KvFeedConfig,
    ) -> None:
        self._socket = _open(context, zmq.SUB, config)
        try:
            self._socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
            monitor = self._socket.get_monitor_socket(_WATCHED)
            self._socket.connect(endpoint)
        except zmq.ZMQError:
            self._socket.close(linger=0)
            raise
        self.messages = Readiness(self._socket)
        self._news = Readiness(monitor)

    async def link(self) -> Link:
        """Return the next news of the connection; a failed attempt is `DOWN`, too."""
        while True:
            frames = self._news.receive()
            if frames is None:
                await self._news.wait()
                continue
            event = parse_monitor_message(frames)["event"]
            return Link.UP if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else Link.DOWN

    def close(self) -> None:
        """Close both sockets."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._news.close()
        self.messages.close()


class ReplayRequest:
    """A DEALER socket for one replay: a new one each time, so that no old answer reaches it.

    Args:
        context: whose I/O thread is used.
        endpoint: to connect to.
        config: bounds and heartbeat.

    Raises:
        zmq.ZMQError: the endpoint is malformed.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, config: KvFeedConfig
    ) -> None:
        self._socket = _open(context, zmq.DEALER, config)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError:
            self._socket.close(linger=0)
            raise
        self.messages = Readiness(self._socket)

    def ask(self, frames: Frames) -> None:
        """Send the request; it leaves when the connection is made."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)
        self.messages.look()

    def close(self) -> None:
        """Close the socket."""
        self.messages.close()


def _open(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, config: KvFeedConfig
) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    beat_ms = round(config.heartbeat_s * 1000)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.RCVHWM, config.receive_hwm)
    socket.setsockopt(zmq.MAXMSGSIZE, config.max_message_bytes)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, beat_ms)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2 * beat_ms)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, 4 * beat_ms)
    return socket
