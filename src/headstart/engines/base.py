"""What the gateway must be told about an engine before it can talk to it."""

from dataclasses import dataclass, field
from typing import Final, Literal

from headstart.engines.kv_feed.config import KvEventsConfig
from headstart.engines.tokenizers.config import TokenizerConfig
from headstart.routing.breaker import BreakerConfig

EngineKind = Literal["vllm", "sglang", "openai", "anthropic", "embedded", "openai-compatible"]

OWN_KINDS: Final = frozenset({"vllm", "sglang", "embedded"})
"""Engines that the operator runs: a token asked of them is free, and they count their work."""

OWN_MAKERS: Final = frozenset({"vllm", "sglang", "headstart"})
"""Who such an engine says owns its models, by which one of another kind is known as well."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Address and identity of one engine process.

    Attributes:
        name: unique within the gateway; routing hashes it, so renaming moves prefixes.
        url: `http://` or `https://` with host, optional port and optional path prefix.
        kind: which engine answers there.
        models: names it serves; empty means "what its GET /v1/models says".
        api_key: bearer token for the engine; replaces the client's Authorization.
        ca_file: PEM file of authorities to trust for `https://` instead of the system's.
        kv_events: where it publishes KV events; None asks it.
        tokenizer: of its model; None leaves its prompts' tokens unknown, and with them what its
            events say.
        kv_capacity_tokens: of its cache; None takes what its metrics say.
        block_size: tokens per block; None takes what its metrics say.
    """

    name: str
    url: str
    kind: EngineKind = "openai-compatible"
    models: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    kv_events: KvEventsConfig | None = None
    tokenizer: TokenizerConfig | None = None
    kv_capacity_tokens: int | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """Deadlines and pool size of the client that talks to the engines.

    Attributes:
        connect_s: for the TCP and TLS handshakes.
        first_byte_s: from the request's last byte to the response's first; long, because a
            non-streaming engine is silent until it has generated everything.
        between_chunks_s: from one piece of the response to the next.
        idle_s: a kept connection unused for longer is closed. Below the 5 s after which uvicorn,
            the server of vLLM and SGLang, closes its side: reusing one at that moment would lose
            the request.
        max_idle: connections kept per replica.
    """

    connect_s: float = 5.0
    first_byte_s: float = 600.0
    between_chunks_s: float = 120.0
    idle_s: float = 4.0
    max_idle: int = 256


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """How a replica is found unfit, and how it returns.

    Attributes:
        up_interval_s: between checks of a replica that answered the last one.
        down_interval_s: between checks of one that did not; short, so that a replica that returns
            is in use within two seconds.
        timeout_s: a check that takes longer has failed; a replica that sent anything since the
            check before is given a second one.
        stall_s: a replica that owes answers and of which nothing moves for so long has stalled.
            Longer than any step of an engine: 2,048 tokens of prefill take 9 s on a processor
            without bfloat16, and 1 s or less on what most engines run on. 0 looks at none.
        slow_start_s: from a return to the full share of requests. Its cache is cold then and all
            its prefixes would come at once; long enough to prefill the most used of them.
        breaker: which failures are too many.
    """

    up_interval_s: float = 5.0
    down_interval_s: float = 1.0
    timeout_s: float = 5.0
    stall_s: float = 10.0
    slow_start_s: float = 10.0
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
