"""What became of the gossip of one process, for people."""

from collections.abc import Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class GossipStatistics(msgspec.Struct, frozen=True):
    """What one process told and heard since its start; all but the first only grow.

    Attributes:
        num_peers: processes that are heard now, other workers of this host included.
        num_sent: messages told.
        num_sent_bytes: their bytes.
        num_received: messages taken in.
        num_lost: messages that peers must have sent and that never came.
        num_late: messages left alone because they came late or twice.
        num_unreadable: messages that this version cannot read.
        num_refused: connections that failed: another key, or none, or no gateway.
        num_dropped: prompts and outcomes that were not told, or not taken in, because too many
            came at once.
        num_strange: prompts sent to replicas that this process does not know by that name and
            address.
    """

    num_peers: int = 0
    num_sent: int = 0
    num_sent_bytes: int = 0
    num_received: int = 0
    num_lost: int = 0
    num_late: int = 0
    num_unreadable: int = 0
    num_refused: int = 0
    num_dropped: int = 0
    num_strange: int = 0


_FATES = (
    ("num_sent", "sent"),
    ("num_received", "received"),
    ("num_lost", "lost"),
    ("num_late", "late"),
    ("num_unreadable", "unreadable"),
)

_COUNTERS = (
    ("num_sent_bytes", "sent_bytes", "Bytes of the messages that the process has sent."),
    (
        "num_refused",
        "refused",
        "Connections of peers that failed: another key, or none, or no gateway.",
    ),
    (
        "num_dropped",
        "dropped",
        "Prompts that were not told, or not taken in, because too many came at once.",
    ),
    (
        "num_strange",
        "strange",
        "Prompts that peers sent to replicas that are not configured here, or differently.",
    ),
)


def gossip_families(processes: Sequence[tuple[str, GossipStatistics]]) -> Sequence[Metric]:
    """Build the metric families.

    Args:
        processes: names and figures of those that gossip.
    """
    peers = GaugeMetricFamily(
        "headstart_gossip_peers",
        "Other gateway processes that the process hears, workers of the same host included.",
        labels=("process",),
    )
    messages = CounterMetricFamily(
        "headstart_gossip_messages",
        "Messages by what became of them; starts at 0 again with a replaced worker.",
        labels=("process", "fate"),
    )
    for name, figures in processes:
        peers.add_metric((name,), figures.num_peers)
        for field, fate in _FATES:
            messages.add_metric((name, fate), getattr(figures, field))
    families: list[Metric] = [peers, messages]
    for field, family_name, documentation in _COUNTERS:
        family = CounterMetricFamily(
            f"headstart_gossip_{family_name}", documentation, labels=("process",)
        )
        for name, figures in processes:
            family.add_metric((name,), getattr(figures, field))
        families.append(family)
    return families
