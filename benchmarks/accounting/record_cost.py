"""What accounting costs a request: on the event loop, on the writer's thread, and in lateness.

    python benchmarks/accounting/record_cost.py

Prints the best of three runs of each: microseconds per call on the hot path, CPU microseconds per
record on the sinks' threads, and how late the event loop serves 1,000 scripted requests a second
of 100 µs each, with and without a recorder that writes them to SQLite and a log.
"""

import asyncio
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import uvloop

from headstart.accounting.log import RequestLog, log_line
from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.record import RequestRecord
from headstart.accounting.recorder import Recorder
from headstart.accounting.sink import RecordSink
from headstart.accounting.store import RequestStore
from headstart.cli.lifecycle import _SWITCH_INTERVAL_S
from headstart.wire.usage import Usage, parse_usage

REQUESTS_PER_S = 1000
WORK_S = 100e-6
SECONDS = 5.0
CALLS = 20_000

USAGE = {
    "prompt_tokens": 1200,
    "completion_tokens": 50,
    "total_tokens": 1250,
    "prompt_tokens_details": {"cached_tokens": 1024},
}


def record(number: int) -> RequestRecord:
    return RequestRecord(
        request_id=f"{number:032x}",
        time_s=time.time(),
        path="/v1/chat/completions",
        model="llama-3.1-8b-instruct",
        tenant="acme",
        business_line="support",
        template="support-agent@7",
        replica="a100-1",
        is_stream=True,
        status=200,
        usage=Usage(1200, 1024, None, 50),
        ttft_s=0.1,
        tpot_s=0.02,
        total_s=1.1,
        policy="prefix_hash",
        reason="ring owner",
        body_changes=("stream_options",),
    )


def per_call_us(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=CALLS, repeat=3)) / CALLS * 1e6


def sinks(folder: Path) -> list[RecordSink]:
    return [RequestStore(folder / "headstart.db"), RequestLog.to_file(folder / "requests.jsonl")]


def writer_us(folder: Path) -> dict[str, float]:
    found = {}
    records = [record(number) for number in range(CALLS)]
    for sink in sinks(folder):
        began = time.thread_time()
        for start in range(0, CALLS, 64):
            sink.write(records[start : start + 64])
        found[sink.name] = (time.thread_time() - began) / CALLS * 1e6
        sink.close()
    return found


async def lateness_ms(targets: list[RecordSink]) -> tuple[float, float, float]:
    """Return median, 99th and 99.9th percentile of (finished - due) over all requests."""
    metrics = RequestMetrics()
    recorder = Recorder(targets, observe=metrics.observe)
    await recorder.start()
    late = []
    began = time.perf_counter()
    for number in range(int(SECONDS * REQUESTS_PER_S)):
        due = began + number / REQUESTS_PER_S
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        until = time.perf_counter() + WORK_S
        while time.perf_counter() < until:
            pass
        recorder.record(record(number))
        late.append(time.perf_counter() - due)
    await recorder.close()
    late.sort()
    median, p99, p999 = (late[int(len(late) * share)] * 1e3 for share in (0.5, 0.99, 0.999))
    return median, p99, p999


def main() -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    metrics, recorder, one = RequestMetrics(), Recorder(), record(0)
    print(f"parse_usage            {per_call_us(lambda: parse_usage(USAGE)):6.2f} us")
    print(f"RequestMetrics.observe {per_call_us(lambda: metrics.observe(one)):6.2f} us")
    print(f"Recorder.record alone  {per_call_us(lambda: recorder.record(one)):6.2f} us")
    print(f"log_line               {per_call_us(lambda: log_line(one)):6.2f} us (writer)")
    with tempfile.TemporaryDirectory() as folder:
        for name, cost in writer_us(Path(folder)).items():
            print(f"sink {name:5}             {cost:6.2f} us CPU per record (writer)")
    for label, with_sinks in (("without sinks", False), ("store and log", True)):
        runs = []
        for _ in range(3):
            with (
                tempfile.TemporaryDirectory() as folder,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                runs.append(runner.run(lateness_ms(sinks(Path(folder)) if with_sinks else [])))
        median, p99, p999 = (min(values) for values in zip(*runs, strict=True))
        print(f"lateness {label}: p50 {median:.2f}  p99 {p99:.2f}  p99.9 {p999:.2f} ms")


if __name__ == "__main__":
    main()
