"""Where the microseconds of a request go, without sockets.

    python benchmarks/overhead/profile.py [--requests 3000]

Drives the gateway's own objects: bytes into a client's connection, bytes of an answer into an
engine's, and transports that only take what is written. The steps are timed one at a time where
they happen, so with the caches as they are in the midst of a request; the table shows the tenth
percentile of each. What remains of the whole are the calls between the steps. The two writers'
threads are timed on their own, in batches of 64. Every request has a number of its own at its end,
and engines report the system part as cached. What the sockets cost is the difference to `run.py`.
"""

import argparse
import asyncio
import functools
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import uvloop
from bodies import COUNTER, SIZES, write_bodies

from headstart.accounting.log import RequestLog
from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.record import RequestRecord
from headstart.accounting.recorder import Recorder
from headstart.accounting.sink import RecordSink
from headstart.accounting.store import RequestStore
from headstart.accounting.tenant import Tenant
from headstart.clock import SystemClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.origin import Origin
from headstart.engines.upstream import UpstreamPool, _Connection
from headstart.gateway import exchange
from headstart.gateway.auth import Authenticator
from headstart.gateway.connection import ClientConnection
from headstart.gateway.gateway import Gateway
from headstart.gateway.prepare import Preparer
from headstart.gateway.relay import ResponseRelay
from headstart.routing.replica import Standing
from headstart.routing.router import Router
from headstart.wire.http1 import HttpLimits
from headstart.wire.http1_parse import RequestReader
from headstart.wire.http1_responses import ResponseReader

KEY = "sk-overhead-benchmark"
NUM_CHUNKS = 20
WARM_UP = 300

BLOCK_SIZE = 16
BYTES_PER_TOKEN = 4
USAGE = b'{"prompt_tokens":%d,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":%d}}'
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock","choices":['
    b'{"index":0,"message":{"role":"assistant","content":"tok0 tok1 tok2 tok3 tok4 tok5 "},'
    b'"finish_reason":"stop"}],"usage":%b}'
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"mock"'
    b',"choices":[{"index":0,"delta":{"content":"tok%d "},"finish_reason":null}]}\n\n'
)
USAGE_EVENT = b'data: {"id":"chatcmpl-1","choices":[],"usage":%b}\n\n'
LAST_EVENT = b"data: [DONE]\n\n"

# Label, and where the step is: it contains none of the others.
STEPS: tuple[tuple[str, object, str], ...] = (
    ("read the request", RequestReader, "feed"),
    ("tenant of the key", Authenticator, "tenant_of"),
    ("read the body, hash its prefix", Preparer, "prepare"),
    ("choose the replica", Router, "send"),
    ("write the head for the engine", Origin, "head"),
    ("take a connection and send", UpstreamPool, "call"),
    ("read the response", ResponseReader, "feed"),
    ("write the head for the client", ResponseRelay, "__init__"),
    ("look at the body and frame it", ResponseRelay, "body"),
    ("write to the client", ClientConnection, "write"),
    ("find the usage", ResponseRelay, "usage"),
    ("bring it into one form", exchange, "parse_usage"),
    ("note the first token", Router, "first_token"),
    ("learn from the figures", Router, "answered"),
    ("learn what is cached", Router, "ended"),
    ("make the record", exchange, "make_record"),
    ("count it and hand it over", Recorder, "record"),
)


class Transport:
    """Takes what is written and keeps nothing."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, parts: tuple[bytes, ...]) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class Bench:
    """One gateway, one client, one connection to each engine."""

    def __init__(self, recorder: Recorder) -> None:
        names = ("r0", "r1")
        self.gateway = Gateway(
            replicas=[
                ReplicaConfig(name, "http://127.0.0.1:1", models=("mock",)) for name in names
            ],
            recorder=recorder,
            tenants=[Tenant("acme", hashlib.sha256(KEY.encode()).digest(), "support")],
        )
        for replica in self.gateway._fleet.replicas:
            self.gateway._fleet.set_standing(replica, Standing.USABLE)
        self.client = ClientConnection(
            self.gateway._handler, HttpLimits(), SystemClock(), self.gateway._server
        )
        self.client.connection_made(Transport())
        self.engines = []
        for pool in self.gateway._replicas.pools.values():
            engine = _Connection(pool)
            engine.connection_made(Transport())
            pool.keep(engine)
            self.engines.append(engine)

    def request(self, raw: bytes, answer: list[bytes]) -> None:
        """Serve one request."""
        self.client.data_received(raw)
        (engine,) = (engine for engine in self.engines if engine._call is not None)
        for piece in answer:
            engine.data_received(piece)


def answers(size: str) -> dict[str, list[bytes]]:
    """Return a plain and a streamed answer to bodies of one size, whose system part is cached."""
    num_system, num_user = SIZES[size]
    cached = num_system // BYTES_PER_TOKEN // BLOCK_SIZE * BLOCK_SIZE
    usage = USAGE % ((num_system + num_user) // BYTES_PER_TOKEN, cached)
    answer = ANSWER % usage
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n"
    length = b"Content-Length: %d\r\n" % len(answer)
    begin = head % (b"text/event-stream", b"Transfer-Encoding: chunked\r\n")
    events = [chunk(EVENT % number) for number in range(NUM_CHUNKS)]
    end = b"".join(chunk(event) for event in (USAGE_EVENT % usage, LAST_EVENT)) + b"0\r\n\r\n"
    return {
        "plain": [head % (b"application/json", length) + answer],
        "stream": [begin, *events, end],
    }


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Requests:
    """The requests of one load, each with a number of its own in it, as the load generator's.

    Args:
        folder: of the bodies.
        load: names them.
        changing: each has a header field of its own, too.
    """

    def __init__(self, folder: Path, load: str, *, changing: bool = False) -> None:
        self._lines = (folder / f"{load}.jsonl").read_bytes().splitlines()
        self._changing = changing
        self._number = 0

    def next(self) -> bytes:
        """Return one more."""
        self._number = number = self._number + 1
        line = self._lines[number % len(self._lines)]
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\n"
            b"Content-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
            % (
                KEY.encode(),
                b"traceparent: %d\r\n" % number if self._changing else b"",
                len(line),
                line.replace(COUNTER.encode(), b"%012d" % number),
            )
        )


def tenth_percentile(times_ns: list[int]) -> float:
    times_ns.sort()
    return times_ns[len(times_ns) // 10] / 1e3


def timed(call: Callable[..., object], spent: list[int]) -> Callable[..., object]:
    clock = time.perf_counter_ns

    @functools.wraps(call, updated=())
    def wrapper(*args: object, **named: object) -> object:
        began = clock()
        result = call(*args, **named)
        spent[-1] += clock() - began
        return result

    return wrapper


def whole_us(bench: Bench, raws: Requests, answer: list[bytes], count: int) -> float:
    times = []
    for _ in range(WARM_UP + count):
        raw = raws.next()
        began = time.perf_counter_ns()
        bench.request(raw, answer)
        times.append(time.perf_counter_ns() - began)
    return tenth_percentile(times[WARM_UP:])


def step_us(
    bench: Bench, raws: Requests, answer: list[bytes], count: int, step: tuple[str, object, str]
) -> float:
    _, owner, name = step
    spent: list[int] = []
    with patch.object(owner, name, timed(getattr(owner, name), spent)):
        for _ in range(WARM_UP + count):
            spent.append(0)
            bench.request(raws.next(), answer)
    return tenth_percentile(spent[WARM_UP:])


def record_of(bench: Bench, raws: Requests, answer: list[bytes]) -> RequestRecord:
    """Serve one more request and return what would be written down of it."""
    records: list[RequestRecord] = []
    with patch.object(Recorder, "record", lambda _, record: records.append(record)):
        bench.request(raws.next(), answer)
    return records[0]


def writer_us(folder: Path, record: RequestRecord) -> dict[str, float]:
    sinks: list[RecordSink] = [RequestStore(folder / "db"), RequestLog.to_file(folder / "log")]
    found = {}
    for sink in sinks:
        began = time.thread_time()
        for _ in range(200):
            sink.write([record] * 64)
        found[sink.name] = (time.thread_time() - began) / (200 * 64) * 1e6
        sink.close()
    return found


async def measure(count: int, folder: Path) -> None:
    write_bodies(folder)
    metrics = RequestMetrics()
    bench = Bench(Recorder(observe=metrics.observe))
    loads = {
        "0.8 KB": (Requests(folder, "small_plain"), answers("small")["plain"]),
        "32 KB": (Requests(folder, "large_plain"), answers("large")["plain"]),
        "32 KB, 20 chunks": (Requests(folder, "large_stream"), answers("large")["stream"]),
    }
    rows: dict[str, list[float]] = {}
    for raws, answer in loads.values():
        steps = [step_us(bench, raws, answer, count, step) for step in STEPS]
        whole = whole_us(bench, raws, answer, count)
        for (label, _, _), cost in zip(STEPS, steps, strict=True):
            rows.setdefault(label, []).append(cost)
        rows.setdefault("calls between them", []).append(whole - sum(steps))
        rows.setdefault("on the event loop", []).append(whole)
    for name, cost in writer_us(folder, record_of(bench, *loads["0.8 KB"])).items():
        rows[f"writer's thread: {name}"] = [cost] * len(loads)
    show(rows, list(loads))
    raws = Requests(folder, "small_plain", changing=True)
    changing = whole_us(bench, raws, answers("small")["plain"], count)
    print(f"0.8 KB whose head is another one each time: {changing:.1f} µs on the event loop")


def show(rows: dict[str, list[float]], columns: list[str]) -> None:
    print(f"| µs | {' | '.join(columns)} |")
    print(f"| --- |{' --: |' * len(columns)}")
    for label, costs in rows.items():
        print(f"| {label} | {' | '.join(f'{cost:.1f}' for cost in costs)} |")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--requests", type=int, default=3000)
    args = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(args.requests, Path(folder)))


if __name__ == "__main__":
    main()
