"""What the gateway lets others see of itself: the admin API reads this and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headstart.gateway.cache_status import CacheStatus, ShadowStatus
from headstart.gateway.gossip.statistics import GossipStatistics
from headstart.gateway.limits import LimitUse


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica at one moment.

    Attributes:
        name: its name in configuration.
        url: where it is.
        kind: which engine.
        models: names it serves, sorted; empty while unknown.
        is_available: requests may be sent to it now.
        reason: why not, in words for people; empty if it is available.
        in_flight: requests sent to it that are not finished.
        in_flight_bytes: their prompt bytes.
        idle_connections: kept connections that wait for a request.
        connections: all open connections to it.
        state: one word for its health, see `routing.health.HealthState`.
        weight: its share of the load, 0..1; below 1 while its cache is cold.
        transitions: how often it came to each state.
        cache: what is known of its KV cache; None if no index is asked.
    """

    name: str
    url: str
    kind: str
    models: tuple[str, ...]
    is_available: bool
    reason: str
    in_flight: int
    in_flight_bytes: int
    idle_connections: int
    connections: int = 0
    state: str = ""
    weight: float = 1.0
    transitions: Mapping[str, int] = field(default_factory=dict)
    cache: CacheStatus | None = None


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """A gateway at one moment, or the sum of those that share a port.

    Attributes:
        is_draining: new requests are refused.
        is_ready: requests can be taken, and a replica can be used.
        num_open_requests: requests accepted and not yet answered completely.
        num_client_connections: open connections of clients.
        replicas: every configured replica, in the order of the configuration.
        num_waiting: requests that wait for a replica.
        num_waiting_bytes: their bodies together.
        limits: what each tenant with limits has in use.
        shadows: what other policies would have done.
        gossip: what was told to other gateways and heard of them, by process; empty if it is alone.
    """

    is_draining: bool
    is_ready: bool
    num_open_requests: int
    num_client_connections: int
    replicas: tuple[ReplicaStatus, ...]
    num_waiting: int = 0
    num_waiting_bytes: int = 0
    limits: tuple[LimitUse, ...] = ()
    shadows: tuple[ShadowStatus, ...] = ()
    gossip: Mapping[str, GossipStatistics] = field(default_factory=dict)


class GatewayState(Protocol):
    """Read-only view of a running gateway."""

    @property
    def is_draining(self) -> bool:
        """New requests are refused."""
        ...

    @property
    def is_ready(self) -> bool:
        """At least one replica is available and the gateway is not draining."""
        ...

    @property
    def num_open_requests(self) -> int:
        """Requests accepted and not yet answered completely."""
        ...

    @property
    def num_client_connections(self) -> int:
        """Open connections of clients."""
        ...

    def replicas(self) -> Sequence[ReplicaStatus]:
        """Return every configured replica's status, in the order of the configuration."""
        ...
