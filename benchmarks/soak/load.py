"""Well-behaved clients: so many requests per second over kept connections, each answer judged."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from benchmarks.soak.answers import judge
from benchmarks.soak.engine import HOST
from benchmarks.soak.tally import Tally
from benchmarks.soak.wire import (
    NOTHING,
    Response,
    broken_response,
    chat_body,
    post,
    read_response,
    template_body,
)

PATIENCE_S: Final = 60.0
"""An answer that takes longer counts as a violation: it hangs."""

MAX_OPEN: Final = 2000
_TICK_S: Final = 0.002
# Shares of the kinds of request; the rest is plain.
_STREAMS: Final = 0.4
_TEMPLATES: Final = 0.05
_LONG: Final = 0.2
_FILLERS: Final = tuple(f"You are assistant {index}. " * 400 for index in range(16))

Finished = Callable[["Connection", "Asked", Response], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request on its way.

    Attributes:
        token: its own.
        is_stream: it asked for a stream.
        at: monotonic seconds when it was due.
    """

    token: str
    is_stream: bool
    at: float


class Tokens:
    """Numbers requests and makes their bytes.

    Args:
        keys: of the tenants.
        seed: decides kinds and fillers.
    """

    def __init__(self, keys: Sequence[str], seed: int) -> None:
        self._keys = keys
        self._rng = random.Random(seed)
        self._count = 0

    def next_token(self) -> str:
        """Return a token that no other request has."""
        self._count += 1
        return f"tok-{self._count:012x}"

    def key(self) -> str:
        """Return some tenant's key."""
        return self._rng.choice(self._keys)

    def request(self, at: float) -> tuple[Asked, bytes]:
        """Return a well-behaved request and its bytes; `at` is when it is due."""
        rng = self._rng
        token = self.next_token()
        kind = rng.random()
        if kind < _TEMPLATES:
            return Asked(token, is_stream=False, at=at), post(template_body(token), self.key())
        is_stream = kind < _TEMPLATES + _STREAMS
        filler = rng.choice(_FILLERS) if rng.random() < _LONG else "Be brief."
        body = chat_body(token, is_stream=is_stream, filler=filler)
        return Asked(token, is_stream, at), post(body, self.key())


class Connection(asyncio.Protocol):
    """A kept connection: one request at a time."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._raw = b""
        self._transport: asyncio.Transport | None = None
        self.asked: Asked | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    @property
    def is_open(self) -> bool:
        """It can carry a request."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, asked: Asked, raw: bytes) -> None:
        """Send a request."""
        assert self._transport is not None
        self.asked = asked
        self._raw = b""
        self._transport.write(raw)

    def data_received(self, data: bytes) -> None:
        """Collect the answer."""
        self._raw += data
        response = read_response(self._raw)
        if response is not None:
            self._end(response)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  why does not matter
        """Take what has come for all that comes."""
        self._transport = None
        self._end(broken_response(self._raw))

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, response: Response) -> None:
        asked, self.asked = self.asked, None
        if asked is not None:
            if response.closes:
                self.close()
            self._finished(self, asked, response)


class Load:
    """Sends requests at a rate, or keeps a number of them open.

    Args:
        port: of the gateway.
        tokens: makes the requests.
        tally: counts.
        cause: names the fault that a request from one monotonic time to another may have felt.
    """

    def __init__(
        self, port: int, tokens: Tokens, tally: Tally, cause: Callable[[float, float], str]
    ) -> None:
        self._port = port
        self._tokens = tokens
        self._tally = tally
        self._cause = cause
        self._idle: list[Connection] = []
        self._open: dict[Connection, float] = {}
        self._dials: set[asyncio.Task[None]] = set()
        self._is_closed_loop = False
        self.num_finished = 0

    @property
    def num_open(self) -> int:
        """Requests that have not been answered."""
        return len(self._open) + len(self._dials)

    async def drive(self, rate: float, duration_s: float, rng: random.Random) -> None:
        """Send `rate` requests per second, at random moments, for `duration_s`."""
        end = time.monotonic() + duration_s
        due = time.monotonic()
        while (now := time.monotonic()) < end:
            while due <= now:
                self._send(due)
                due += rng.expovariate(rate)
            self._give_up(now)
            await asyncio.sleep(_TICK_S)
        await self.settle()

    async def saturate(self, num_open: int, duration_s: float) -> float:
        """Keep `num_open` requests open for `duration_s`; return the answers per second."""
        self._is_closed_loop = True
        before, started = self.num_finished, time.monotonic()
        for _ in range(num_open):
            self._send(time.monotonic())
        await asyncio.sleep(duration_s)
        rate = (self.num_finished - before) / (time.monotonic() - started)
        self._is_closed_loop = False
        await self.settle()
        return rate

    async def settle(self) -> None:
        """Wait until every request has its end."""
        while self.num_open:
            self._give_up(time.monotonic())
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()

    def _send(self, at: float) -> None:
        if self.num_open >= MAX_OPEN:
            self._tally.num_held_back += 1
            return
        asked, raw = self._tokens.request(at)
        self._tally.num_sent += 1
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                self._open[connection] = at
                connection.ask(asked, raw)
                return
        task = asyncio.get_running_loop().create_task(self._dial(asked, raw))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    async def _dial(self, asked: Asked, raw: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self._note), HOST, self._port
            )
        except OSError:
            self._note(None, asked, NOTHING)
            return
        self._open[connection] = asked.at
        connection.ask(asked, raw)

    def _note(self, connection: Connection | None, asked: Asked, response: Response) -> None:
        now = time.monotonic()
        self.num_finished += 1
        verdict = judge(response.answer, asked.token, is_stream=asked.is_stream)
        self._tally.note(self._cause(asked.at, now), verdict, now - asked.at)
        self._tally.note_id(response.request_id)
        if connection is not None:
            self._open.pop(connection, None)
            if connection.is_open:
                self._idle.append(connection)
        if self._is_closed_loop:
            self._send(now)

    def _give_up(self, now: float) -> None:
        # They are in the order in which they were sent: only the oldest has to be looked at.
        connection = next(iter(self._open), None)
        if connection is not None and now - self._open[connection] > PATIENCE_S:
            self._tally.violations["no end within a minute"] += 1
            connection.close()
