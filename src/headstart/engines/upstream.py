"""The client that talks to one engine: kept connections, deadlines, back-pressure, aborts.

Theory of operation: a `Call` is one attempt to get one response. It takes a kept connection or
dials one, writes the request, and reports to its sink from the event loop's callbacks; there is no
task, future or timer per call (a dial has a task, because that is asyncio's interface). Deadlines
are checked by `sweep`, which the owner calls a few times a second. A connection serves one call at
a time and returns to the pool only after a response that ended where its framing said.

A call fails at most once, and after that or after `abort` its sink hears nothing more. Whether to
try elsewhere is the caller's decision.
"""

import asyncio
from math import inf
from typing import Protocol, cast

from headstart.engines.base import UpstreamConfig
from headstart.engines.origin import Origin
from headstart.errors import UpstreamError, UpstreamTimeout
from headstart.wire.http1 import ResponseHead
from headstart.wire.http1_responses import ResponseReader


class ResponseSink(Protocol):
    """Who hears of a call's response."""

    def response_received(
        self, head: ResponseHead | None, body: bytes, *, is_complete: bool
    ) -> None:
        """Take what one read brought: one call and not three, so that it becomes one write.

        Args:
            head: status and fields; given once, with or before the first of the body.
            body: the next piece without its framing; may be empty.
            is_complete: the response has ended and nothing more will be heard.
        """
        ...

    def response_failed(self, error: UpstreamError) -> None:
        """Hear that the response will not be completed, and nothing more."""
        ...

    def engine_stalled(self) -> None:
        """Hear that nothing of the engine moves; the call goes on unless the sink aborts it."""
        ...


class Call:
    """One attempt to get one response from one engine.

    Attributes:
        has_begun: a part of the response's body came.
        is_fresh: and that since the last sweep, so that there is nothing to note.
        is_sent: the request was handed to a connection; the engine may have seen it.
        is_reused: that connection had served another call before.
    """

    __slots__ = (
        "_connection",
        "_deadline",
        "_dial",
        "_has_progress",
        "_is_paused",
        "_limit_s",
        "_pool",
        "has_begun",
        "is_fresh",
        "is_reused",
        "is_sent",
        "method",
        "payload",
        "sink",
    )

    def __init__(
        self, pool: "UpstreamPool", method: str, payload: tuple[bytes, ...], sink: ResponseSink
    ) -> None:
        self._pool = pool
        self._connection: _Connection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._is_paused = False
        # The time allowed for the present phase. Its deadline is set by the first sweep after
        # progress, which saves reading a clock for every piece.
        self._limit_s = pool.config.connect_s
        self._has_progress = True
        self._deadline = inf
        self.method = method
        self.payload = payload
        self.sink = sink
        self.has_begun = False
        self.is_fresh = False
        self.is_sent = False
        self.is_reused = False

    @property
    def is_waiting(self) -> bool:
        """The engine owes bytes: it has the request, and the client takes what comes."""
        return self.is_sent and not self._is_paused

    def abort(self) -> None:
        """Give the call up; its connection is closed, so that the engine stops working on it."""
        self._pool.forget(self)
        if self._dial is not None:
            self._dial.cancel()
        if self._connection is not None:
            self._connection.close()

    def pause_reading(self) -> None:
        """Take nothing more from the engine for now; no deadline runs meanwhile."""
        self._is_paused = True
        if self._connection is not None:
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        """Take from the engine again."""
        self._is_paused = False
        self._has_progress = True
        if self._connection is not None:
            self._connection.resume_reading()

    def dialling(self, task: asyncio.Task[None] | None) -> None:
        """Note the task that makes a connection for this call, or that it has ended."""
        self._dial = task

    def attach(self, connection: "_Connection", *, is_reused: bool) -> None:
        """Send the request on `connection`."""
        self._connection = connection
        self._dial = None
        self._limit_s = self._pool.config.first_byte_s
        self._has_progress = True
        self.is_sent = True
        self.is_reused = is_reused
        connection.send(self)
        if self._is_paused:
            connection.pause_reading()

    def detach(self) -> None:
        """Let go of the connection: it is no longer this call's to close."""
        self._connection = None

    def progressed(self) -> None:
        """Note that a piece of the body came."""
        self.has_begun = True
        self.is_fresh = True
        self._limit_s = self._pool.config.between_chunks_s
        self._has_progress = True

    def expire(self, now: float) -> bool:
        """Return whether the present phase has lasted too long; a slow client stops the time."""
        self.is_fresh = False
        if self._has_progress or self._is_paused:
            self._has_progress = False
            self._deadline = now + self._limit_s
        return now > self._deadline

    def fail(self, error: UpstreamError) -> None:
        """Close the connection and tell the sink."""
        self.abort()
        self.sink.response_failed(error)


class _Connection(asyncio.Protocol):
    """One TCP or TLS connection to an engine; only moves bytes between it and a call."""

    __slots__ = ("_call", "_pool", "_reader", "_transport", "idle_since")

    def __init__(self, pool: "UpstreamPool") -> None:
        self._pool = pool
        self._reader = ResponseReader()
        self._call: Call | None = None
        self._transport: asyncio.Transport | None = None
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are Transports by behaviour and not by class.
        self._transport = cast("asyncio.Transport", transport)
        self._pool.made(self)

    def send(self, call: Call) -> None:
        assert self._transport is not None
        self._call = call
        self._reader.expect(call.method)
        self._transport.writelines(call.payload)
        call.payload = ()

    def data_received(self, data: bytes) -> None:
        self._pool.has_received = True
        call = self._call
        if call is None:  # bytes nobody asked for would be taken for the next response
            self.close()
            return
        reader = self._reader
        had_head = reader.head is not None
        try:
            reader.feed(data)
        except UpstreamError as error:
            call.fail(error)
            return
        head = reader.head
        if head is None:
            return
        pieces = reader.body
        body = b"" if not pieces else pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if reader.is_complete:
            self._finish(call, None if had_head else head, body)
            return
        # Not for the head: engines send it at once and then prefill, first_byte_s long.
        if body and not call.is_fresh:
            call.progressed()
        call.sink.response_received(None if had_head else head, body, is_complete=False)

    def _finish(self, call: Call, head: ResponseHead | None, body: bytes) -> None:
        self._call = None
        call.detach()
        self._pool.forget(call)
        if self._reader.is_reusable and not self._is_sending():
            self._pool.keep(self)
        else:
            self.close()
        call.sink.response_received(head, body, is_complete=True)

    def _is_sending(self) -> bool:
        # An engine may refuse a request before it has read it. Whether it reads the rest is not
        # known, and the next request would wait behind it.
        assert self._transport is not None
        return self._transport.get_write_buffer_size() > 0

    def connection_lost(self, exc: Exception | None) -> None:
        call = self._call
        self._pool.lost(self)
        if call is None:
            return
        if exc is None and self._reader.feed_eof():
            self._finish(call, None, b"")
            return
        what = "before it answered" if self._reader.head is None else "in the middle of its answer"
        call.fail(UpstreamError(f"The engine {self._pool.name} closed the connection {what}."))

    def pause_reading(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()


class UpstreamPool:
    """All connections to one engine.

    Args:
        origin: the engine.
        config: deadlines and size.

    Attributes:
        origin: as given.
        config: as given.
        has_received: bytes came from the engine since whoever watches it set this to False.
    """

    def __init__(self, origin: Origin, config: UpstreamConfig) -> None:
        self.origin = origin
        self.config = config
        self._idle: dict[_Connection, None] = {}  # in the order of return; the newest is used first
        self._connections: set[_Connection] = set()
        self._calls: set[Call] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._swept_at = 0.0
        self.has_received = False

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.origin.name

    @property
    def num_idle(self) -> int:
        """Kept connections that wait for a call."""
        return len(self._idle)

    @property
    def num_connections(self) -> int:
        """Open connections, idle or not."""
        return len(self._connections)

    @property
    def num_calls(self) -> int:
        """Calls that have not ended."""
        return len(self._calls)

    def num_waiting(self) -> tuple[int, int]:
        """Return to how many calls the engine owes bytes, and how many of these have begun.

        Cost: O(calls).
        """
        begun = [call.has_begun for call in self._calls if call.is_waiting]
        return len(begun), sum(begun)

    def engine_stalled(self) -> None:
        """Tell the sinks of all calls that nothing of the engine moves."""
        for call in [call for call in self._calls if call.is_waiting]:
            call.sink.engine_stalled()

    def call(self, method: str, payload: tuple[bytes, ...], sink: ResponseSink) -> Call:
        """Send a request; `sink` hears of the response, but nothing before this returns.

        Args:
            method: of the request in `payload`.
            payload: head and body.
            sink: told of the response, or of its failure.
        """
        call = Call(self, method, payload, sink)
        self._calls.add(call)
        while self._idle:
            connection, _ = self._idle.popitem()
            if not connection.is_closing():
                call.attach(connection, is_reused=True)
                return call
        task = asyncio.get_running_loop().create_task(self._dial(call))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)
        call.dialling(task)
        return call

    async def _dial(self, call: Call) -> None:
        address = self.origin.address
        connection = _Connection(self)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, address.host, address.port, ssl=self.origin.tls
            )
        except asyncio.CancelledError:
            # Between connecting and returning, uvloop closes without `connection_lost`.
            self.lost(connection)
            connection.close()
            raise
        except OSError as exc:  # ssl.SSLError and failed verification are among them
            reason = exc.strerror or str(exc) or type(exc).__name__
            call.dialling(None)
            if call in self._calls:
                call.fail(UpstreamError(f"Cannot connect to engine {self.name}: {reason}."))
            return
        if call not in self._calls:
            connection.close()
            return
        call.attach(connection, is_reused=False)

    def forget(self, call: Call) -> None:
        """Stop the call's deadlines; it has ended."""
        self._calls.discard(call)

    def keep(self, connection: _Connection) -> None:
        """Keep a connection for the next call."""
        if len(self._idle) >= self.config.max_idle:
            connection.close()
            return
        # The last sweep's time is a little early, which errs on the side of closing sooner.
        connection.idle_since = self._swept_at
        self._idle[connection] = None

    def made(self, connection: _Connection) -> None:
        """Hear of a new connection."""
        self._connections.add(connection)

    def lost(self, connection: _Connection) -> None:
        """Hear that a connection is gone."""
        self._idle.pop(connection, None)
        self._connections.discard(connection)

    def sweep(self, now: float) -> None:
        """Fail calls whose deadline has passed, and close connections idle for too long.

        Args:
            now: monotonic seconds.
        """
        self._swept_at = now
        for call in [call for call in self._calls if call.expire(now)]:
            call.fail(self._timeout(call))
        oldest = now - self.config.idle_s
        for connection in [held for held in self._idle if held.idle_since < oldest]:
            del self._idle[connection]
            connection.close()

    def _timeout(self, call: Call) -> UpstreamTimeout:
        if not call.is_sent:
            limit = self.config.connect_s
            return UpstreamTimeout(f"No connection to engine {self.name} within {limit:g} s.")
        return UpstreamTimeout(f"The engine {self.name} was silent for too long.")

    def use(self, origin: Origin) -> None:
        """Make requests for the same engine otherwise from now on: with another key, say.

        Args:
            origin: of the same address.
        """
        assert origin.address == self.origin.address
        self.origin = origin

    def fail_calls(self, error: UpstreamError) -> None:
        """Fail every call with `error`; each sink decides what becomes of its request."""
        for call in list(self._calls):
            if call in self._calls:  # it may have ended with another's failure
                call.fail(error)

    async def close(self) -> None:
        """Abort every call, close every connection and end every dial."""
        for call in list(self._calls):
            call.abort()
        for task in list(self._dials):
            task.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
        self._idle.clear()
        for connection in list(self._connections):
            connection.close()
        while self._connections:
            await asyncio.sleep(0)  # `connection_lost` comes with the loop's next turns
