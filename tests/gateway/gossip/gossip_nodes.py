"""Gossiping processes in one process, over real sockets."""

import contextlib
import random
import socket

from gossip_sides import HeardIndex, Requests
from headstart.gateway.gossip.links import Links
from headstart.gateway.gossip.mesh import Gossip
from headstart.gateway.gossip.plan import GossipPlan
from headstart.routing.replica import Replica

NAMES = ("r0", "r1")


class Node:
    """One process's gossip, with two replicas."""

    def __init__(self, name: str, links: Links, *, silence_s: float = 60.0) -> None:
        self.index = HeardIndex()
        self.replicas = [Replica(each, slot=slot) for slot, each in enumerate(NAMES)]
        self.links = links
        self.gossip = Gossip(GossipPlan(name, links, 0.005, silence_s), self.index)
        self.requests = Requests(self.gossip.observer)
        for replica in self.replicas:
            self.gossip.add_replica(replica, f"http://{replica.name}:8000")

    @property
    def figures(self):
        return self.gossip.statistics()

    def vanish(self) -> None:
        """End as a killed process does: without a word."""
        self.gossip._send = lambda _batch: None

    def drop_messages(self, share: float) -> None:
        """Lose so many of the messages from here, chosen at random."""
        rng, send = random.Random(1), self.gossip._hub.send
        self.gossip._hub.send = lambda data: None if rng.random() < share else send(data)


@contextlib.asynccontextmanager
async def started(*nodes):
    """Start them in order, and close them in the end."""
    try:
        for node in nodes:
            (node.gossip if isinstance(node, Node) else node).start()
        yield nodes
    finally:
        for node in nodes:
            await (node.gossip if isinstance(node, Node) else node).close()


def free_endpoint() -> str:
    """A loopback endpoint that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
