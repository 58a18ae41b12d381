"""What every request works with, and the sides that it talks to."""

from dataclasses import dataclass
from typing import Protocol

from headstart.accounting.record import RequestRecord
from headstart.clock import Clock
from headstart.engines.upstream import Call, UpstreamPool
from headstart.errors import UpstreamError
from headstart.gateway.auth import Authenticator
from headstart.gateway.limits import TenantLimiter
from headstart.gateway.prepare import Preparer
from headstart.gateway.token_side import TokenSide
from headstart.gateway.waiting import WaitingRoom
from headstart.routing.fleet import Fleet
from headstart.routing.replica import Replica
from headstart.routing.router import Router


class RecordSink(Protocol):
    """Where finished requests are written down (`accounting.recorder.Recorder`)."""

    def record(self, record: RequestRecord) -> None:
        """Take one record without blocking."""
        ...


class ReplicaWatch(Protocol):
    """Who judges replicas by what becomes of requests (`monitor.Monitor`)."""

    def answered(self, replica: Replica, status: int) -> None:
        """Hear of an answer; one below 500 need only be told while `replica.is_suspect`."""
        ...

    def failed(self, replica: Replica, call: Call, error: UpstreamError) -> None:
        """Hear that a call to it failed."""
        ...

    def trial_begun(self, replica: Replica) -> None:
        """Hear that a request goes to a replica that is on trial."""
        ...

    def trial_ended(self, replica: Replica) -> None:
        """Hear that this request has ended, whether or not an answer came."""
        ...


class ClientPort(Protocol):
    """The client's side of an exchange (`connection.ClientConnection`)."""

    @property
    def is_write_paused(self) -> bool:
        """The client is slow already, before the response has begun."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes to the client; without effect once it has left."""
        ...

    def finished(self, *, closes: bool) -> None:
        """Hear that the response is complete; `closes` asks for the connection's end."""
        ...

    def cut(self) -> None:
        """Close the connection at once, because a response cannot be completed."""
        ...


@dataclass(frozen=True, slots=True)
class DataPath:
    """What every exchange works with.

    Without `limiter` no tenant has limits, without `waiting` no request waits, without `tokens`
    no prompt is tokenised.
    """

    authenticator: Authenticator
    preparer: Preparer
    fleet: Fleet
    router: Router
    pools: dict[str, UpstreamPool]
    watch: ReplicaWatch
    recorder: RecordSink
    clock: Clock
    limiter: TenantLimiter | None = None
    waiting: WaitingRoom | None = None
    tokens: TokenSide | None = None
