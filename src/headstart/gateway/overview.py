"""What the admin port shows, as values, and where it gets them.

With one gateway process the source is that process; with several it is their supervisor, which
asks each of them and sums.
"""

from dataclasses import dataclass
from typing import Protocol

from headstart.accounting.metrics import MetricsSnapshot, RequestMetrics
from headstart.accounting.recorder import Recorder, RecorderStatistics
from headstart.engines.discovery.roster import Roster
from headstart.gateway.gateway import Gateway
from headstart.gateway.process import ProcessStatus, process_status
from headstart.gateway.state import GatewayStatus


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One of several gateway processes, as its supervisor sees it.

    Attributes:
        name: `worker-0`, `worker-1` …; a replacement has the name of the one that ended.
        is_up: it takes requests.
        report_age_s: since its figures were taken; grows while it hangs or is being replaced.
        restarts: how often it was replaced.
    """

    name: str
    is_up: bool
    report_age_s: float
    restarts: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that `/metrics` shows.

    Attributes:
        gateway: connections, open requests and replicas.
        requests: the figures over finished requests.
        recorder: what became of the records.
        processes: each process of the gateway.
        workers: each of several gateway processes; empty if there is but one.
    """

    gateway: GatewayStatus
    requests: MetricsSnapshot
    recorder: RecorderStatistics
    processes: tuple[ProcessStatus, ...]
    workers: tuple[WorkerStatus, ...] = ()


class AdminSource(Protocol):
    """Whom the admin port asks."""

    async def status(self) -> GatewayStatus:
        """Return the gateway's present state."""
        ...

    async def overview(self) -> Overview:
        """Return all figures; they are copies that any thread may read."""
        ...

    async def set_replica_draining(self, name: str, *, is_draining: bool) -> None:
        """Send a replica no new requests, or use it again; holds for every worker.

        Raises:
            NotFound: there is no such replica.
        """
        ...

    def roster(self) -> Roster:
        """Return the list of replicas, to which the operator can add and from which remove."""
        ...


class LocalSource:
    """The gateway in this process.

    Args:
        gateway: whose state is shown.
        metrics: the counters over requests.
        recorder: for its statistics.
        roster: the list that the gateway is given; None if nothing but the operator changes it.
    """

    def __init__(
        self,
        gateway: Gateway,
        metrics: RequestMetrics,
        recorder: Recorder,
        roster: Roster | None = None,
    ) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._recorder = recorder
        self._roster = roster or Roster(gateway.replica_configs(), gateway.set_replicas)

    async def status(self) -> GatewayStatus:
        """Return the gateway's present state."""
        return self._gateway.status()

    async def overview(self) -> Overview:
        """Copy all figures, on the event loop, where they change."""
        return Overview(
            gateway=self._gateway.status(),
            requests=self._metrics.snapshot(),
            recorder=self._recorder.statistics(),
            processes=(process_status("gateway"),),
        )

    async def set_replica_draining(self, name: str, *, is_draining: bool) -> None:
        """Send a replica no new requests, or use it again.

        Raises:
            NotFound: there is no such replica.
        """
        if is_draining:
            self._gateway.drain_replica(name)
        else:
            self._gateway.resume_replica(name)

    def roster(self) -> Roster:
        """Return the list of replicas."""
        return self._roster
