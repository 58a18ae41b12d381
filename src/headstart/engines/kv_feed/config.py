"""Where a replica's KV events come from, and how the feed reads them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """One replica's publishers, said by the operator; nothing is asked of the engine then.

    Attributes:
        endpoint: ZMQ address of rank 0, e.g. `tcp://10.0.0.7:5557`; the host `*` is the replica's
            own. `ipc://` is allowed.
        replay_endpoint: address of its replay socket; None cannot repair a gap.
        topic: prefix of the topics to read.
        num_ranks: data-parallel ranks; each adds its number to both ports.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    num_ranks: int = 1


@dataclass(frozen=True, slots=True)
class KvFeedConfig:
    """How the feed asks, reads and repairs.

    Attributes:
        ask_s: deadline of a question to the engine.
        retry_s: between questions that found no answer, and after a lost connection; where a
            publisher is, is asked at growing intervals, up to `max_retry_s`.
        max_retry_s: the longest of these intervals.
        capacity_s: between looks at the engine's capacity; it changes only with a restart.
        receive_hwm: messages that may wait for us; beyond, the publisher drops, and we replay.
        max_message_bytes: a longer one ends the connection.
        slice_s: reading goes on for so long before others have their turn.
        silence_s: after so long without a message the publisher is asked whether it sent any: the
            last ones before a pause may be lost, and no gap in the numbers would show it.
        heartbeat_s: between pings of the connection. One that is not answered for twice as long
            ends it, so that a cut which no packet announces is noticed in time.
        replay_idle_s: a replay that brings nothing for so long has failed.
        replay_s: deadline of a whole replay.
        replay_pause_s: after a replay that failed, doubled each time up to `replay_max_pause_s`.
        replay_max_pause_s: the longest of these pauses.
    """

    ask_s: float = 5.0
    retry_s: float = 1.0
    max_retry_s: float = 10.0
    capacity_s: float = 60.0
    receive_hwm: int = 10_000
    max_message_bytes: int = 64 * 1024 * 1024
    slice_s: float = 0.0015
    silence_s: float = 5.0
    heartbeat_s: float = 0.5
    replay_idle_s: float = 2.0
    replay_s: float = 60.0
    replay_pause_s: float = 0.1
    replay_max_pause_s: float = 10.0
