"""Everything that can be configured, composed of the components' own configurations.

A key of `headstart.yaml` is the name of a field here or in the component's dataclass, so that
there is one place to look for what a value means.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headstart.accounting.metrics import MetricsConfig
from headstart.accounting.recorder import RecorderConfig
from headstart.accounting.tenant import Tenant
from headstart.config.address import Address
from headstart.engines.base import HealthConfig, ReplicaConfig, UpstreamConfig
from headstart.engines.discovery.build import SourceEntry
from headstart.prefix.config import PrefixConfig
from headstart.routing.config import RoutingConfig
from headstart.routing.gossip.config import GossipConfig
from headstart.routing.queue import QueueConfig
from headstart.wire.http1 import HttpLimits

LogTarget = Path | Literal["-", "off"]
"""Where the request log goes: a file, `-` for the standard output, or nowhere."""


@dataclass(frozen=True, slots=True)
class EmbeddedConfig:
    """The replica that is started when no engine is named.

    Attributes:
        model: a model that `headstart model` knows, or the path of a GGUF file.
        backend: what computes: numpy in fp32, or torch in bf16.
        num_blocks: KV blocks of 16 tokens; 512 hold 8,192 tokens.
    """

    model: str = "smollm2-135m"
    backend: Literal["numpy", "torch"] = "numpy"
    num_blocks: int = 512


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """With what the data port serves https; both or neither.

    Attributes:
        cert_file: PEM file with the certificate and those between it and its authority.
        key_file: PEM file with its private key, not encrypted.
    """

    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class HeadstartConfig:
    """One gateway's configuration, complete and checked.

    Attributes:
        listen: data port.
        admin: admin port: metrics, health, replicas.
        workers: gateway processes that share the data port.
        tls: certificate of the data port; plain http without.
        admin_key: bearer token of the admin port; None only on a loopback address.
        data_dir: where records are kept.
        templates: folder of prompt templates; None without.
        engines: replicas to front; with no sources either, an embedded one is started.
        sources: where further replicas are found.
        tenants: who may use it; empty means no authentication.
        routing: which policy routes.
        prefix: how it is remembered what replicas hold.
        gossip: other gateways in front of the same engines.
        queue: when requests wait for a replica.
        upstream: deadlines and pool of the client that talks to the engines.
        health: how replicas are checked.
        limits: sizes of requests.
        recorder: batches and bounds of record keeping.
        metrics: bounds of the labels.
        embedded: the replica that is started without engines.
        request_log: where the JSON lines go.
        drain_s: how long open requests may go on after SIGTERM.
    """

    listen: Address
    admin: Address
    data_dir: Path
    workers: int = 1
    tls: TlsConfig = field(default_factory=TlsConfig)
    admin_key: str | None = field(default=None, repr=False)
    templates: Path | None = None
    engines: tuple[ReplicaConfig, ...] = ()
    sources: tuple[SourceEntry, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    gossip: GossipConfig = field(default_factory=GossipConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    upstream: UpstreamConfig = field(default_factory=UpstreamConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    limits: HttpLimits = field(default_factory=HttpLimits)
    recorder: RecorderConfig = field(default_factory=RecorderConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    embedded: EmbeddedConfig = field(default_factory=EmbeddedConfig)
    request_log: LogTarget = "-"
    drain_s: float = 30.0


SECTIONS: dict[str, type] = {
    "tls": TlsConfig,
    "routing": RoutingConfig,
    "prefix": PrefixConfig,
    "queue": QueueConfig,
    "upstream": UpstreamConfig,
    "health": HealthConfig,
    "limits": HttpLimits,
    "recorder": RecorderConfig,
    "metrics": MetricsConfig,
    "embedded": EmbeddedConfig,
}
"""Keys whose value is a component's dataclass, field by field."""

SCALARS = (
    "listen",
    "admin",
    "workers",
    "admin_key_env",
    "admin_key_file",
    "data_dir",
    "templates",
    "request_log",
    "drain_s",
)

LISTS = ("engines", "tenants")

ENGINE_KEYS = (
    "name",
    "url",
    "kind",
    "models",
    "api_key_env",
    "api_key_file",
    "ca_file",
    "kv_events",
    "tokenizer",
    "kv_capacity_tokens",
    "block_size",
)

TENANT_KEYS = ("name", "key_env", "key_file", "key_sha256", "business_line", "limits")

MAX_SECONDS = 1_000_000_000
"""Largest value of a key that ends in `_s`: timers and locks of the system refuse longer waits."""

AT_LEAST: dict[str, float] = {
    "workers": 1,
    "drain_s": 0,
    "routing.prefix_hash.leading_blocks": 1,
    "routing.prefix_hash.block_bytes": 1,
    "routing.expected_ttft.prefill_surcharge": 0,
    "routing.expected_ttft.load_weight": 0,
    "routing.expected_ttft.balance_weight": 0,
    "routing.expected_ttft.kv_weight": 0,
    "routing.expected_ttft.eviction_weight": 0,
    "routing.expected_ttft.tie_ratio": 0,
    "routing.expected_ttft.spread": 0,
    "routing.sglang_cache_aware.cache_threshold": 0,
    "routing.sglang_cache_aware.balance_abs_threshold": 0,
    "routing.sglang_cache_aware.balance_rel_threshold": 1,
    "routing.seed": 0,
    "routing.llm_d_weighted.prefix_weight": 0,
    "routing.llm_d_weighted.queue_weight": 0,
    "routing.llm_d_weighted.kv_weight": 0,
    "routing.dynamo_cost.prefill_scale": 0,
    "routing.dynamo_cost.overlap_credit": 0,
    "routing.dynamo_cost.credit_decay": 0,
    "routing.preble_e2.output_tokens": 0,
    "routing.preble_e2.balance_ratio": 1,
    "routing.preble_e2.replicate_ratio": 1,
    "routing.gorgo.rtt_weight": 0,
    "routing.gorgo.prefill_weight": 0,
    "routing.gorgo.queue_weight": 0,
    "routing.mooncake_conductor.transfer_tokens_per_s": 0,
    "routing.mooncake_conductor.balancing_threshold": 1,
    "prefix.speculative_s": 0,
    "prefix.default_capacity_tokens": 1,
    "prefix.default_block_size": 1,
    "prefix.max_entries": 1,
    "prefix.max_open": 1,
    "engines.kv_events.num_ranks": 1,
    "engines.tokenizer.sample_s": 0,
    "engines.kv_capacity_tokens": 1,
    "engines.block_size": 1,
    "queue.max_in_flight": 1,
    "queue.max_waiting": 0,
    "queue.max_waiting_bytes": 0,
    "queue.k": 1,
    "queue.quantum_tokens": 1,
    "upstream.max_idle": 0,
    "limits.max_header_bytes": 1024,
    "limits.max_body_bytes": 1024,
    "health.stall_s": 0,
    "health.slow_start_s": 0,
    "health.breaker.failures": 1,
    "health.breaker.window": 1,
    "recorder.batch": 1,
    "recorder.capacity": 1,
    "recorder.full_wait_s": 0,
    "recorder.close_s": 0,
    "metrics.max_label_values": 1,
    "metrics.max_series": 1,
    "embedded.num_blocks": 2,
    "tenants.limits.concurrent": 1,
    "tenants.limits.requests_per_minute": 1,
    "tenants.limits.input_tokens_per_minute": 1,
    "tenants.limits.least_priority": -100,
}
"""Smallest value of a number, by key; without `[index]`."""

MORE_THAN: dict[str, float] = {
    "routing.prefix_hash.load_bound": 1,
    "prefix.ttl_s": 0,
    "gossip.batch_s": 0,
    "gossip.silence_s": 1,
    "queue.max_wait_s": 0,
    "queue.age_s": 0,
    "queue.ttft_objective_s": 0,
    "routing.preble_e2.window_s": 0,
    "upstream.connect_s": 0,
    "upstream.first_byte_s": 0,
    "upstream.between_chunks_s": 0,
    "upstream.idle_s": 0,
    "limits.head_s": 0,
    "limits.body_s": 0,
    "limits.keep_alive_s": 0,
    "limits.stall_s": 0,
    "health.up_interval_s": 0,
    "health.down_interval_s": 0,
    "health.timeout_s": 0,
    "health.breaker.failure_ratio": 0,
    "health.breaker.open_s": 0,
    "health.breaker.max_open_s": 0,
    "recorder.flush_s": 0,
}
"""What a number must exceed, by key."""
