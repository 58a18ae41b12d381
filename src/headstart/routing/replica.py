"""One engine process with its own KV cache, as the router sees it."""

from enum import Enum
from math import inf

from headstart.routing.load import ReplicaLoad


class Standing(Enum):
    """Whether a replica may be chosen."""

    USABLE = "usable"
    TRIAL = "trial"
    """For one request, which shows whether it works again."""
    LAST_RESORT = "last_resort"
    """Only if no other can be: it may work, and refusing the request would be worse."""
    OUT = "out"


class Replica:
    """Load and standing of one replica; the router's only mutable state about it.

    Attributes:
        name: unique within the gateway.
        slot: unique among the replicas that there are, small, and given away again later: indexes
            use it as the number of a bit.
        models: names it serves; empty until its engine has said.
        load: what it has to do, requests of other gateways included.
        in_flight: requests sent to it from here that are not finished.
        in_flight_bytes: their prompt bytes, a stand-in for assigned tokens.
        standing: whether it may be chosen; changed through the fleet only.
        is_available: its standing is USABLE.
        weight: its share of the load, 0 < weight <= 1; below 1 while its cache is cold.
        is_suspect: its health wants to hear of successes too, and not of failures alone.
        has_progressed: it generated something since whoever watches it set this to False.
        max_in_flight: requests that it is sent at the same time.
    """

    __slots__ = (
        "has_progressed",
        "in_flight",
        "in_flight_bytes",
        "is_available",
        "is_suspect",
        "load",
        "max_in_flight",
        "models",
        "name",
        "slot",
        "standing",
        "weight",
    )

    def __init__(self, name: str, models: frozenset[str] = frozenset(), slot: int = 0) -> None:
        self.name = name
        self.slot = slot
        self.models = models
        self.load = ReplicaLoad()
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.standing = Standing.USABLE
        self.is_available = True
        self.weight = 1.0
        self.is_suspect = False
        self.has_progressed = False
        self.max_in_flight: float = inf

    @property
    def has_room(self) -> bool:
        """One more request may be sent to it."""
        return self.in_flight < self.max_in_flight

    def begin(self, prompt_bytes: int) -> None:
        """Count a request in."""
        self.in_flight += 1
        self.in_flight_bytes += prompt_bytes

    def end(self, prompt_bytes: int) -> None:
        """Count the same request out; `prompt_bytes` as given to `begin`."""
        self.in_flight -= 1
        self.in_flight_bytes -= prompt_bytes
        assert self.in_flight >= 0
        assert self.in_flight_bytes >= 0

    def __repr__(self) -> str:
        return f"Replica({self.name!r}, in_flight={self.in_flight})"
