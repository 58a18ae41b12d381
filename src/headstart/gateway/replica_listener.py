"""Who follows replicas as they come, change and go: indexes, event feeds, the waiting room."""

from typing import Protocol

from headstart.engines.base import ReplicaConfig
from headstart.engines.origin import Origin
from headstart.routing.replica import Replica


class ReplicaListener(Protocol):
    """Who keeps something for each replica.

    It is kept by `Replica` or by slot, and not by name: while one that has moved to another URL
    ends its requests, two have the same.
    """

    def replica_added(self, replica: Replica, config: ReplicaConfig, origin: Origin) -> None:
        """Hear of a new replica, before it is sent anything; its slot may have been another's."""
        ...

    def replica_changed(self, replica: Replica, config: ReplicaConfig, origin: Origin) -> None:
        """Hear that a replica's models, key or CA file have changed; it holds what it held."""
        ...

    def replica_returned(self, replica: Replica) -> None:
        """Hear that a replica was down and answers again: it may be another process."""
        ...

    def replica_removed(self, replica: Replica) -> None:
        """Hear that a replica is gone for good, after its last request has ended."""
        ...
