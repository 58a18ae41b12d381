"""Clients that do not behave well, and what they may expect."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from benchmarks.soak.answers import Outcome, judge
from benchmarks.soak.engine import HOST
from benchmarks.soak.load import PATIENCE_S, Tokens
from benchmarks.soak.tally import Tally
from benchmarks.soak.wire import (
    Response,
    broken_response,
    chat_body,
    post,
    read_response,
)

_LARGE_BYTES: Final = 1_000_000
_OVERSIZE_BYTES: Final = 64 * 1024 * 1024
_MALFORMED: Final = (
    b"GET /v1/models\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
)


class Visit:
    """One rude client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._raw = b""

    async def send(self, raw: bytes) -> None:
        """Send bytes."""
        self.writer.write(raw)
        await self.writer.drain()

    async def response(self, *, piece_bytes: int = 65_536, pause_s: float = 0.0) -> Response:
        """Read one response, in pieces and with pauses; what came of it if it is cut."""
        while (found := read_response(self._raw)) is None:
            data = await self.reader.read(piece_bytes)
            if not data:
                return broken_response(self._raw)
            self._raw += data
            if pause_s:
                await asyncio.sleep(pause_s)
        self._raw = self._raw[found.size :]
        return found


class RudeClients:
    """Comes to visit, one client after the other, each with a manner of its own.

    Args:
        port: of the gateway.
        tokens: makes requests.
        tally: counts.
        seed: decides who comes when.
    """

    def __init__(self, port: int, tokens: Tokens, tally: Tally, seed: int) -> None:
        self._port = port
        self._tokens = tokens
        self._tally = tally
        self._rng = random.Random(seed)
        self._manners: tuple[Callable[[Visit, str], Awaitable[None]], ...] = (
            self.leaves_at_once,
            self.leaves_in_the_stream,
            self.reads_slowly,
            self.sends_slowly,
            self.is_malformed,
            self.half_closes,
            self.is_oversize,
            self.has_a_wrong_key,
            self.sends_no_json,
            self.pipelines,
        )

    async def visit(self, rate: float, duration_s: float) -> None:
        """Let so many come per second."""
        loop = asyncio.get_running_loop()
        end = loop.time() + duration_s
        async with asyncio.TaskGroup() as group:
            while loop.time() < end:
                group.create_task(self._one(self._rng.choice(self._manners)))
                await asyncio.sleep(self._rng.expovariate(rate))

    async def _one(self, manner: Callable[[Visit, str], Awaitable[None]]) -> None:
        name = manner.__name__.replace("_", " ")
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(HOST, self._port, limit=1 << 16)
                try:
                    await manner(Visit(reader, writer), name)
                finally:
                    writer.transport.abort()
        except TimeoutError:
            self._tally.note_rude(name, "no end within a minute", is_fine=False)
        except ConnectionError:
            self._tally.num_unanswered += 2  # as many as one visit sends
            self._tally.note_rude(name, "connection lost", is_fine=True)

    def _chat(self, *, is_stream: bool = False, padding: int = 0) -> tuple[str, bytes]:
        token = self._tokens.next_token()
        self._tally.num_sent += 1
        body = chat_body(token, is_stream=is_stream, padding=padding)
        return token, post(body, self._tokens.key())

    def _judge(self, name: str, response: Response, token: str, *, is_stream: bool = False) -> None:
        self._tally.note_id(response.request_id)
        verdict = judge(response.answer, token, is_stream=is_stream)
        is_fine = verdict.outcome is not Outcome.VIOLATION
        self._tally.note_rude(name, verdict.reason or verdict.outcome, is_fine=is_fine)

    async def _expect(self, visit: Visit, name: str, *statuses: int) -> None:
        response = await visit.response()
        self._tally.note_id(response.request_id)
        status = response.answer.status
        self._tally.note_rude(name, f"status {status}", is_fine=status in (0, *statuses))

    async def leaves_at_once(self, visit: Visit, name: str) -> None:
        """Ask, and leave before the answer."""
        _, raw = self._chat()
        await visit.send(raw)
        await asyncio.sleep(self._rng.random() * 0.02)
        self._tally.num_unanswered += 1
        self._tally.note_rude(name, "left", is_fine=True)

    async def leaves_in_the_stream(self, visit: Visit, name: str) -> None:
        """Leave after the first piece of a stream."""
        _, raw = self._chat(is_stream=True)
        await visit.send(raw)
        first = await visit.reader.read(65_536)
        self._tally.note_id(broken_response(first).request_id)
        self._tally.note_rude(name, "left", is_fine=True)

    async def reads_slowly(self, visit: Visit, name: str) -> None:
        """Take a large answer in small pieces."""
        token, raw = self._chat(padding=_LARGE_BYTES)
        await visit.send(raw)
        response = await visit.response(piece_bytes=32_768, pause_s=0.01)
        self._judge(name, response, token)

    async def sends_slowly(self, visit: Visit, name: str) -> None:
        """Send a request in small pieces."""
        token, raw = self._chat()
        size = len(raw) // 8 + 1
        for at in range(0, len(raw), size):
            await visit.send(raw[at : at + size])
            await asyncio.sleep(0.02)
        self._judge(name, await visit.response(), token)

    async def is_malformed(self, visit: Visit, name: str) -> None:
        """Send what is no request."""
        self._tally.num_sent += 1
        await visit.send(self._rng.choice(_MALFORMED))
        await self._expect(visit, name, 400, 431)

    async def half_closes(self, visit: Visit, name: str) -> None:
        """Ask, and close the sending side, which counts as leaving."""
        token, raw = self._chat()
        await visit.send(raw)
        visit.writer.write_eof()
        response = await visit.response()
        if response.answer.is_whole:
            self._judge(name, response, token)
        else:
            self._tally.note_id(response.request_id)
            self._tally.note_rude(name, "not answered", is_fine=True)

    async def is_oversize(self, visit: Visit, name: str) -> None:
        """Announce a body beyond the limit."""
        self._tally.num_sent += 1
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {_OVERSIZE_BYTES}"
        await visit.send(f"{head}\r\n\r\n".encode() + b"x" * 10_000)
        await self._expect(visit, name, 413)

    async def has_a_wrong_key(self, visit: Visit, name: str) -> None:
        """Bring a key that no tenant has."""
        self._tally.num_sent += 1
        await visit.send(post(chat_body("tok-0", is_stream=False), "sk-nobody"))
        await self._expect(visit, name, 401)

    async def sends_no_json(self, visit: Visit, name: str) -> None:
        """Send a body that cannot be read."""
        self._tally.num_sent += 1
        await visit.send(post(b'{"model":"mock","messages":[', self._tokens.key()))
        await self._expect(visit, name, 400)

    async def pipelines(self, visit: Visit, name: str) -> None:
        """Send two requests at once; the answers come in order."""
        (first, one), (second, two) = self._chat(), self._chat()
        await visit.send(one + two)
        for token in (first, second):
            response = await visit.response()
            self._judge(name, response, token)
            if response.closes and token is first:
                self._tally.num_unanswered += 1
                break
