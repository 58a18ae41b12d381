"""Which policy routes, and its parameters."""

from dataclasses import dataclass, field
from typing import Literal

PolicyName = Literal[
    "expected_ttft",
    "prefix_hash",
    "session_affinity",
    "least_loaded",
    "round_robin",
    "random",
    "power_of_two",
    "lmetric",
    "sglang_cache_aware",
    "production_stack_prefixaware",
    "llm_d_weighted",
    "dynamo_cost",
    "preble_e2",
    "gorgo",
    "mooncake_conductor",
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
class LMetricConfig:
    """Which of its published forms `lmetric` has.

    Attributes:
        tokens: the factor beside the requests: the request's own uncached tokens, or these and
            the uncached ones that wait there.
    """

    tokens: Literal["uncached", "pending_and_uncached"] = "uncached"


@dataclass(frozen=True, slots=True)
class LlmDWeightedConfig:
    """Weights of the scores of `llm_d_weighted`, those of its precise mode; >= 0.

    Its approximate mode has 2, 1 and 1.

    Attributes:
        prefix_weight: of the share of the prompt that a replica holds.
        queue_weight: of how few requests wait there.
        kv_weight: of the share of KV that is not pinned.
    """

    prefix_weight: float = 3.0
    queue_weight: float = 2.0
    kv_weight: float = 2.0


@dataclass(frozen=True, slots=True)
class DynamoCostConfig:
    """Parameters of `dynamo_cost`, with the defaults of its source; >= 0.

    Attributes:
        prefill_scale: of what is to be prefilled, against what is decoded over.
        overlap_credit: share of the matched tokens that need not be prefilled.
        credit_decay: the credit is divided by 1 and so much for each whole prompt that waits
            there above the fewest that wait anywhere.
    """

    prefill_scale: float = 1.0
    overlap_credit: float = 1.0
    credit_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class PrebleE2Config:
    """Parameters of `preble_e2`, with the defaults of its source.

    Attributes:
        window_s: load is that of the last so many seconds, > 0.
        output_tokens: expected of each request, >= 0.
        balance_ratio: load of the heaviest over that of the lightest from which on requests to
            the one go to the other, >= 1.
        replicate_ratio: factor by which TTFT behind a prefix may rise from one half of the window
            to the next before another replica gets it, >= 1.
    """

    window_s: float = 180.0
    output_tokens: int = 45
    balance_ratio: float = 1.5
    replicate_ratio: float = 2.0


@dataclass(frozen=True, slots=True)
class GorgoConfig:
    """Factors of the rates of `gorgo`; >= 0.

    Attributes:
        rtt_weight: of what an all-cached prompt takes, which has the network's round trip in it;
            0 where all replicas are near.
        prefill_weight: of the seconds per uncached token, for the request's own.
        queue_weight: of the same, for those that wait.
    """

    rtt_weight: float = 0.0
    prefill_weight: float = 1.0
    queue_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class MooncakeConductorConfig:
    """Parameters of `mooncake_conductor`; its source gives no values.

    Attributes:
        transfer_tokens_per_s: at which a replica fetches a prefix from another, >= 0; 0: it
            does not.
        balancing_threshold: it does where the other's match is so many times its own, >= 1.
    """

    transfer_tokens_per_s: float = 0.0
    balancing_threshold: float = 2.0


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Policy by name and the parameters of those that have some.

    Attributes:
        policy: which replica takes a request.
        shadow: policies that are asked, too, and not obeyed.
        seed: of the chance that some policies use, >= 0.
        prefix_hash: parameters of that policy; likewise all that follow. `session_affinity` has
            its `load_bound` from here, and falls back on it.
    """

    policy: PolicyName = "expected_ttft"
    shadow: tuple[PolicyName, ...] = ()
    seed: int = 0
    prefix_hash: PrefixHashConfig = field(default_factory=PrefixHashConfig)
    expected_ttft: ExpectedTtftConfig = field(default_factory=ExpectedTtftConfig)
    sglang_cache_aware: SglangCacheAwareConfig = field(default_factory=SglangCacheAwareConfig)
    lmetric: LMetricConfig = field(default_factory=LMetricConfig)
    llm_d_weighted: LlmDWeightedConfig = field(default_factory=LlmDWeightedConfig)
    dynamo_cost: DynamoCostConfig = field(default_factory=DynamoCostConfig)
    preble_e2: PrebleE2Config = field(default_factory=PrebleE2Config)
    gorgo: GorgoConfig = field(default_factory=GorgoConfig)
    mooncake_conductor: MooncakeConductorConfig = field(default_factory=MooncakeConductorConfig)
