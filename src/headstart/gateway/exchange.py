"""One request's life on the data path: authenticate, prepare, route, send, relay, record.

Theory of operation: an exchange is called, it never waits. The client's connection calls `begin`,
`client_lost`, `client_paused` and `client_resumed`; the upstream call reports through the
`ResponseSink` methods. It ends exactly once, in `_finish`, which frees the replica's slot, leaves
one record and tells the connection whether it can be used again.

Before the first byte has gone to the client a lost connection, a 502 or a 503 is answered by one
more attempt, on another replica if there is one. After it, the only honest end is the relay's.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headstart.accounting.record import RequestRecord
from headstart.accounting.tenant import Tenant
from headstart.clock import Clock
from headstart.engines.upstream import Call, UpstreamPool
from headstart.errors import (
    HeadstartError,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headstart.gateway.auth import Authenticator
from headstart.gateway.prepare import PreparedRequest, Preparer
from headstart.gateway.relay import ResponseRelay
from headstart.gateway.respond import error_response
from headstart.routing.fleet import Fleet
from headstart.routing.policy import Policy, RoutingRequest
from headstart.routing.replica import Replica
from headstart.wire.http1 import Request, ResponseHead
from headstart.wire.usage import UNKNOWN_USAGE, parse_usage

_log = logging.getLogger(__name__)

CLIENT_DISCONNECTED: Final = "client_disconnected"
_INTERNAL_ERROR: Final = (
    "The gateway failed on this request; report it with the x-headstart-request-id of this answer."
)
_RETRIED: Final = (502, 503)
_STATUS_CLIENT_CLOSED: Final = (
    499  # nginx's; there is no official one, and the client never sees it
)


class RecordSink(Protocol):
    """Where finished requests are written down (`accounting.recorder.Recorder`)."""

    def record(self, record: RequestRecord) -> None:
        """Take one record without blocking."""
        ...


class ReplicaWatch(Protocol):
    """Who wants to hear that a replica may be in trouble (`monitor.Monitor`)."""

    def unreachable(self, replica: Replica, reason: str) -> None:
        """Hear that no connection could be made; it is not to be used until it answers again."""
        ...

    def suspect(self, replica: Replica) -> None:
        """Hear that it dropped a connection; it is to be checked soon."""
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
    """What every exchange works with."""

    authenticator: Authenticator
    preparer: Preparer
    fleet: Fleet
    policy: Policy
    pools: dict[str, UpstreamPool]
    watch: ReplicaWatch
    recorder: RecordSink
    clock: Clock


class Exchange:
    """One request that goes to an engine.

    Args:
        path: what it works with.
        client: the connection that it answers on.
        request: complete.
        request_id: the gateway's own.
        accepted_at: monotonic seconds when the request's head was complete.
    """

    __slots__ = (
        "_accepted_at",
        "_body_changes",
        "_call",
        "_client",
        "_error_code",
        "_first_content_at",
        "_is_done",
        "_last_content_at",
        "_num_sent_bytes",
        "_path",
        "_policy",
        "_prepared",
        "_reason",
        "_relay",
        "_replica",
        "_request",
        "_request_id",
        "_retries",
        "_status",
        "_tenant",
        "_time_s",
    )

    def __init__(
        self,
        path: DataPath,
        client: ClientPort,
        request: Request,
        *,
        request_id: str,
        accepted_at: float,
    ) -> None:
        self._path = path
        self._client = client
        self._request = request
        self._request_id = request_id
        self._accepted_at = accepted_at
        self._time_s = path.clock.time()
        self._tenant: Tenant = path.authenticator.stranger
        self._prepared = PreparedRequest(b"")
        self._replica: Replica | None = None
        self._call: Call | None = None
        self._relay: ResponseRelay | None = None
        self._policy = ""
        self._reason = ""
        self._retries = 0
        self._num_sent_bytes = 0
        self._status = 0
        self._first_content_at: float | None = None
        self._last_content_at: float | None = None
        self._error_code: str | None = None
        self._is_done = False

    # From the client's connection.

    def begin(self) -> None:
        """Take the request up; it may be answered before this returns."""
        path = self._path
        try:
            self._tenant = path.authenticator.tenant_of(self._request.fields)
            self._prepared = path.preparer.prepare(self._request)
            candidates = path.fleet.candidates(self._prepared.model)
            if not candidates:
                raise self._unavailable()
        except HeadstartError as error:
            self._answer(error)
            return
        except Exception as error:  # noqa: BLE001 -- the top of a request: one fault, one answer
            # Its message may quote the body, so the log gets its kind only.
            _log.error("request %s: %s while preparing it", self._request_id, type(error).__name__)
            self._answer(HeadstartError(_INTERNAL_ERROR))
            return
        self._send(candidates)

    def client_lost(self) -> None:
        """Hear that the client has left: the engine is to stop working for it."""
        if self._is_done:
            return
        if self._call is not None:
            self._call.abort()
        self._error_code = CLIENT_DISCONNECTED
        self._finish(_STATUS_CLIENT_CLOSED, closes=True)

    def client_paused(self) -> None:
        """Hear that the client is slow: take nothing more from the engine."""
        if self._call is not None:
            self._call.pause_reading()

    def client_resumed(self) -> None:
        """Hear that the client has caught up."""
        if self._call is not None:
            self._call.resume_reading()

    # From the upstream call.

    def response_received(
        self, head: ResponseHead | None, body: bytes, *, is_complete: bool
    ) -> None:
        """Pass on what came, in one write; or try elsewhere."""
        out = b""
        if head is not None:
            if head.status in _RETRIED and self._retry(may_stay=False):
                return
            out = self._start_relay(head)
        relay = self._relay
        assert relay is not None
        if body:
            piece = relay.body(body)
            if relay.is_content:
                self._note_content()
            out = out + piece if out else piece
        if is_complete:
            out += relay.end()
        if out:
            self._client.write(out)
        if is_complete:
            if relay.has_error_event:
                self._error_code = "engine_error_event"
            self._finish(self._status, closes=relay.closes_connection)

    def response_failed(self, error: UpstreamError) -> None:
        """Try elsewhere, or say what happened."""
        replica, call = self._replica, self._call
        assert replica is not None
        assert call is not None
        is_timeout = isinstance(error, UpstreamTimeout)
        if not call.is_sent:
            self._path.watch.unreachable(replica, error.message)
        else:
            self._path.watch.suspect(replica)
        if self._relay is not None:
            self._end_broken(self._relay, error)
        elif (is_timeout and call.is_sent) or not self._retry(may_stay=call.is_reused):
            self._answer(error)

    # Steps.

    def _start_relay(self, head: ResponseHead) -> bytes:
        prepared = self._prepared
        self._relay = ResponseRelay(
            self._request, head, self._own_lines(), hides_usage=prepared.hides_usage
        )
        self._status = head.status
        if head.status >= 400:
            self._error_code = f"engine_{head.status}"
        # No further attempt can need them.
        prepared.body = b""
        self._request.body = b""
        return self._relay.head_bytes

    def _note_content(self) -> None:
        self._last_content_at = self._path.clock.monotonic()
        if self._first_content_at is None:
            self._first_content_at = self._last_content_at

    def _send(self, candidates: Sequence[Replica]) -> None:
        path, prepared, request = self._path, self._prepared, self._request
        body = prepared.body
        decision = path.policy.choose(
            RoutingRequest(prepared.model, prepared.keys, len(body)), candidates
        )
        self._policy = decision.policy
        self._reason = decision.reason
        self._replica = replica = decision.replica
        self._num_sent_bytes = len(body)
        replica.begin(len(body))
        pool = path.pools[replica.name]
        head = pool.origin.head(request, len(body))
        self._call = pool.call(request.method, (head, body) if body else (head,), self)
        if self._client.is_write_paused:
            self._call.pause_reading()

    def _retry(self, *, may_stay: bool) -> bool:
        """Send once more, elsewhere; return False if that is not possible.

        Args:
            may_stay: the same replica will do where it is the only one: a kept connection was
                closed under the request, which says nothing about the engine.
        """
        failed = self._replica
        if self._retries > 0:
            return False
        try:
            candidates = self._path.fleet.candidates(self._prepared.model)
        except HeadstartError:
            return False
        others = tuple(replica for replica in candidates if replica is not failed)
        if not others and not (may_stay and failed in candidates):
            return False
        self._retries += 1
        assert self._call is not None
        self._call.abort()
        self._release()
        self._send(others or candidates)
        return True

    def _release(self) -> None:
        # A call is held exactly as long as its replica counts the request as in flight.
        if self._call is not None:
            assert self._replica is not None
            self._call = None
            self._replica.end(self._num_sent_bytes)

    def _end_broken(self, relay: ResponseRelay, error: UpstreamError) -> None:
        self._error_code = error.code
        last = relay.fail(error)
        if last is None:
            self._client.cut()
        else:
            self._client.write(last)
        self._finish(self._status, closes=last is None or relay.closes_connection)

    def _answer(self, error: HeadstartError) -> None:
        request = self._request
        self._error_code = error.code
        closes = not request.is_keep_alive
        self._client.write(error_response(request, error, self._request_id, closes=closes))
        self._finish(error.status, closes=closes)

    def _unavailable(self) -> UpstreamUnavailable:
        model = self._prepared.model
        what = f"the model {model[:200]!r}" if model else "this request"
        return UpstreamUnavailable(f"No replica is available for {what}; try again shortly.")

    def _own_lines(self) -> bytes:
        assert self._replica is not None
        lines = (
            f"x-headstart-request-id: {self._request_id}\r\n"
            f"x-headstart-replica: {self._replica.name}\r\n"
        )
        if self._prepared.template is not None:
            lines += f"x-headstart-template: {self._prepared.template}\r\n"
        return lines.encode("latin-1", "replace")

    def _finish(self, status: int, *, closes: bool) -> None:
        assert not self._is_done
        self._is_done = True
        self._release()
        self._path.recorder.record(self._record(status))
        self._client.finished(closes=closes)

    def _record(self, status: int) -> RequestRecord:
        relay, prepared, tenant = self._relay, self._prepared, self._tenant
        usage_object = relay.usage() if relay is not None else None
        usage = parse_usage(usage_object) if usage_object is not None else UNKNOWN_USAGE
        first, last, accepted_at = self._first_content_at, self._last_content_at, self._accepted_at
        tpot_s: float | None = None
        if first is not None and last is not None and (usage.output_tokens or 0) > 1:
            tpot_s = (last - first) / ((usage.output_tokens or 0) - 1)
        return RequestRecord(
            request_id=self._request_id,
            time_s=self._time_s,
            path=self._request.path,
            model=prepared.model,
            tenant=tenant.name,
            business_line=tenant.business_line,
            template=prepared.template,
            replica=self._replica.name if self._replica is not None and relay is not None else "",
            is_stream=prepared.is_stream,
            status=status,
            error_code=self._error_code,
            usage=usage,
            ttft_s=first - accepted_at if first is not None else None,
            tpot_s=tpot_s,
            total_s=self._path.clock.monotonic() - accepted_at,
            retries=self._retries,
            policy=self._policy,
            reason=self._reason,
            body_changes=prepared.body_changes,
        )
