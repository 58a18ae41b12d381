"""Which policy routes, and its parameters."""

from dataclasses import dataclass, field
from typing import Literal

PolicyName = Literal[
    "expected_ttft",
    "prefix_hash",
    "session_affinity",
    "least_loaded",
    "round_robin",
    "lmetric",
    "sglang_cache_aware",
]


@dataclass(frozen=True, slots=True)
class PrefixHashConfig:
    """Parameters of consistent hashing with bounded load.

    Attributes:
        leading_blocks: at most this many leading blocks of a prompt choose its replica, >= 1;
            rounded down to a power of two.
        load_bound: a replica takes at most this multiple of the mean load, > 1.
        block_bytes: bytes of prompt in one block, >= 1.
    """

    leading_blocks: int = 8
    load_bound: float = 1.25
    block_bytes: int = 1024


@dataclass(frozen=True, slots=True)
class ExpectedTtftConfig:
    """Weights of the terms of `expected_ttft`; >= 0.

    Attributes:
        prefill_surcharge: of own prefill, for what comes later; as much again as own prefill for
            each request that waits.
        load_weight: of a whole prompt's mean prefill, at the mean number of requests in flight.
        balance_weight: of the same, at the mean of the prompt tokens assigned lately.
        kv_weight: of the same, where requests have pinned all of a replica's KV.
        eviction_weight: of what has to be computed again because of this request.
        tie_ratio: prices within this share of the least are equal.
        spread: equals may be ahead of each other by this share of the mean of uncached tokens
            assigned lately before the ring gives way.
    """

    prefill_surcharge: float = 1.0
    load_weight: float = 1.0
    balance_weight: float = 1.0
    kv_weight: float = 2.0
    eviction_weight: float = 8.0
    tie_ratio: float = 0.01
    spread: float = 0.125


@dataclass(frozen=True, slots=True)
class SglangCacheAwareConfig:
    """Parameters of `sglang_cache_aware`, with the defaults of its source.

    Attributes:
        cache_threshold: share of a prompt that must match to follow the cache, 0..1.
        balance_abs_threshold: requests in flight by which the most and the least loaded may
            differ, >= 0.
        balance_rel_threshold: factor by which they may, >= 1.
    """

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Policy by name and the parameters of those that have some.

    Attributes:
        policy: which replica takes a request.
        shadow: policies that are asked, too, and not obeyed.
        prefix_hash: parameters of that policy; likewise the next two. `session_affinity` has its
            `load_bound` from here, and falls back on it.
    """

    policy: PolicyName = "expected_ttft"
    shadow: tuple[PolicyName, ...] = ()
    prefix_hash: PrefixHashConfig = field(default_factory=PrefixHashConfig)
    expected_ttft: ExpectedTtftConfig = field(default_factory=ExpectedTtftConfig)
    sglang_cache_aware: SglangCacheAwareConfig = field(default_factory=SglangCacheAwareConfig)
