"""Six workloads on which policies are compared, each with a fleet and loads.

    conversation   Mooncake's chats, 5,606 requests of 13,000 tokens; real arrivals      8 replicas
    synthetic      Mooncake's mix of shared prefixes, 3,993 of 15,000; Poisson           8
    weka           coding agents, 10,313 of 89,000; sessions, their gaps a tenth         8
    tau            airline agents, 2,454 of 5,300; sessions                              4
    ladder         llm-d's: 150 groups × 5 prompts of 7,200, again and again; Poisson    8
    groups         SGLang's: 64 groups × 16 prompts of 2,176, three times; Poisson       8

And four that nothing was chosen on:

    bench_chats    multi-turn chats from a generator                                     8
    bench_mix      SAECache's semantic mix from a generator                              8
    weka_v8        other coding agents, 16,297 of 116,000; ids local to a session        8
    few            the conversation on two replicas                                      2

Requests come when they are due, whatever was answered: who waits for answers cannot overload a
fleet, and a load would mean nothing. Caches hold 307,328 tokens each, steps cost what Preble
measured (Mistral 7B on an A100).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headstart.simulator.formats.recognise import read_trace
from headstart.simulator.generators.multi_turn import MultiTurnConfig, multi_turn
from headstart.simulator.generators.semantic_mix import ARENA, semantic_mix
from headstart.simulator.generators.shared_prefix import LLM_D, SGLANG, shared_prefix
from headstart.simulator.setup import Setup
from headstart.simulator.trace import Trace

LOADS: Final = (0.6, 0.8, 0.95)
BOUND_FACTOR: Final = 5.0
"""Capacity is where TTFT P90 is so many times that of a fleet with little to do."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One of the contest.

    Attributes:
        name: short.
        num_replicas: of its fleet.
        gap_scale: factor on the gaps within sessions, where the trace has no times: 167 sessions
            of 2,851 s could not keep eight replicas busy.
        make: returns the trace, given the folder of traces.
    """

    name: str
    num_replicas: int
    make: Callable[[Path], Trace]
    gap_scale: float = 1.0

    def setup(self) -> Setup:
        """Return the fleet."""
        return Setup(num_replicas=self.num_replicas, gap_scale=self.gap_scale, is_open_loop=True)


def workloads() -> dict[str, Workload]:
    """Return all, those of the contest first, by name."""
    found = (
        Workload("conversation", 8, _file("mooncake_conversation_first1770s")),
        Workload("synthetic", 8, _file("mooncake_synthetic")),
        Workload("weka", 8, _file("weka_v6g_dev.rle", 8), 0.1),
        Workload("tau", 4, _file("tau_airline.blocks16", 4)),
        Workload("ladder", 8, _ladder),
        Workload("groups", 8, _groups),
        Workload("bench_chats", 8, lambda _: _chats()),
        Workload("bench_mix", 8, lambda _: semantic_mix(ARENA, 1).coarsened(4)),
        Workload("weka_v8", 8, _file("weka_v8_dev.rle", 8), 0.1),
        Workload("few", 2, _file("mooncake_conversation_first1770s")),
    )
    return {workload.name: workload for workload in found}


CONTEST: Final = ("conversation", "synthetic", "weka", "tau", "ladder", "groups")
HELD_OUT: Final = ("bench_chats", "bench_mix", "weka_v8", "few")


def _file(name: str, factor: int = 1) -> Callable[[Path], Trace]:
    def make(folder: Path) -> Trace:
        return read_trace(folder / f"{name}.jsonl.gz").coarsened(factor)

    return make


def _ladder(_folder: Path) -> Trace:
    config = msgspec.structs.replace(LLM_D, stages=((1.0, 3000.0),), block_tokens=64)
    return shared_prefix(config, 1)


def _groups(_folder: Path) -> Trace:
    config = msgspec.structs.replace(SGLANG, stages=((1.0, 3072.0),), block_tokens=64)
    return shared_prefix(config, 1)


def _chats() -> Trace:
    config = MultiTurnConfig(num_sessions=800, sessions_per_s=4.0, block_tokens=64)
    return multi_turn(config, 1)
