"""`Relay`: workers of several hosts hear each other through their supervisors."""

import contextlib

import pytest
from gossip_nodes import Node, free_endpoint, started

from gossip_sides import own, prompt_of, remote
from headstart.errors import ConfigError
from headstart.gateway.gossip.links import socket_folder, worker_links
from headstart.gateway.gossip.relay import Relay
from headstart.routing.gossip.config import GossipConfig
from headstart.routing.load import RemoteLoad
from loopback import eventually

KEY = "a shared secret of gateways"


@contextlib.asynccontextmanager
async def hosts(num_hosts, num_workers, keys):
    """Supervisors' relays and all their workers, by host."""
    endpoints = tuple(free_endpoint() for _ in range(num_hosts))
    with contextlib.ExitStack() as folders:
        relays, nodes = [], []
        for host, key in zip(range(num_hosts), keys, strict=True):
            folder = folders.enter_context(socket_folder())
            relays.append(Relay(folder, num_workers, GossipConfig(endpoints[host], endpoints, key)))
            nodes.append(
                [
                    Node(
                        f"h{host}/{index}", worker_links(folder, index, num_workers, has_peers=True)
                    )
                    for index in range(num_workers)
                ]
            )
        async with started(*relays, *(node for each in nodes for node in each)):
            yield relays, nodes


async def test_every_worker_hears_every_other_once():
    """On its own host and on others; a supervisor that hears itself does no harm."""
    async with hosts(2, 2, [KEY, KEY]) as (relays, by_host):
        nodes = [node for host in by_host for node in host]
        await eventually(lambda: all(node.figures.num_peers == 3 for node in nodes))
        speaker = nodes[0]
        speaker.requests.send(speaker.replicas[0], prompt_of("x"), uncached=3)
        for node in nodes[1:]:
            await eventually(lambda n=node: remote(n.replicas[0]) == own(speaker.replicas[0]))
            await eventually(lambda n=node: n.index.heard)
        assert remote(speaker.replicas[0]) == RemoteLoad()
        assert all(len(node.index.heard) == 1 for node in nodes[1:])
        assert [relay.statistics().num_refused for relay in relays] == [0, 0]


async def test_another_hosts_wrong_key_is_counted_and_the_own_workers_still_hear_each_other():
    """A host that is left out works on its own."""
    async with hosts(2, 2, [KEY, "another secret of gateways"]) as (relays, by_host):
        await eventually(lambda: all(relay.statistics().num_refused for relay in relays))
        nodes = [node for host in by_host for node in host]
        await eventually(lambda: all(node.figures.num_peers == 1 for node in nodes))


async def test_an_address_that_is_taken_is_a_configuration_error():
    """When the supervisor starts, and not later."""
    async with hosts(1, 1, [None]) as (relays, _):
        listen = relays[0]._outer_links.binds[0]
        with socket_folder() as folder:
            second = Relay(folder, 1, GossipConfig(listen, (listen,)))
            with pytest.raises(ConfigError, match="gossip cannot listen"):
                second.start()
            await second.close()
