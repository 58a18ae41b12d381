"""What the precise index costs: look-up, ingest and memory, beside a naive twin.

    python benchmarks/prefix/run.py [--replicas 32] [--blocks 60000]

Look-up: a prompt of 500 blocks of 16 tokens (8,000 tokens), already hashed, over all replicas; in
microseconds, the median of many. `warm` repeats one prompt; `cold` walks through the prompts of a
full index in random order, each hashed just before as a request's are, so that nothing of the index
is left in the processor's caches.
Ingest: from msgpack payloads to the index, decoding and hashing included, on one core; the best of
five.
Memory: resident size of 100 replicas with blocks of their own, measured in a fresh process.

Times are CPU times of the thread, so that other work on the machine disturbs them less.

The naive twin has a set of keys per replica and asks each replica in turn; it decodes payloads
without types, and keeps no count of copies, tiers, ranks or salts. Both use the same keys.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from headstart.prefix.precise import PreciseIndex
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from headstart.types import PrefixKey
from headstart.wire.kv_events import (
    KvEventBatch,
    RemovedBlocks,
    StoredBlocks,
    decode_batch,
    encode_batch,
)

BLOCK_SIZE = 16
PROMPT_BLOCKS = 500
MEMORY_REPLICAS = 100
ROOT = block_root("", "")
ROW = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"),
    *("medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
)
GOALS = {"look-up": "60 us", "ingest": "150,000 blocks/s", "memory": "1,500 MB"}


class Index(Protocol):
    """What is measured."""

    def add_replica(self, slot: int) -> None: ...
    def match(self, tokens: TokenPrompt, slots: Sequence[int]) -> list[int]: ...
    def ingest(self, slot: int, payload: bytes) -> None: ...


class PreciseIndexOfPayloads(PreciseIndex):
    """The index together with the decoding in front of it."""

    def ingest(self, slot: int, payload: bytes) -> None:
        self.apply(slot, 0, (decode_batch(payload),))


class NaiveIndex:
    """A set of keys and a map of names per replica."""

    def __init__(self) -> None:
        self.keys: dict[int, set[PrefixKey]] = {}
        self.names: dict[int, dict[int, PrefixKey]] = {}

    def add_replica(self, slot: int) -> None:
        self.keys[slot], self.names[slot] = set(), {}

    def match(self, tokens: TokenPrompt, slots: Sequence[int]) -> list[int]:
        matched = []
        for slot in slots:
            length = 0
            for key in tokens.keys_by_block_size[BLOCK_SIZE]:
                if key not in self.keys[slot]:
                    break
                length += BLOCK_SIZE
            matched.append(length)
        return matched

    def ingest(self, slot: int, payload: bytes) -> None:
        keys, names = self.keys[slot], self.names[slot]
        for event in msgspec.msgpack.decode(payload)[1]:
            if isinstance(event, list):
                event = dict(zip(ROW, event, strict=True))
            if event["type"] == "BlockRemoved":
                for name in event["block_hashes"]:
                    keys.discard(names.pop(name))
                continue
            parent = event["parent_block_hash"]
            key = ROOT if parent is None else names[parent]
            for index, name in enumerate(event["block_hashes"]):
                tokens = event["token_ids"][index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
                (key,) = block_keys(tokens, BLOCK_SIZE, key)
                names[name] = key
                keys.add(key)


def prompt_tokens(number: int, num_blocks: int) -> tuple[int, ...]:
    """Token ids of usual sizes; the first says which prompt it is, so no block is shared."""
    return (number, *range(1000, 1000 + num_blocks * BLOCK_SIZE - 1))


def prompt(token_ids: Sequence[int]) -> TokenPrompt:
    return TokenPrompt(len(token_ids) + 1, {BLOCK_SIZE: block_keys(token_ids, BLOCK_SIZE, ROOT)})


def stored(token_ids: Sequence[int], first_name: int, *, as_bytes: bool = False) -> StoredBlocks:
    num_blocks = len(token_ids) // BLOCK_SIZE
    names = range(first_name, first_name + num_blocks)
    hashes = [name * 0x9E3779B97F4A7C15 % 2**64 for name in names]
    return StoredBlocks(
        tuple(name.to_bytes(32, "big") for name in hashes) if as_bytes else tuple(hashes),
        None,
        tuple(token_ids),
        BLOCK_SIZE,
        medium="GPU",
        extra_keys=(None,) * num_blocks,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )


def show(name: str, ours: float, naive: float, unit: str, *, is_rate: bool = False) -> None:
    ratio = ours / naive if is_rate else naive / ours
    print(f"{name:<44}{ours:>12,.1f}{naive:>12,.1f} {unit:<10}{ratio:>7.1f}x")


def lookup(replicas: int, num_blocks: int) -> None:
    """Print how long a look-up takes."""
    slots = range(replicas)
    shared = prompt_tokens(1, PROMPT_BLOCKS)
    cases: dict[str, Callable[[int], int]] = {
        "all hold all of it": lambda _: PROMPT_BLOCKS,
        "each holds another share of it": lambda slot: PROMPT_BLOCKS * (slot + 1) // replicas,
        "one holds it": lambda slot: PROMPT_BLOCKS * (slot == 0),
        "nobody holds it": lambda _: 0,
    }
    for name, share in cases.items():
        indexes: tuple[Index, ...] = PreciseIndexOfPayloads(), NaiveIndex()
        for index in indexes:
            for slot in slots:
                index.add_replica(slot)
        for slot in slots:
            held = shared[: share(slot) * BLOCK_SIZE] or prompt_tokens(100 + slot, 10)
            hold(indexes, slot, stored(held, slot * 1000))
        tokens = prompt(shared)
        for index in indexes:
            index.match(tokens, slots)
        ours, naive = (median_us(index.match, [tokens] * 300, slots) for index in indexes)
        show(f"look-up, warm: {name}", ours, naive, "us")
    per_replica = num_blocks // PROMPT_BLOCKS
    numbers = []
    indexes = PreciseIndexOfPayloads(), NaiveIndex()
    for index in indexes:
        for slot in slots:
            index.add_replica(slot)
    for slot in slots:
        for number in range(per_replica):
            numbers.append(slot * per_replica + number)
            token_ids = prompt_tokens(numbers[-1], PROMPT_BLOCKS)
            hold(indexes, slot, stored(token_ids, numbers[-1] * PROMPT_BLOCKS))
    random.Random(0).shuffle(numbers)
    asked = [prompt_tokens(number, PROMPT_BLOCKS) for number in numbers[:300]]
    ours, naive = (median_us(index.match, map(prompt, asked), slots) for index in indexes)
    show(f"look-up, cold: one of {replicas} x {num_blocks:,} blocks", ours, naive, "us")


def hold(indexes: Iterable[Index], slot: int, event: StoredBlocks) -> None:
    payload = encode_batch(KvEventBatch(0.0, (event,)))
    for index in indexes:
        index.ingest(slot, payload)


def median_us(
    match: Callable[[TokenPrompt, Sequence[int]], object],
    prompts: Iterable[TokenPrompt],
    slots: Sequence[int],
) -> float:
    times = []
    for tokens in prompts:
        start = time.thread_time_ns()
        match(tokens, slots)
        times.append(time.thread_time_ns() - start)
    return statistics.median(times) / 1000


def rows(payload: bytes) -> bytes:
    """Return the same batch as releases before 0.24 write it: events as arrays."""
    ts, events = msgspec.msgpack.decode(payload)[:2]
    return msgspec.msgpack.encode([ts, [list(event.values()) for event in events]])


def payloads(kind: str, num_blocks: int) -> list[bytes]:
    """Batches that store about `num_blocks` blocks, in one of the ways in which engines do."""
    result = []
    if kind in ("one block per event, each evicting one", "one block per batch, likewise"):
        names = list(range(1, num_blocks + 1))
        events: list[StoredBlocks | RemovedBlocks] = []
        per_batch = 1 if kind.startswith("one block per batch") else 64
        for name in names:
            events += [RemovedBlocks((name - 1,), "GPU", 0)] if name > 1 else []
            event = stored(prompt_tokens(name, 1), 0)
            events.append(msgspec.structs.replace(event, block_hashes=(name,)))
            if name % per_batch == 0:
                result.append(encode_batch(KvEventBatch(0.0, tuple(events), 0)))
                events = []
        return result
    for number in range(0, num_blocks, 256):
        prompts = tuple(
            stored(
                prompt_tokens(number + i, 32), (number + i) * 32, as_bytes="32 raw bytes" in kind
            )
            for i in range(8)
        )
        result.append(encode_batch(KvEventBatch(0.0, prompts, 0)))
    return [rows(payload) for payload in result] if "arrays" in kind else result


INGESTS = (
    "prefills of 32 blocks",
    "prefills, hashes of 32 raw bytes",
    "prefills, events as arrays",
    "prefills that another replica holds",
    "one block per event, each evicting one",
    "one block per batch, likewise",
)


def ingest() -> None:
    """Print how many blocks a second go from the wire into the index."""
    for kind in INGESTS:
        batches = payloads(kind, 40_000)
        num_blocks = sum(
            len(event.block_hashes)
            for payload in batches
            for event in decode_batch(payload).events
            if isinstance(event, StoredBlocks)
        )
        indexes: tuple[Callable[[], Index], ...] = (PreciseIndexOfPayloads, NaiveIndex)
        is_held = "another" in kind
        ours, naive = (
            num_blocks / min(ingest_s(index(), batches, is_held=is_held) for _ in range(5))
            for index in indexes
        )
        show(f"ingest: {kind}", ours, naive, "blocks/s", is_rate=True)


def ingest_s(index: Index, batches: Sequence[bytes], *, is_held: bool) -> float:
    for slot in range(2):
        index.add_replica(slot)
    if is_held:
        for payload in batches:
            index.ingest(1, payload)
    start = time.thread_time()
    for payload in batches:
        index.ingest(0, payload)
    return time.thread_time() - start


def memory(num_blocks: int) -> None:
    """Print what a full index takes, each measured in a process of its own."""
    sizes = []
    for which in ("precise", "naive"):
        command = [sys.executable, __file__, "--fill", which, "--blocks", str(num_blocks)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        sizes.append([float(field) for field in done.stdout.split()])
    (ours, ours_peak), (naive, naive_peak) = sizes
    name = f"memory: {MEMORY_REPLICAS} x {num_blocks:,} blocks"
    show(name, ours, naive, "MB")
    show(f"{name}, peak", ours_peak, naive_peak, "MB")


def fill(which: str, num_blocks: int) -> None:
    """Fill an index and print resident megabytes, now and at most, beyond those before."""
    before = resident_mb("VmRSS")
    index: Index = PreciseIndexOfPayloads() if which == "precise" else NaiveIndex()
    for slot in range(MEMORY_REPLICAS):
        index.add_replica(slot)
    for number in range(num_blocks // PROMPT_BLOCKS):
        for slot in range(MEMORY_REPLICAS):
            name = (number * MEMORY_REPLICAS + slot) * PROMPT_BLOCKS
            event = stored(prompt_tokens(name, PROMPT_BLOCKS), name)
            index.ingest(slot, encode_batch(KvEventBatch(0.0, (event,))))
    print(resident_mb("VmRSS") - before, resident_mb("VmHWM") - before)


def resident_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=60_000, help="per replica")
    parser.add_argument("--fill", choices=("precise", "naive"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fill:
        fill(arguments.fill, arguments.blocks)
        return
    print("goals: " + ", ".join(f"{name} {goal}" for name, goal in GOALS.items()))
    print(f"{'':<44}{'headstart':>12}{'naive':>12} {'':<10}{'better':>8}")
    lookup(arguments.replicas, arguments.blocks)
    ingest()
    memory(arguments.blocks)


if __name__ == "__main__":
    main()
