"""A client's connection, and nothing of what its requests mean.

Theory of operation: a connection reads requests, hands one at a time to the handler, and reads on
only when that one has been answered; requests that arrive earlier (pipelining) wait and are
answered in order. While an answer is on its way the connection goes on receiving, up to a bound,
because that is the only way to notice that the client has left.
"""

import asyncio
from typing import Final, Protocol, cast

from headstart.clock import Clock
from headstart.errors import HeadstartError
from headstart.wire.http1 import CONTINUE, HttpLimits, Request
from headstart.wire.http1_parse import RequestReader

# Bytes of later requests that are kept while one is answered. Beyond, the socket is left alone.
_MAX_AHEAD_BYTES: Final = 64 * 1024
# Response bytes that may wait for a slow client before the engine is made to wait too.
_WRITE_HIGH_BYTES: Final = 256 * 1024
# After an answer that ends a connection mid-request the rest of that request is read and dropped
# until it pauses for so long: closing at once would reset the connection and could destroy the
# answer on its way.
_LINGER_S: Final = 2.0


class ActiveRequest(Protocol):
    """A request that is being answered (`exchange.Exchange`)."""

    def client_lost(self) -> None:
        """Hear that the client has left."""
        ...

    def gateway_ends(self) -> None:
        """Hear that it has to end now."""
        ...

    def client_paused(self) -> None:
        """Hear that the client is slow."""
        ...

    def client_resumed(self) -> None:
        """Hear that the client has caught up."""
        ...


class RequestHandler(Protocol):
    """What answers requests (`handler.Handler`)."""

    def handle(self, request: Request, client: "ClientConnection", accepted_at: float) -> None:
        """Answer `request` on `client`, now or later, and call its `finished` in the end."""
        ...

    def refuse(self, error: HeadstartError, client: "ClientConnection", accepted_at: float) -> None:
        """Answer a request that could not be read; the connection then closes by itself."""
        ...


class ConnectionOwner(Protocol):
    """Who keeps the connections (`server.DataServer`).

    Attributes:
        is_draining: connections close after the answer that they are giving.
    """

    is_draining: bool

    def opened(self, connection: "ClientConnection") -> None:
        """Hear of a new connection."""
        ...

    def lost(self, connection: "ClientConnection") -> None:
        """Hear that a connection is gone."""
        ...


class ClientConnection(asyncio.Protocol):
    """One connection of a client; moves bytes between it, the reader and the handler.

    Attributes:
        active: the request that is being answered; set by the handler that answers later.
    """

    __slots__ = (
        "_accepted_at",
        "_ahead",
        "_buffered_bytes",
        "_clock",
        "_handler",
        "_has_progress",
        "_head_since",
        "_is_answering",
        "_is_lingering",
        "_is_reading_paused",
        "_is_serving",
        "_is_write_paused",
        "_limits",
        "_owner",
        "_quiet_since",
        "_reader",
        "_transport",
        "active",
    )

    def __init__(
        self,
        handler: RequestHandler,
        limits: HttpLimits,
        clock: Clock,
        owner: ConnectionOwner,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._clock = clock
        self._owner = owner
        self._reader = RequestReader(limits)
        self._transport: asyncio.Transport | None = None
        self.active: ActiveRequest | None = None
        self._accepted_at: float | None = None
        self._ahead = b""
        self._is_answering = False
        self._is_serving = False
        self._is_lingering = False
        self._is_reading_paused = False
        self._is_write_paused = False
        # Read and written by `sweep` only, but for `_has_progress`.
        self._has_progress = True
        self._quiet_since = 0.0
        self._head_since: float | None = None
        self._buffered_bytes = 0

    @property
    def is_answering(self) -> bool:
        """A request has been handed over and not been answered completely."""
        return self._is_answering

    @property
    def is_idle(self) -> bool:
        """No request has begun to arrive, and none is being answered."""
        return not self._is_answering and self._reader.is_between_requests and not self._ahead

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        # A cast, because uvloop's transports are Transports by behaviour and not by class.
        self._transport = cast("asyncio.Transport", transport)
        self._owner.opened(self)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        """Read, unless a request is being answered."""
        self._has_progress = True
        if self._is_lingering:
            return
        if not self._is_answering:
            self._feed(data)
            self._serve()
            return
        self._ahead += data
        if len(self._ahead) > _MAX_AHEAD_BYTES and not self._is_reading_paused:
            assert self._transport is not None
            self._is_reading_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Take the client's end of input for its leaving, as most servers do."""
        return False  # the transport closes and `connection_lost` follows

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  why does not matter
        """Tell the active request."""
        self._transport = None
        active, self.active = self.active, None
        if active is not None:
            active.client_lost()
        self._owner.lost(self)

    def pause_writing(self) -> None:
        """Pass the client's back-pressure on."""
        self._is_write_paused = True
        if self.active is not None:
            self.active.client_paused()

    def resume_writing(self) -> None:
        """Pass on that it has ended."""
        self._is_write_paused = False
        if self.active is not None:
            self.active.client_resumed()

    # For whoever answers.

    @property
    def is_write_paused(self) -> bool:
        """The client is slow; a request that begins to answer starts paused."""
        return self._is_write_paused

    def write(self, data: bytes) -> None:
        """Send bytes to the client; without effect once it has left."""
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, *, closes: bool) -> None:
        """Go on with the next request, or close after what was written."""
        self.active = None
        self._is_answering = False
        self._has_progress = True
        if self._transport is None:
            return
        if closes or self._owner.is_draining:
            self._transport.close()
        elif not self._is_serving:
            self._serve()

    def cut(self) -> None:
        """Close at once, so that the client sees a broken response and not a short one."""
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """Let what is being answered fail in form; close once it is written."""
        if self.active is not None:
            self.active.gateway_ends()
        if self._transport is not None:
            self._transport.close()

    def close_when_idle(self) -> None:
        """Close now if nothing is being received or answered."""
        if self.is_idle and self._transport is not None:
            self._transport.close()

    # Reading.

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        if self._accepted_at is None and (reader.requests or reader.is_in_body):
            self._accepted_at = self._clock.monotonic()

    def _serve(self) -> None:
        # A loop and not a recursion: an answer that is given at once returns here.
        self._is_serving = True
        reader = self._reader
        while not self._is_answering and self._is_open():
            if reader.requests:
                self._is_answering = True
                self._handler.handle(reader.requests.popleft(), self, self._take_accepted_at())
            elif reader.error is not None:
                self._refuse(reader.error)
                break
            elif self._ahead:
                data, self._ahead = self._ahead, b""
                self._resume_reading()
                self._feed(data)
            else:
                self._invite_body()
                break
        self._is_serving = False

    def _is_open(self) -> bool:
        # Once an answer has closed the connection, what was pipelined behind it is the client's
        # to send again (RFC 9112 §9.6).
        return self._transport is not None and not self._transport.is_closing()

    def _invite_body(self) -> None:
        # Only here, when all before it is answered: a client takes an interim response for part
        # of the answer that it is waiting for.
        if self._reader.wants_continue:
            self._reader.wants_continue = False
            self.write(CONTINUE)

    def _resume_reading(self) -> None:
        if self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _take_accepted_at(self) -> float:
        accepted_at, self._accepted_at = self._accepted_at, None
        return self._clock.monotonic() if accepted_at is None else accepted_at

    def _refuse(self, error: HeadstartError) -> None:
        assert self._transport is not None
        self._handler.refuse(error, self, self._take_accepted_at())
        self._is_lingering = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        elif self._transport is not None:
            self._transport.close()

    # Deadlines.

    def sweep(self, now: float) -> None:
        """Close what has been quiet for too long.

        Args:
            now: monotonic seconds.
        """
        transport = self._transport
        if transport is None:
            return
        if self._is_write_paused:
            # Progress is the client's taking, which only the size of the buffer shows.
            buffered = transport.get_write_buffer_size()
            self._has_progress = buffered != self._buffered_bytes
            self._buffered_bytes = buffered
        if self._has_progress:
            self._has_progress = False
            self._quiet_since = now
        limit = self._quiet_limit()
        is_over = limit is not None and now - self._quiet_since > limit
        if is_over or self._is_late(now):
            transport.abort()

    def _quiet_limit(self) -> float | None:
        if self._is_lingering:
            return _LINGER_S
        if self._is_answering:
            return self._limits.stall_s if self._is_write_paused else None
        return self._limits.keep_alive_s if self.is_idle else self._limits.body_s

    def _is_late(self, now: float) -> bool:
        # However steadily bytes come: a head, and what follows a refusal, may take `head_s`.
        reader = self._reader
        is_head = not (self._is_answering or reader.is_between_requests or reader.is_in_body)
        if not is_head and not self._is_lingering:
            self._head_since = None
            return False
        if self._head_since is None:
            self._head_since = now
        return now - self._head_since > self._limits.head_s
