"""What the gateway must be told about an engine before it can talk to it."""

from dataclasses import dataclass, field
from typing import Literal

EngineKind = Literal["vllm", "sglang", "openai", "anthropic", "embedded", "openai-compatible"]


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
    """

    name: str
    url: str
    kind: EngineKind = "openai-compatible"
    models: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    ca_file: str | None = None


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
    """How often a replica is asked whether it is there.

    Attributes:
        up_interval_s: between checks of a replica that answered the last one.
        down_interval_s: between checks of one that did not; short, so that a replica that returns
            is in use within two seconds.
        timeout_s: a check that takes longer has failed; a replica that sent anything since the
            check before is given a second one.
    """

    up_interval_s: float = 5.0
    down_interval_s: float = 1.0
    timeout_s: float = 5.0
