"""What the monitor knows of one replica."""

import asyncio
from dataclasses import dataclass, field
from math import inf

from headstart.engines.base import ReplicaConfig
from headstart.engines.upstream import UpstreamPool
from headstart.gateway.probe import Probe
from headstart.routing.health import HealthState, ReplicaHealth
from headstart.routing.replica import Replica
from headstart.types import JsonObject


@dataclass(slots=True, eq=False)
class Watched:
    """One replica, what was found out about it, and what is at work to find out more.

    Attributes:
        replica: the router's view of it.
        config: the operator's.
        pool: the connections of requests.
        probe: asks it.
        health: collects the facts.
        models: the entries of its own list, by name.
        is_late: its last check was not answered in time.
        has_shown_life: a byte of an answer came since the last check.
        silent_since: when it was last known to be getting on, if it owes bytes.
        looked_at: when it was last looked at closely.
        state: the last one that was told.
        transitions: how often it came to each state.
        wake: set to check it now.
        is_checked: set once the first check has ended.
        doubt: set to have it proved.
        tasks: that check and prove it.
    """

    replica: Replica
    config: ReplicaConfig
    pool: UpstreamPool
    probe: Probe
    health: ReplicaHealth
    models: dict[str, JsonObject] = field(default_factory=dict)
    is_late: bool = False
    has_shown_life: bool = False
    silent_since: float | None = None
    looked_at: float = -inf
    state: HealthState = HealthState.DOWN
    transitions: dict[HealthState, int] = field(
        default_factory=lambda: dict.fromkeys(HealthState, 0)
    )
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_checked: asyncio.Event = field(default_factory=asyncio.Event)
    doubt: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: tuple[asyncio.Task[None], ...] = ()

    @property
    def trial_model(self) -> str:
        """A model to try it out with: its own first one, which is no adapter; empty without any."""
        return next(iter((*self.models, *self.config.models)), "")
