"""A real gateway and a real engine's port on the loopback, in one event loop of their own."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import uvloop

from fuzz.naive.http1 import read_requests
from headstart.accounting.record import RequestRecord
from headstart.engines.base import HealthConfig, ReplicaConfig
from headstart.gateway.gateway import Gateway
from headstart.wire.http1 import HttpLimits

HOST: Final = "127.0.0.1"
LIMITS: Final = HttpLimits(max_header_bytes=1024, max_body_bytes=512)
PATIENCE_S: Final = 20.0
MODELS: Final = b'{"object":"list","data":[{"id":"m","object":"model"}]}'

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Answers one whole request, given as its bytes."""


class CountingRecorder:
    """Counts records, because a run of millions cannot keep them."""

    def __init__(self) -> None:
        self.num_records = 0
        self.num_own_faults = 0

    def record(self, record: RequestRecord) -> None:
        """Count one, and those of which the gateway itself was the cause."""
        self.num_records += 1
        self.num_own_faults += record.error_code == "internal_error"


class LiveGateway:
    """Starts on first use and lives as long as the process.

    Args:
        answer: the engine's, to all requests but those for its models.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._note_fault)
        self._faults: list[str] = []
        self.recorder = CountingRecorder()
        self.port = 0
        self.loop_run(self._start())

    def loop_run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end; a fault of the gateway meanwhile is the caller's.

        Raises:
            AssertionError: something in the loop raised.
            TimeoutError: it took longer than `PATIENCE_S`.
        """
        result = self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))
        assert not self._faults, self._faults.pop()
        assert not self.recorder.num_own_faults, "the gateway failed on a request"
        return result

    async def connect(self) -> Streams:
        """Open a client's connection."""
        return await asyncio.open_connection(HOST, self.port)

    async def is_serving(self) -> bool:
        """Return whether the next client is answered."""
        reader, writer = await self.connect()
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return (await reader.read()).startswith(b"HTTP/1.1 200 ")
        finally:
            writer.close()

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # noqa: ARG002  asyncio's form
        self._faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def _start(self) -> None:
        engine = await asyncio.start_server(self._serve_engine, HOST, 0)
        port = engine.sockets[0].getsockname()[1]
        gateway = Gateway(
            replicas=[ReplicaConfig("r0", f"http://{HOST}:{port}", models=("m",))],
            recorder=self.recorder,
            limits=LIMITS,
            health=HealthConfig(down_interval_s=0.01),
        )
        self._held = (engine, gateway)
        self.port = await gateway.start(HOST, 0)

    async def _serve_engine(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        raw = b""
        try:
            while data := await reader.read(65_536):
                raw += data
                reading = read_requests(raw)
                assert not reading.refusal, f"the gateway sent {reading.refusal}: {raw!r}"
                if not reading.messages:
                    continue
                assert len(reading.messages) == 1, f"the gateway sent two requests as one: {raw!r}"
                request, raw = raw, b""
                if request.startswith(b"GET /v1/models "):
                    writer.write(_json_response(MODELS))
                else:
                    await self._answer(request, writer)
                if writer.is_closing():
                    break
        except ConnectionError:
            pass
        except AssertionError as fault:
            self._faults.append(str(fault))
        finally:
            writer.close()


def _json_response(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body
