"""Groups of prompts that share a long beginning: the benchmark of llm-d, and SGLang's.

All prompts are drawn first and put in one random order. They are sent in that order, and again
from the start when it ends (as inference-perf does): what is sent twice is the same prompt.
"""

from random import Random
from typing import Final

import msgspec

from headstart.simulator.generators.growing_prompt import GrowingPrompt
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest


class SharedPrefixConfig(msgspec.Struct, frozen=True):
    """Groups and their load.

    Attributes:
        name: of the trace.
        num_groups: of prompts, >= 1.
        prompts_per_group: >= 1.
        shared_tokens: with which all prompts of a group begin.
        question_tokens: that follow, of one prompt only.
        output_tokens: of every answer, >= 1.
        stages: (requests a second, seconds) one after another, arrivals a Poisson process; none:
            each prompt once and all at the same time.
        block_tokens: in a block.
    """

    name: str
    num_groups: int
    prompts_per_group: int
    shared_tokens: int
    question_tokens: int
    output_tokens: int
    stages: tuple[tuple[float, float], ...] = ()
    block_tokens: int = 16


LLM_D: Final = SharedPrefixConfig(
    name="llm-d-ladder",
    num_groups=150,
    prompts_per_group=5,
    shared_tokens=6000,
    question_tokens=1200,
    output_tokens=1000,
    stages=(
        (15, 50),  # warms the caches: each prompt once
        *((3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38)),
        *((43, 36), (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25)),
    ),
)
"""llm-d's guide to precise prefix-cache routing, with its ladder of rates from 3 to 60."""

SGLANG: Final = SharedPrefixConfig(
    name="sglang-shared-prefix",
    num_groups=64,
    prompts_per_group=16,
    shared_tokens=2048,
    question_tokens=128,
    output_tokens=256,
)
"""SGLang's `bench_serving --dataset-name generated-shared-prefix`, by its defaults."""


def shared_prefix(config: SharedPrefixConfig, seed: int) -> Trace:
    """Draw a trace; it is timed.

    Args:
        config: its shape.
        seed: of the order and the arrivals.
    """
    rng = Random(f"shared prefix {seed}")
    prompts = _prompts(config)
    rng.shuffle(prompts)
    times = _times(config, rng) if config.stages else [0.0] * len(prompts)
    requests = tuple(
        TraceRequest(
            arrival_s=at_s,
            input_tokens=prompts[index % len(prompts)].num_tokens,
            output_tokens=config.output_tokens,
            blocks=prompts[index % len(prompts)].blocks,
        )
        for index, at_s in enumerate(times)
    )
    return Trace(config.name, config.block_tokens, requests, is_timed=True)


def _prompts(config: SharedPrefixConfig) -> list[GrowingPrompt]:
    tree = PrefixTree()
    prompts = []
    for _ in range(config.num_groups):
        shared = GrowingPrompt(tree, config.block_tokens)
        shared.grow(config.shared_tokens)
        for _ in range(config.prompts_per_group):
            prompt = shared.fork()
            prompt.grow(config.question_tokens)
            prompts.append(prompt)
    return prompts


def _times(config: SharedPrefixConfig, rng: Random) -> list[float]:
    times = []
    start_s = 0.0
    for rate, duration_s in config.stages:
        at_s = start_s + rng.expovariate(rate)
        while at_s < start_s + duration_s:
            times.append(at_s)
            at_s += rng.expovariate(rate)
        start_s += duration_s
    return times
