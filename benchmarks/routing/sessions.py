"""Recorded agent sessions, replayed several at a time over engines that are running.

    python -m benchmarks.routing.sessions --engines http://127.0.0.1:9101,http://127.0.0.1:9102
        --sessions tau_airline.sessions.jsonl.gz --tools airline_tools.json --model smol
        [--policies expected_ttft,round_robin,sglang_cache_aware] [--num-sessions 24] [--at-once 8]
        [--max-tokens 8] [--repeat 1]

Each session is a line of JSON with its `messages`; each of its assistant's messages is asked for
with all that came before it, and the recorded one is what the session goes on with, so that every
policy sees the same prompts. A session's next request follows its last answer; `--at-once`
sessions go on side by side. One policy after the other is served by `headstart serve`, its caches
emptied before by POST /reset_prefix_cache (vLLM in its development mode; SGLang: /flush_cache).

    hit       cached over all prompt tokens, as the engines report
    TTFT      milliseconds to the first event with content, at the client
    busiest   requests of the busiest replica over the mean

Sessions whose last prompt is longer than `--max-bytes` are left out, for models with little room.
"""

import argparse
import asyncio
import contextlib
import gzip
import io
import json
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from benchmarks.routing.run import serving

POLICIES = "expected_ttft,round_robin,sglang_cache_aware"
RESETS = ("/reset_prefix_cache", "/flush_cache")


@dataclass
class Measured:
    """What came of one policy."""

    input_tokens: int = 0
    cached_tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    replicas: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def row(self, num_engines: int) -> str:
        times, count = sorted(self.first_s), len(self.first_s)
        busiest = max(self.replicas.values()) * num_engines / count
        hit = self.cached_tokens / self.input_tokens
        p50, p90 = times[count // 2] * 1e3, times[int(count * 0.9)] * 1e3
        times_ms = f"{p50:.0f} | {p90:.0f} | {sum(times) / count * 1e3:.0f}"
        return f"{hit:.3f} | {times_ms} | {busiest:.2f} | {self.seconds:.0f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--engines", required=True)
    options.add_argument("--sessions", required=True, type=Path)
    options.add_argument("--tools", type=Path)
    options.add_argument("--model", required=True)
    options.add_argument("--policies", default=POLICIES)
    options.add_argument("--num-sessions", type=int, default=24)
    options.add_argument("--at-once", type=int, default=8)
    options.add_argument("--max-tokens", type=int, default=8)
    options.add_argument("--max-bytes", type=int, default=28_000)
    options.add_argument("--repeat", type=int, default=1)
    args = options.parse_args()
    engines = args.engines.split(",")
    sessions = list(read_sessions(args))
    print(f"{len(sessions)} sessions, {sum(map(len, sessions))} requests, {args.at_once} at once\n")
    print("| policy | hit | TTFT p50 | p90 | mean | busiest | seconds |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    with tempfile.TemporaryDirectory() as folder:
        for policy in args.policies.split(",") * args.repeat:
            with serving(Path(folder), policy, engines, args.model) as port:
                measured = asyncio.run(replay(port, engines, sessions, args.at_once))
            print(f"| {policy} | {measured.row(len(engines))} |", flush=True)


def read_sessions(args: argparse.Namespace) -> Iterator[list[bytes]]:
    """Return the bodies of the first sessions that fit."""
    tools = json.loads(args.tools.read_text()) if args.tools else None
    left = args.num_sessions
    with gzip.open(args.sessions, "rt") as lines:
        for line in lines:
            bodies = list(bodies_of(json.loads(line)["messages"], tools, args))
            if left and bodies and len(bodies[-1]) <= args.max_bytes:
                left -= 1
                yield bodies


def bodies_of(messages: Sequence[dict], tools: object, args: argparse.Namespace) -> Iterator[bytes]:
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            body = {"model": args.model, "messages": messages[:index], "stream": True}
            body |= {"max_tokens": args.max_tokens, "temperature": 0}
            body["stream_options"] = {"include_usage": True}
            if tools is not None:
                body |= {"tools": tools, "tool_choice": "none"}
            yield json.dumps(body).encode()


async def replay(
    port: int, engines: Sequence[str], sessions: Sequence[list[bytes]], at_once: int
) -> Measured:
    measured, waiting = Measured(), deque(sessions)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=no_limit()) as client:
        for engine in engines:
            await reset(client, engine)

        async def play() -> None:
            while waiting:
                for body in waiting.popleft():
                    await ask(client, port, body, measured)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(play())
        measured.seconds = time.perf_counter() - began
    return measured


def no_limit() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None)


async def reset(client: aiohttp.ClientSession, engine: str) -> None:
    for path in RESETS:
        async with client.post(engine + path) as response:
            if response.status == 200:
                return
    raise SystemExit(f"{engine} takes none of {RESETS}; start vLLM with VLLM_SERVER_DEV_MODE=1")


async def ask(client: aiohttp.ClientSession, port: int, body: bytes, measured: Measured) -> None:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    headers = {"content-type": "application/json"}
    began, is_first = time.perf_counter(), True
    async with client.post(url, data=io.BytesIO(body), headers=headers) as response:
        if response.status != 200:
            raise SystemExit(f"a request failed: {await response.text()}")
        measured.replicas[response.headers["x-headstart-replica"]] += 1
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if is_first and any(has_content(choice) for choice in event["choices"]):
                measured.first_s.append(time.perf_counter() - began)
                is_first = False
            if usage := event.get("usage"):
                measured.input_tokens += usage["prompt_tokens"]
                with contextlib.suppress(KeyError, TypeError):
                    measured.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    if is_first:
        raise SystemExit("an answer had no content")


def has_content(choice: dict) -> bool:
    delta = choice.get("delta", {})
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


if __name__ == "__main__":
    main()
