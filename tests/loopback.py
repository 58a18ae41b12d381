"""Real sockets for the data path: engines that do as told, a client that shows all bytes."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from headstart.accounting.record import RequestRecord
from headstart.engines.base import HealthConfig, ReplicaConfig
from headstart.gateway.gateway import Gateway

QUICK_CHECKS = HealthConfig(up_interval_s=30.0, down_interval_s=0.02, timeout_s=5.0)

PLAIN = (
    b'{"id": "c1",  "object":"chat.completion","model":"m","zz":{"b":1,"a":2},"choices":['
    b'{"index":0,"message":{"role":"assistant","content":"h\\u00e9llo","x":1.0}}],'
    b'"usage":{"prompt_tokens":100,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":64}}}'
)


def token_event(text: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


ROLE_EVENT = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE_EVENT = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":3}}\n\n'
DONE_EVENT = b"data: [DONE]\n\n"


async def eventually(is_true: Callable[[], bool]) -> None:
    """Let the loop run until `is_true`; the test's own timeout is the deadline."""
    while not is_true():
        await asyncio.sleep(0.002)


@dataclass
class Received:
    """A request as it reached an engine."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name]
        return ", ".join(values) if values else None

    def json(self) -> dict:
        return json.loads(self.body)


class Wire:
    """The engine's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.num_requests = 0

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self,
        status: int = 200,
        body: bytes = PLAIN,
        headers: Sequence[str] = ("content-type: application/json",),
    ) -> None:
        lines = "".join(f"{line}\r\n" for line in headers)
        head = f"HTTP/1.1 {status} Phrase\r\n{lines}content-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def begin_stream(self) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def piece(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def closed(self) -> None:
        """Wait until the gateway has closed the connection."""
        with contextlib.suppress(ConnectionError):
            assert await self.reader.read(1) == b""


Answer = Callable[[Received, Wire], Awaitable[None]]


async def plain(_request: Received, wire: Wire) -> None:
    await wire.answer()


async def stream(_request: Received, wire: Wire) -> None:
    await wire.begin_stream()
    for event in (ROLE_EVENT, token_event("a"), token_event("b"), USAGE_EVENT, DONE_EVENT):
        await wire.piece(event)
    await wire.end_stream()


_KNOWLEDGE_TARGETS = ("/metrics", "/kv_event_sources", "/server_info")


class ScriptedEngine:
    """A replica whose answer to each request is a coroutine of the test's.

    GET /v1/models is answered from `models`, or `models_body`, with `models_status`, which 0 makes
    silence; with `closes_kept` only if it is the first request of its connection. GET /metrics is
    answered with what `metrics` returns, if it is set; None is 404. It has no cache to tell of.
    """

    def __init__(
        self, answer: Answer = plain, *, name: str = "r0", models: Sequence[str] = ("m",)
    ) -> None:
        self.answer = answer
        self.name = name
        self.models = list(models)
        self.models_status = 200
        self.models_body: bytes | None = None
        self.closes_kept = False
        self.metrics: Callable[[], bytes | None] | None = None
        self.requests: list[Received] = []
        self.checks: list[Received] = []
        self.num_connections = 0
        self.port = 0
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._wires: list[Wire] = []
        self._tasks: set[asyncio.Task] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, limit=1 << 26, ssl=tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Die: close the port and every connection."""
        assert self._server is not None
        self._server.close()
        wires, self._wires = self._wires, []
        for wire in wires:
            wire.writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closing = [wire.writer.wait_closed() for wire in wires]
        await asyncio.gather(*closing, return_exceptions=True)

    def config(self, **changes: object) -> ReplicaConfig:
        scheme, host = ("https", "localhost") if self._tls else ("http", "127.0.0.1")
        return ReplicaConfig(self.name, f"{scheme}://{host}:{self.port}", **changes)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(reader, writer)
        self._wires.append(wire)
        self.num_connections += 1
        try:
            while request := await _read_request(reader):
                if self.closes_kept and wire.num_requests:
                    self.checks.append(request)
                    break
                wire.num_requests += 1
                await self._take(request, wire)
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _take(self, request: Received, wire: Wire) -> None:
        if request.method == "GET" and request.target == "/v1/models":
            self.checks.append(request)
            if not self.models_status:
                await wire.closed()
                return
            entries = [{"id": model, "object": "model", "x_own": 1} for model in self.models]
            body = json.dumps({"object": "list", "data": entries}).encode()
            await wire.answer(self.models_status, self.models_body or body)
            return
        if request.method == "GET" and request.target == "/metrics" and self.metrics:
            page = self.metrics()
            await wire.answer(
                404 if page is None else 200, page or b"", ["content-type: text/plain"]
            )
            return
        if request.method == "GET" and request.target in _KNOWLEDGE_TARGETS:
            await wire.answer(404, b"")
            return
        self.requests.append(request)
        await self.answer(request, wire)


def pair(answer: Answer) -> tuple[ScriptedEngine, ScriptedEngine]:
    """Two replicas with one script."""
    return ScriptedEngine(answer, name="r0"), ScriptedEngine(answer, name="r1")


def attempts(engines: Sequence[ScriptedEngine]) -> list[int]:
    """How many requests each got, fewest first."""
    return sorted(len(engine.requests) for engine in engines)


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    headers = [(k, v.strip()) for k, _, v in (item.partition(":") for item in rest if item)]
    lengths = [int(v) for k, v in headers if k.lower() == "content-length"]
    assert len(lengths) <= 1
    body = await reader.readexactly(lengths[0]) if lengths else b""
    return Received(method, target, headers, body)


@dataclass
class Reply:
    """A response as it reached the client."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_complete: bool
    pieces: list[bytes] = field(default_factory=list)

    def json(self) -> dict:
        return json.loads(self.body)


class RawClient:
    """A client connection that sends the very bytes it is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None) -> "RawClient":
        host = "localhost" if tls else "127.0.0.1"
        return cls(*await asyncio.open_connection(host, port, limit=1 << 26, ssl=tls))

    async def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():  # what uvloop would raise is no ConnectionError
            raise ConnectionResetError("the connection is closed")
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        line, *rest = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for item in rest:
            if item:
                name, _, value = item.partition(":")
                assert name.lower() not in headers, f"{name} is repeated"
                headers[name.lower()] = value.strip()
        return int(line.split(" ")[1]), headers

    async def read_piece(self) -> bytes:
        """Return the next chunk; empty at the end of the body."""
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def read_reply(self, *, has_body: bool = True) -> Reply:
        status, headers = await self.read_head()
        reply = Reply(status, headers, b"", is_complete=False)
        try:
            if not has_body:
                pass
            elif headers.get("transfer-encoding") == "chunked":
                while piece := await self.read_piece():
                    reply.pieces.append(piece)
                reply.body = b"".join(reply.pieces)
            elif "content-length" in headers:
                reply.body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                reply.body = await self.reader.read()
            reply.is_complete = True
        except (asyncio.IncompleteReadError, ConnectionError):
            reply.body = b"".join(reply.pieces)
        return reply

    async def is_closed(self) -> bool:
        """Wait for the gateway to close; False if it sends something instead."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.transport.abort()


def post(
    body: bytes | dict,
    *,
    path: str = "/v1/chat/completions",
    headers: Sequence[str] = (),
    method: str = "POST",
) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{line}\r\n" for line in headers)
    head = f"{method} {path} HTTP/1.1\r\nHost: test\r\n{lines}Content-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def get(path: str, *, headers: Sequence[str] = (), method: str = "GET") -> bytes:
    lines = "".join(f"{line}\r\n" for line in headers)
    return f"{method} {path} HTTP/1.1\r\nHost: test\r\n{lines}\r\n".encode()


def chat(text: str = "hi", **more: object) -> dict:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


class ListRecorder:
    """Keeps what the recorder would write down."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def record(self, record: RequestRecord) -> None:
        self.records.append(record)


@dataclass
class Running:
    """A gateway in front of scripted engines."""

    gateway: Gateway
    port: int
    recorder: ListRecorder

    @property
    def records(self) -> list[RequestRecord]:
        return self.recorder.records

    async def ask(self, raw: bytes, *, has_body: bool = True) -> Reply:
        """Send one request on a connection of its own."""
        client = await RawClient.connect(self.port)
        try:
            await client.send(raw)
            return await client.read_reply(has_body=has_body)
        finally:
            client.close()


@contextlib.asynccontextmanager
async def running(
    *engines: ScriptedEngine,
    configs: Sequence[ReplicaConfig] = (),
    waits: bool = True,
    start: dict | None = None,
    shared: dict | None = None,
    **options: object,
) -> AsyncIterator[Running]:
    """Start `engines` and a gateway in front of them; by default wait until all are available."""
    for engine in engines:
        if not engine.port:
            await engine.start()
    recorder = ListRecorder()
    gateway = Gateway(
        replicas=configs or [engine.config() for engine in engines],
        recorder=recorder,
        **{"health": QUICK_CHECKS, **options},
    )
    if shared is None:
        port = await gateway.start("127.0.0.1", 0, **(start or {}))
    else:
        port = shared["sockets"][0].getsockname()[1]
        await gateway.start_shared(**shared)
    try:
        if waits:
            await eventually(lambda: all(each.is_available for each in gateway.replicas()))
        yield Running(gateway, port, recorder)
    finally:
        await gateway.close()
        for engine in engines:
            await engine.stop()
