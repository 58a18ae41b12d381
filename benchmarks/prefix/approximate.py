"""What reading, fingerprinting and the approximate index cost per request, and per block of memory.

    python benchmarks/prefix/approximate.py

Prints microseconds of CPU, the best of many runs, on one core.
"""

import gc
import os
import time
import timeit
import tracemalloc
from collections.abc import Callable, Sequence

from headstart.prefix.view import PrefixView
from headstart.prompt.fingerprint import PromptKeys, namespace, prompt_keys
from headstart.types import PrefixKey
from headstart.wire.openai import peek_request

SEED = namespace("m")
BLOCK_BYTES = 1024
REPEATS = 60


def report(name: str, call: Callable[[], object], calls: int = 100) -> None:
    times = timeit.repeat(call, number=calls, repeat=REPEATS, timer=time.process_time)
    print(f"{name:58}{min(times) / calls * 1e6:8.2f}")


def random_prompt(num_keys: int, head: Sequence[PrefixKey] = ()) -> PromptKeys:
    keys = [*head, *(PrefixKey(os.urandom(16)) for _ in range(num_keys - len(head)))]
    ends = [BLOCK_BYTES * (at + 1) for at in range(num_keys)]
    return PromptKeys(keys, ends, BLOCK_BYTES * num_keys)


def copy_of(prompt: PromptKeys) -> PromptKeys:
    """Equal keys in other objects, as the next request has them."""
    keys = [PrefixKey(bytes(bytearray(key))) for key in prompt.keys]
    return PromptKeys(keys, prompt.ends, prompt.num_bytes)


def view_of(num_replicas: int, capacity_tokens: int = 1 << 30) -> PrefixView:
    view = PrefixView()
    for slot in range(num_replicas):
        view.add_replica(slot, f"r{slot}")
        view.set_capacity(slot, capacity_tokens, 16)
    return view


def serve(view: PrefixView, slot: int, prompt: PromptKeys, cached: int = 0) -> None:
    view.dispatched(slot, prompt, None, 0.0)
    view.answered(slot, prompt, None, cached, prompt.num_bytes // 4, cached, 50, 0.0)


def look_up(name: str, view: PrefixView, prompt: PromptKeys, slots: list[int]) -> None:
    keys, index = prompt.keys, view._index
    report(name, lambda: index.match(keys, slots, 0.0))
    report("  in tokens (PrefixView.match)", lambda: view.match(prompt, None, slots, 0.0))


def look_ups(num_keys: int, num_replicas: int) -> None:
    view, slots = view_of(num_replicas), list(range(num_replicas))
    prompt = random_prompt(num_keys)
    asked, name = copy_of(prompt), f"look-up, {num_keys} keys, {num_replicas} replicas, "
    look_up(name + "nobody holds any", view, asked, slots)
    serve(view, 0, prompt)
    look_up(name + "one holds it", view, asked, slots)
    for slot in slots:
        serve(view, slot, random_prompt(num_keys, prompt.keys[: num_keys // 2]))
    look_up(name + "and others half", view, asked, slots)
    for slot in slots:
        cut = num_keys * (slot + 1) // num_replicas
        serve(view, slot, random_prompt(num_keys, prompt.keys[:cut]))
    look_up(name + "all depths differ", view, asked, slots)


def requests() -> None:
    view = view_of(8, 300_000)  # what is new displaces what is old
    prompt = random_prompt(33)
    serve(view, 0, prompt)
    asked, cached = copy_of(prompt), (33 * 256 - 1) // 16 * 16
    report("dispatched + answered, 33 keys warm", lambda: serve(view, 0, asked, cached))
    for num_new in (3, 33):
        head = prompt.keys[: 33 - num_new]
        prompts = [random_prompt(33, head) for _ in range(100 * REPEATS)]
        next_prompt = iter(prompts).__next__
        held = len(head) * 256

        def fresh(held: int = held, following: Callable[[], PromptKeys] = next_prompt) -> None:
            serve(view, 0, following(), held)

        report(f"dispatched + answered, {num_new} of 33 keys new", fresh)


def reading() -> None:
    text = os.urandom(16_000).hex().encode()
    message = b'{"role":"user","content":"%b"}'
    for num_messages, size in ((1, 700), (2, 16_000), (21, 1500)):
        texts = [text[at * 500 :][:size] for at in range(num_messages)]
        body = b'{"model":"m","messages":[%b]}' % b",".join(message % part for part in texts)
        peek = peek_request(body)
        parts = peek.prompt_parts()
        name = f"{len(body)} bytes, {num_messages} messages: "
        report(name + "peek_request", lambda body=body: peek_request(body))
        report(name + "prompt_parts", peek.prompt_parts)
        report(name + "template_parameters", peek.template_parameters)
        num_keys = len(prompt_keys(parts, SEED).keys)
        report(f"{name}prompt_keys ({num_keys})", lambda parts=parts: prompt_keys(parts, SEED))


def memory(num_replicas: int) -> None:
    view = view_of(num_replicas)
    gc.collect()
    tracemalloc.start()
    for _ in range(3000):
        prompt = random_prompt(33)
        for slot in range(num_replicas):
            serve(view, slot, prompt)
        del prompt
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    parts = [view.statistics(slot).approximate for slot in range(num_replicas)]
    num_entries = sum(part.num_entries for part in parts)
    print(
        f"bytes of memory per block and replica, held by {num_replicas}: {size / num_entries:.1f}"
    )


def main() -> None:
    for num_keys, num_replicas in ((33, 8), (33, 32), (500, 32)):
        look_ups(num_keys, num_replicas)
    requests()
    reading()
    for num_replicas in (1, 8):
        memory(num_replicas)


if __name__ == "__main__":
    main()
