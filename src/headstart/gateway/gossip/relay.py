"""The supervisor's part: carries messages between its workers and other hosts, unread.

So there is one connection to each host whatever the number of workers, and one address to
configure. What workers say to each other does not pass here.
"""

import asyncio
from pathlib import Path

from headstart.gateway.gossip.links import Links, peer_links, relay_links
from headstart.gateway.gossip.sockets import Hub
from headstart.gateway.gossip.statistics import GossipStatistics
from headstart.routing.gossip.config import GossipConfig


class Relay:
    """Two hubs, each of which says what the other hears.

    Args:
        folder: of the workers' sockets.
        num_workers: how many there are.
        config: with peers.
    """

    def __init__(self, folder: Path, num_workers: int, config: GossipConfig) -> None:
        self._inner = Hub(self._take_out)
        self._outer = Hub(self._take_in)
        self._inner_links: Links = relay_links(folder, num_workers)
        self._outer_links: Links = peer_links(config)

    def statistics(self) -> GossipStatistics:
        """Return how many connections from or to other hosts failed; it counts nothing else."""
        return GossipStatistics(num_refused=self._outer.num_refused)

    def start(self) -> None:
        """Begin, within the loop; close it also where this fails.

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._inner.start(self._inner_links)
        self._outer.start(self._outer_links)

    async def close(self) -> None:
        """End; what is on its way is lost."""
        contexts = [hub.close() for hub in (self._outer, self._inner)]
        for context in contexts:
            await asyncio.to_thread(context.term)

    def _take_out(self, message: bytes) -> None:
        self._outer.send(message)

    def _take_in(self, message: bytes) -> None:
        self._inner.send(message)
