"""Whom a request is counted for, and what may be spent on that account."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Ceilings of one tenant; None leaves a figure unlimited.

    Attributes:
        concurrent: requests open at the same time, >= 1.
        requests_per_minute: requests begun in any 60 s, >= 1.
        input_tokens_per_minute: prompt tokens, cached ones included, in any 60 s, >= 1.
        least_priority: in the queue, -100..100; the less, the earlier. Its requests can ask for
            any that is not less.
    """

    concurrent: int | None = None
    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    least_priority: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the gateway, known by the hash of its key.

    Attributes:
        name: unique; appears in records and metrics.
        key_sha256: 32 bytes, SHA-256 of the API key; the key itself is never kept. Empty for the
            one tenant of a gateway without authentication.
        business_line: free label for cost reports; empty if there is none.
        limits: ceilings on its traffic.
    """

    name: str
    key_sha256: bytes = field(default=b"", repr=False)
    business_line: str = ""
    limits: TenantLimits = field(default_factory=TenantLimits)


DEFAULT_TENANT = Tenant(name="default")
"""Owner of every request while no tenants are configured."""

UNKNOWN_TENANT = Tenant(name="")
"""Owner of a request whose key no tenant has: nobody's account is charged."""
