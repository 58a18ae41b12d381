"""What the supervisor and a worker say to each other."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headstart import __version__
from headstart.accounting.metrics import MetricsSnapshot
from headstart.accounting.recorder import RecorderStatistics
from headstart.config.schema import HeadstartConfig
from headstart.engines.base import ReplicaConfig
from headstart.errors import ConfigError
from headstart.gateway.process import ProcessStatus
from headstart.gateway.state import GatewayStatus


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """All that a worker needs; the first thing that it is sent.

    By value and through the socket pair, because it holds the engines' keys, which neither a
    command line nor the environment may show.

    Attributes:
        index: which worker it is, 0 .. `num_workers` - 1.
        num_workers: how many share the port.
        config: as loaded.
        replicas: what it fronts; the embedded one, if the supervisor started it.
        drained: names of the replicas that an operator has drained.
        listeners: descriptors of the data port's sockets.
        memory: descriptor of the memory that all workers share.
        log_lock: descriptor of the file that is locked around writes to the request log.
        gossip_folder: where workers' sockets are, over which they tell each other what they do.
    """

    index: int
    num_workers: int
    config: HeadstartConfig
    replicas: tuple[ReplicaConfig, ...]
    drained: frozenset[str]
    listeners: tuple[int, ...]
    memory: int
    log_lock: int
    gossip_folder: Path

    def encode(self) -> bytes:
        """Write it down for the same program to read."""
        # Pickled, because it is made of every component's dataclasses, and both ends are the same
        # program and user on one machine. All that follows comes and goes as MessagePack.
        return b"%b\n%b" % (__version__.encode(), pickle.dumps(self))

    @staticmethod
    def decode(data: bytes) -> "WorkerStart":
        """Read what `encode` wrote.

        Raises:
            ConfigError: another version did: headstart was upgraded under a running supervisor.
        """
        version, _, pickled = data.partition(b"\n")
        if version.decode() != __version__:
            raise ConfigError(
                f"headstart {__version__} is installed, and the supervisor is of "
                f"{version.decode()}; restart the service"
            )
        start = pickle.loads(pickled)  # noqa: S301 -- from our own parent process
        assert isinstance(start, WorkerStart)
        return start


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """To a worker: report now."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """To a worker: refuse new requests, finish the open ones, end."""


class Hurry(msgspec.Struct, frozen=True, tag="hurry"):
    """To a worker: cut off what is open, and end."""


class SetReplicaDraining(msgspec.Struct, frozen=True, tag="set_replica_draining"):
    """To a worker: send a replica no new requests, or use it again."""

    name: str
    is_draining: bool


class SetReplicas(msgspec.Struct, frozen=True, tag="set_replicas"):
    """To a worker: front these from now on.

    Attributes:
        replicas: all that there should be.
        cut: names of those that do not get the time to finish what they were sent.
    """

    replicas: tuple[ReplicaConfig, ...]
    cut: tuple[str, ...] = ()


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """From a worker: it takes requests."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """From a worker: it cannot start, or not go on."""

    message: str


class Report(msgspec.Struct, frozen=True, tag="report"):
    """From a worker: its figures since its start; of the series those that changed.

    Attributes:
        is_answer: it was asked for.
        gateway: its connections, open requests and replicas.
        requests: combinations of label values that have changed since the report before.
        recorder: what became of its records.
        process: what it uses.
    """

    is_answer: bool
    gateway: GatewayStatus
    requests: MetricsSnapshot
    recorder: RecorderStatistics
    process: ProcessStatus


ToWorker = Ask | Drain | Hurry | SetReplicaDraining | SetReplicas
FromWorker = Ready | Failed | Report
