"""What an experiment holds fixed, and what it varies."""

from dataclasses import dataclass, field
from typing import Literal

from headstart.routing.config import PolicyName, RoutingConfig
from headstart.simulator.cost import MISTRAL_7B_A100, CostModel

Knowledge = Literal["events", "approximate"]
"""`events` is exact but late; `approximate` is the gateway's index of what it has sent."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The fleet of an experiment, and how its runs are measured.

    Attributes:
        num_replicas: >= 1.
        kv_tokens: that each replica's cache holds.
        cost: how long steps take.
        token_budget: new tokens in a step, at most.
        max_num_seqs: requests that a replica runs at the same time.
        num_gateways: >= 1; each knows what it sent itself, and what events say.
        event_delay_s: from a change in a cache to gateways' knowing of it.
        is_pinned: a session stays with one gateway.
        knowledge: what gateways know of caches: events, or what they sent there themselves.
        gossip_s: gateways tell each other what they dispatched, so much later; 0: they do not.
        routing: parameters of policies; the policy it names is not used.
        warmup_ratio: share of the requests, the first, that no figure counts, 0..1.
        objective_s: TTFT within which an answer is good.
        is_open_loop: requests are sent when they are due, though the one before them in their
            session has no answer yet; else they wait for it, and cannot overload a fleet for long.
        gap_scale: factor on the gaps within sessions of a trace without times.
    """

    num_replicas: int = 8
    kv_tokens: int = 307_328
    cost: CostModel = MISTRAL_7B_A100
    token_budget: int = 2048
    max_num_seqs: int = 256
    num_gateways: int = 1
    event_delay_s: float = 0.0
    is_pinned: bool = False
    knowledge: Knowledge = "events"
    gossip_s: float = 0.0
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    warmup_ratio: float = 0.1
    objective_s: float = 1.0
    is_open_loop: bool = False
    gap_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of an experiment.

    Attributes:
        policy: that routes.
        rate: requests per second; None: as recorded.
        seed: of arrivals and of whatever is drawn.
    """

    policy: PolicyName
    rate: float | None
    seed: int = 0
