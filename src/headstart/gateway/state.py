"""What the gateway lets others see of itself: the admin API reads this and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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
