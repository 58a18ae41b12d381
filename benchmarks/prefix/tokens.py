"""What tokenising costs: text never seen, text seen before, and a conversation that goes on.

    HEADSTART_TEST_DATA=DIR python benchmarks/prefix/tokens.py MODEL

MODEL is a model's folder, tokenizer.json or GGUF file. Times are of one thread's processor time,
the best of three rounds; all but the look-up are spent off the event loop.
"""

import argparse
import asyncio
import gzip
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import uvloop

from headstart.clock import SystemClock
from headstart.engines.tokenizers.config import TokenisingConfig, TokenizerConfig
from headstart.engines.tokenizers.load import load_tokenizer
from headstart.engines.tokenizers.model import ModelTokenizer
from headstart.gateway.tokenising import Tokenising
from headstart.prompt.fingerprint import namespace, prompt_keys
from headstart.prompt.token_cache import PromptMemo, memo_key, tail_of
from headstart.prompt.token_keys import TokenPrompt, block_root

NOW = datetime(2026, 11, 30)
ROOT = block_root("", "")
BLOCK_SIZES = (16,)
ROUNDS = 3
TEXT_BYTES = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--sessions", type=int, default=20)
    arguments = parser.parse_args()
    data = Path(os.environ["HEADSTART_TEST_DATA"], "data")

    def load() -> ModelTokenizer:
        return load_tokenizer(TokenizerConfig(arguments.model), "vllm")

    texts = list(unseen_texts(data))
    bodies = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    report("unseen text", [best(load, [body]) for body in bodies], bodies)
    sessions = list(conversations(data, arguments.sessions))
    grown = [body for session in sessions for body in session]
    cold, warm, again = [], [], []
    for session in sessions:
        costs = best(load, session)
        cold.append(costs[:1])
        warm.append(costs[1:])
        again.append(best(load, [session[-1], session[-1]])[1:])
    report("a session's first request", cold, [session[0] for session in sessions])
    report("its next ones", warm, [body for session in sessions for body in session[1:]])
    report("a prompt again, off the loop", again, [session[-1] for session in sessions])
    look_up(load(), grown)
    uvloop.run(hand_over(load(), grown))


def prompt_of(tokenizer: ModelTokenizer, data: bytes) -> TokenPrompt:
    body = msgspec.json.decode(data)
    found = tokenizer.prompt(body, is_chat=True, now=NOW, root=ROOT, block_sizes=BLOCK_SIZES)
    assert found is not None
    return found


def best(load: Callable[[], ModelTokenizer], bodies: list[dict]) -> list[float]:
    """Return seconds for each of `bodies`, in order, on a fresh cache; the best of the rounds."""
    encoded = [json.dumps(body).encode() for body in bodies]
    rounds = []
    tokenizer = load()
    for _ in range(ROUNDS):
        tokenizer.forget()
        rounds.append([seconds(prompt_of, tokenizer, data) for data in encoded])
    return [min(each) for each in zip(*rounds, strict=True)]


def seconds(work: Callable[..., object], *arguments: object) -> float:
    began = time.process_time()
    work(*arguments)
    return time.process_time() - began


def look_up(tokenizer: ModelTokenizer, bodies: list[dict]) -> None:
    """Time what a prompt seen before costs on the event loop: its key, and one look-up."""
    memo = PromptMemo(1 << 26)
    prompts = []
    for body in bodies:
        parts = [json.dumps(message).encode() for message in [body["tools"], *body["messages"]]]
        prompt = prompt_keys(parts, namespace("m"))
        key = memo_key(prompt, tail_of(parts, prompt))
        assert key is not None
        memo.put(key, prompt_of(tokenizer, json.dumps(body).encode()))
        prompts.append((parts, prompt))
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for parts, prompt in prompts:
            assert memo.get(memo_key(prompt, tail_of(parts, prompt)))
        times.append((time.perf_counter() - began) / len(prompts))
    print(f"{'a prompt again, on the loop':32} {min(times) * 1e6:8.2f} us")


async def hand_over(tokenizer: ModelTokenizer, bodies: list[dict]) -> None:
    """Time what an unseen prompt costs the event loop's thread, and how long its request waits."""
    service = Tokenising(TokenisingConfig(deadline_s=10.0), SystemClock())
    service.add_model("m", tokenizer)
    service.set_block_sizes("m", frozenset(BLOCK_SIZES))
    loop_s, waits = [], []
    for index, body in enumerate(bodies):
        data = json.dumps(body).encode()
        heard = asyncio.get_running_loop().create_future()
        cpu, began = time.thread_time(), time.perf_counter()
        service.submit(b"%d" % index, "m", data, heard.set_result, is_chat=True)
        await heard
        waits.append(time.perf_counter() - began)
        loop_s.append(time.thread_time() - cpu)
    await service.close()
    loop_s.sort()
    waits.sort()
    half, most = len(waits) // 2, len(waits) * 9 // 10
    print(f"{'an unseen prompt, on the loop':32} {loop_s[half] * 1e6:8.2f} us")
    print(f"{'its wait':32} {waits[half] * 1e3:8.3f} ms median  {waits[most] * 1e3:8.3f} ms p90")


def unseen_texts(data: Path) -> Iterator[str]:
    """Yield 8 KB of each of the agents' prompts that has as much."""
    for path in sorted((data / "prompts").glob("*.*")):
        text = path.read_text()
        if len(text.encode()) >= TEXT_BYTES and path.suffix != ".json":
            yield text.encode()[:TEXT_BYTES].decode(errors="ignore")


def conversations(data: Path, num_sessions: int) -> Iterator[list[dict]]:
    """Yield for each session its requests: all messages up to each of the assistant's turns."""
    tools = json.loads((data / "sessions" / "airline_tools.json").read_text())
    with gzip.open(data / "sessions" / "tau_airline.sessions.jsonl.gz", "rt") as lines:
        for _, line in zip(range(num_sessions), lines, strict=False):
            messages = json.loads(line)["messages"]
            ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
            yield [{"messages": messages[:end], "tools": tools} for end in ends]


def report(name: str, costs: list[list[float]], bodies: list[dict]) -> None:
    flat = sorted(cost for each in costs for cost in each)
    size = sum(len(json.dumps(body)) for body in bodies) / len(bodies)
    median, p90 = flat[len(flat) // 2], flat[len(flat) * 9 // 10]
    print(
        f"{name:32} {median * 1e3:8.3f} ms median  {p90 * 1e3:8.3f} ms p90"
        f"  ({len(flat)} requests of {size / 1024:.1f} KB)"
    )


if __name__ == "__main__":
    main()
