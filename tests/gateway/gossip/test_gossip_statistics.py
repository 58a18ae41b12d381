"""`gossip_families`: every figure is in a family, by process."""

import msgspec
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest

from headstart.gateway.gossip.statistics import GossipStatistics, gossip_families


class Source:
    def __init__(self, *processes):
        self.processes = processes

    def collect(self):
        return gossip_families(self.processes)


def test_every_figure_of_every_process_is_shown():
    """None is forgotten, and none of one process for another's."""
    names = [field.name for field in msgspec.structs.fields(GossipStatistics)]
    numbers = range(101, 101 + len(names))
    registry = CollectorRegistry()
    registry.register(
        Source(
            ("worker-0", GossipStatistics(*numbers)),
            ("worker-1", GossipStatistics(*(1000 + number for number in numbers))),
        )
    )
    lines = generate_latest(registry).decode().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    first = sorted(float(line.split()[-1]) for line in samples if 'process="worker-0"' in line)
    second = sorted(float(line.split()[-1]) for line in samples if 'process="worker-1"' in line)
    assert first == [float(number) for number in numbers]
    assert second == [1000.0 + number for number in numbers]
