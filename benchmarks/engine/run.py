"""The embedded engine's figures, each the best of three, as ratios where two are compared.

    python benchmarks/engine/run.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--json] [--only NAME]

Needs a text of at least 60 kB that is not part of this repository: `--text FILE` (plain or .gz),
or the folder that HEADSTART_TEST_DATA names. Run it on a quiet machine.
"""

import argparse
import gzip
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from headstart.engines.embedded.engine import EmbeddedEngine, EngineConfig
from headstart.engines.embedded.request import (
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
)
from headstart.engines.embedded.workers import physical_cores

REPEATS = 3


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    value: float
    unit: str
    goal: str
    is_met: bool


class Client:
    """One engine and a simple way to run token lists through it."""

    def __init__(self, model: Path, **config: object) -> None:
        self.engine = EmbeddedEngine(EngineConfig(model, "benchmark", **config))  # type: ignore[arg-type]
        self.engine.start()
        self._count = 0

    def run(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, salt: str | None = None
    ) -> list["Result"]:
        """Run prompts at the same time and wait for all."""
        outputs: queue.Queue = queue.Queue()
        results = {}
        for prompt in prompts:
            self._count += 1
            name = str(self._count)
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            results[name] = Result(time.perf_counter())
            self.engine.submit(
                GenerationRequest(name, tuple(prompt), params, salt, time.monotonic()),
                lambda output: outputs.put((time.perf_counter(), output)),
            )
        num_open = len(results)
        while num_open:
            now, output = outputs.get()
            assert output.error is None, output.error
            results[output.request_id].add(now, output)
            num_open -= output.finish_reason is not None
        return list(results.values())


class Result:
    """One request's tokens and times."""

    def __init__(self, start: float) -> None:
        self.start, self.times, self.tokens, self.cached_tokens = start, [], [], 0

    def add(self, now: float, output: GenerationOutput) -> None:
        """Take in one output, which came at `now`."""
        self.times.append(now)
        self.tokens.extend(output.token_ids)
        self.cached_tokens = output.cached_tokens

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.times[0] - self.start


@contextmanager
def client(model: Path, **config: object) -> Iterator[Client]:
    running = Client(model, **config)
    try:
        yield running
    finally:
        running.engine.stop()


def read_text(named: Path | None) -> str:
    folder = os.environ.get("HEADSTART_TEST_DATA")
    path = named or (Path(folder, "data/longdocs/shakespeare.txt.gz") if folder else None)
    if path is None:
        sys.exit("give a text with --text FILE, or set HEADSTART_TEST_DATA")
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def same_output(model: Path, text: str) -> list[Figure]:
    """50 prompts x 32 tokens, greedy, with the cache and without."""
    with client(model) as on, client(model, enable_prefix_caching=False) as off:
        tokens = on.engine.tokenizer.encode(text[:60_000])
        prompts = [
            [*tokens[: 60 * (i % 5 + 1)], *tokens[2000 + 30 * i :][: 20 + i % 9]] for i in range(50)
        ]
        same = sum(on.run([p], 32)[0].tokens == off.run([p], 32)[0].tokens for p in prompts)
        hits = on.engine.statistics().prefix_cache_hits_tokens
    return [
        Figure("greedy outputs equal with cache on and off", same, "of 50", "50", same == 50),
        Figure("  tokens reused meanwhile", hits, "tokens", "> 0", hits > 0),
    ]


def ttft(model: Path, text: str) -> list[Figure]:
    """Send a question of 20 tokens after a prefix of 1,500, cold and warm."""
    with client(model) as c:
        tokens = c.engine.tokenizer.encode(text[:60_000])
        prefix, question = tokens[:1500], tokens[3000:3020]
        pairs = []
        for i in range(REPEATS):
            cold = c.run([[*prefix, *question]], 1, salt=str(i))[0].ttft_s
            warm = min(
                c.run([[*prefix, *tokens[4000 + j : 4020 + j]]], 1, salt=str(i))[0].ttft_s
                for j in range(3)
            )
            pairs.append((cold, warm))
    cold, warm = (min(times) for times in zip(*pairs, strict=True))
    rate = len([*prefix, *question]) / cold
    return [
        Figure("TTFT cold, 1,500-token prefix", cold, "s", "", True),
        Figure("TTFT warm", warm, "s", "", True),
        Figure("  warm / cold", warm / cold, "", "<= 0.1", warm / cold <= 0.1),
        Figure("prefill", rate, "tok/s", ">= 200", rate >= 200),
    ]


def shared_decode(model: Path, text: str) -> list[Figure]:
    """Tokens per second of 8 sequences on one 1,000-token prefix, against one sequence."""
    num_tokens = 48
    with client(model) as c:
        tokens = c.engine.tokenizer.encode(text[:60_000])
        prompts = [[*tokens[:1000], *tokens[2000 + 9 * i :][:8]] for i in range(8)]
        c.run(prompts, 2)  # the prefix is warm from here on

        def rate(batch: list[list[int]]) -> float:
            results = c.run(batch, num_tokens)
            first = max(r.times[0] for r in results)  # all decode from here on
            last = min(r.times[-1] for r in results)
            done = sum(sum(first < t <= last for t in r.times) for r in results)
            return done / (last - first)

        one = max(rate(prompts[:1]) for _ in range(REPEATS))
        eight = max(rate(prompts) for _ in range(REPEATS))
    return [
        Figure("decode, 1 sequence on 1,000 tokens", one, "tok/s", "", True),
        Figure("decode, 8 sequences sharing them", eight, "tok/s", "", True),
        Figure("  ratio", eight / one, "", ">= 2.5", eight / one >= 2.5),
    ]


def concurrent_cold(model: Path, text: str) -> list[Figure]:
    """8 cold requests at once on one prefix of 1,000 tokens: how often it is prefilled."""
    with client(model) as c:
        tokens = c.engine.tokenizer.encode(text[:60_000])
        c.run([tokens[:8]], 1)
        before = c.engine.statistics().prefilled_tokens
        c.run([[*tokens[:1000], *tokens[2000 + 9 * i :][:8]] for i in range(8)], 4)
        prefilled = c.engine.statistics().prefilled_tokens - before
    once = 1008 + 7 * (1008 - 992)
    return [
        Figure("tokens prefilled by 8 concurrent cold requests", prefilled, "tokens",
               f"<= {once}", prefilled <= once),
    ]  # fmt: skip


def memory(model: Path, text: str) -> list[Figure]:
    """Resident memory with a pool of 8,192 tokens, all of it used, in a process of its own."""
    command = [sys.executable, __file__, "--model", str(model), "--measure-memory"]
    printed = subprocess.run(
        command, input=text[:60_000], capture_output=True, text=True, check=True
    )
    resident, peak = json.loads(printed.stdout)
    return [
        Figure("resident, pool of 8,192 tokens filled", resident / 1e9, "GB", "< 1.2",
               resident < 1.2e9),
        Figure("  peak since the start", peak / 1e9, "GB", "", True),
    ]  # fmt: skip


def measure_memory(model: Path) -> None:
    with client(model, num_blocks=512) as c:
        tokens = c.engine.tokenizer.encode(sys.stdin.read())
        for start in range(0, 9000, 1800):  # 9,000 distinct tokens: every block has been written
            c.run([tokens[start : start + 1800]], 2)
        c.run([[*tokens[:1000], *tokens[2000 + 9 * i :][:8]] for i in range(8)], 4)
        fields = dict(
            line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
        )
    print(json.dumps([int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM")]))


MEASURES: dict[str, Callable[[Path, str], list[Figure]]] = {
    "same-output": same_output,
    "ttft": ttft,
    "shared-decode": shared_decode,
    "concurrent-cold": concurrent_cold,
    "memory": memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--text", type=Path, help="text to make prompts of, plain or .gz")
    parser.add_argument("--only", choices=MEASURES, action="append", help="measure only these")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure-memory", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure_memory:
        measure_memory(args.model)
        return 0
    text = read_text(args.text)
    figures = [f for name in args.only or MEASURES for f in MEASURES[name](args.model, text)]
    if args.json:
        print(json.dumps({"figures": [asdict(f) for f in figures]}, indent=2))
    else:
        print(f"{physical_cores()} cores, best of {REPEATS}")
        for f in figures:
            goal = f"{f.goal:>9} {'ok' if f.is_met else 'MISSED'}" if f.goal else ""
            print(f"{f.name:48} {f.value:10.3f} {f.unit:7} {goal}")
    return 0 if all(f.is_met for f in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
