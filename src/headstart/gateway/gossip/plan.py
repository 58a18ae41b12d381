"""What a process needs to gossip, by how it was started."""

from dataclasses import dataclass
from pathlib import Path

from headstart.gateway.gossip.links import (
    Links,
    peer_links,
    sender_name,
    unique_place,
    worker_links,
)
from headstart.routing.gossip.config import GossipConfig


@dataclass(frozen=True, slots=True)
class GossipPlan:
    """One process's name, whom it hears, and how quick it is.

    Attributes:
        sender: its name, which no other process has at the same time.
        links: to those that are to be heard.
        batch_s: from the first thing to tell to the message.
        silence_s: after which a peer's load is forgotten.
    """

    sender: str
    links: Links
    batch_s: float
    silence_s: float


def plan_alone(config: GossipConfig) -> GossipPlan | None:
    """Return the plan of a gateway of one process; None if it has no peers."""
    if not config.has_peers:
        return None
    name = sender_name(unique_place())
    return GossipPlan(name, peer_links(config), config.batch_s, config.silence_s)


def plan_worker(config: GossipConfig, folder: Path, index: int, num_workers: int) -> GossipPlan:
    """Return the plan of a worker; the one that replaces it has the same name.

    Args:
        config: of the gateway.
        folder: of the workers' sockets, whose name no other supervisor's has.
        index: which worker it is, 0 .. `num_workers` - 1.
        num_workers: how many there are.
    """
    return GossipPlan(
        sender_name(f"{folder.name}/{index}"),
        worker_links(folder, index, num_workers, has_peers=config.has_peers),
        config.batch_s,
        config.silence_s,
    )
