"""One request's life on the data path: authenticate, prepare, route, send, relay, record.

Theory of operation: an exchange is called, it never waits. The client's connection calls `begin`,
`client_lost`, `client_paused` and `client_resumed`; the upstream call reports through the
`ResponseSink` methods. It ends exactly once, in `_finish`, which frees the replica's slot, leaves
one record and tells the connection whether it can be used again.

Before the first byte has gone to the client a lost connection, a 502 or a 503 is answered by one
more attempt, on another replica if there is one. After it, the only honest end is the relay's.
Two answers are held back until they say more: the head of a stream, which engines send before they
have computed anything, until its first event; and a 500, which passes unless it says that the
engine itself has ended (`wire.openai.says_engine_ended`).
"""

import logging
from collections.abc import Sequence
from typing import Final

from headstart.accounting.record import RequestRecord
from headstart.accounting.tenant import Tenant
from headstart.engines.upstream import Call
from headstart.errors import (
    HeadstartError,
    QueueFull,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headstart.gateway.data_path import ClientPort, DataPath
from headstart.gateway.limits import Admission
from headstart.gateway.prepare import PreparedRequest
from headstart.gateway.relay import ResponseRelay
from headstart.gateway.respond import error_response
from headstart.gateway.waiting import Waiter, no_replica
from headstart.routing.policy import RoutingRequest
from headstart.routing.queue import Line, Place
from headstart.routing.replica import Replica, Standing
from headstart.wire.http1 import Request, ResponseHead
from headstart.wire.usage import UNKNOWN_USAGE, parse_usage

_log = logging.getLogger(__name__)

CLIENT_DISCONNECTED: Final = "client_disconnected"
_INTERNAL_ERROR: Final = (
    "The gateway failed on this request; report it with the x-headstart-request-id of this answer."
)
_RETRIED: Final = (502, 503)
# Answered by an engine's HTTP server, which lives on while what computes is frozen.
_NO_WORK_PATHS: Final = frozenset({"/tokenize", "/detokenize"})
_STATUS_FAULT: Final = 500  # as what an engine's fault that it reports in a stream counts
_STATUS_CLIENT_CLOSED: Final = (
    499  # nginx's; there is no official one, and the client never sees it
)


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
        "_admission",
        "_body_changes",
        "_call",
        "_client",
        "_error_code",
        "_first_content_at",
        "_is_done",
        "_is_trial",
        "_last_content_at",
        "_num_sent_bytes",
        "_path",
        "_place",
        "_policy",
        "_prepared",
        "_queue_s",
        "_reason",
        "_relay",
        "_replica",
        "_request",
        "_request_id",
        "_retries",
        "_status",
        "_tenant",
        "_time_s",
        "_unsent",
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
        self._prepared = PreparedRequest(request.body)
        self._admission: Admission | None = None
        self._place: Place[Waiter] | None = None
        self._queue_s = 0.0
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
        self._unsent = b""
        self._is_done = False
        self._is_trial = False

    # From the client's connection.

    def begin(self) -> None:
        """Take the request up; it may be answered before this returns."""
        path = self._path
        try:
            self._tenant = path.authenticator.tenant_of(self._request.header.fields)
            path.preparer.prepare(self._request, self._prepared)
            candidates = path.fleet.candidates(self._prepared.model)
            if not candidates:
                raise no_replica(self._prepared.model)
            if path.limiter is not None:
                self._admission = path.limiter.admit(
                    self._tenant,
                    self._request.path,
                    len(self._prepared.body),
                    path.clock.monotonic(),
                )
        except HeadstartError as error:
            self._answer(error)
            return
        except Exception as error:  # noqa: BLE001 -- the top of a request: one fault, one answer
            # Its message may quote the body, so the log gets its kind only.
            _log.error("request %s: %s while preparing it", self._request_id, type(error).__name__)
            self._answer(HeadstartError(_INTERNAL_ERROR))
            return
        self._go(candidates)

    def client_lost(self) -> None:
        """Hear that the client has left: the engine is to stop working for it."""
        if self._is_done:
            return
        if self._call is not None:
            self._call.abort()
        elif self._place is not None:
            assert self._path.waiting is not None
            self._path.waiting.leave(self._place)
            self._end_wait()
        self._error_code = CLIENT_DISCONNECTED
        self._finish(_STATUS_CLIENT_CLOSED, closes=True)

    def gateway_ends(self) -> None:
        """Hear that the gateway ends now: fail in form."""
        if self._is_done:
            return
        if self._call is not None:
            self._call.abort()
        error = UpstreamUnavailable("The gateway is shutting down; try again elsewhere.")
        if self._relay is not None and not self._unsent:
            self._end_broken(self._relay, error)
        else:
            self._answer(error)

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
        if head is not None and not self._start_relay(head):
            return
        relay = self._relay
        assert relay is not None
        piece = relay.body(body) if body else b""
        if self._unsent:
            if relay.has_engine_ended and self._retry_fault():
                return
            if not is_complete and relay.holds_back(piece):
                self._unsent += piece
                return
        if body and relay.is_content:
            self._note_content()
        out = self._unsent + piece
        if is_complete:
            out += relay.end()
        if out:
            if self._unsent:
                self._give_up_retrying()
            self._client.write(out)
        if is_complete:
            self._complete(relay)

    def response_failed(self, error: UpstreamError) -> None:
        """Try elsewhere, or say what happened."""
        replica, call = self._replica, self._call
        assert replica is not None
        assert call is not None
        is_timeout = isinstance(error, UpstreamTimeout)
        self._path.watch.failed(replica, call, error)
        if self._relay is not None and not self._unsent:
            self._end_broken(self._relay, error)
        elif (is_timeout and call.is_sent) or not self._retry(may_stay=call.is_reused):
            self._answer(error)

    def engine_stalled(self) -> None:
        """Try elsewhere, if that is possible; else go on waiting."""
        if self._relay is None or self._unsent:
            self._retry(may_stay=False)

    # From the waiting room.

    def turn_came(self, targets: Sequence[Replica]) -> None:
        """Go to one of `targets`, at least one of which has room."""
        self._end_wait()
        self._send(targets)

    def turn_failed(self, error: HeadstartError) -> None:
        """Say why the request cannot be sent."""
        self._end_wait()
        self._answer(error)

    # Steps.

    def _go(self, targets: Sequence[Replica], failed: Replica | None = None) -> None:
        """Send, or wait while all of `targets` are full; `failed` was tried and is none of them."""
        prepared, waiting = self._prepared, self._path.waiting
        if waiting is not None:
            try:
                self._place = waiting.enter(
                    self, Line(prepared.model, failed), targets, len(prepared.body)
                )
            except QueueFull as error:
                self._answer(error)
                return
            if self._place is not None:
                return
        self._send(targets)

    def _end_wait(self) -> None:
        assert self._place is not None
        self._queue_s += self._path.clock.monotonic() - self._place.since
        self._place = None

    def _judge(self, replica: Replica | None, status: int) -> None:
        assert replica is not None
        if status >= 500 or replica.is_suspect:
            self._path.watch.answered(replica, status)

    def _note_standing(self, replica: Replica) -> None:
        """Say why a replica is used that is not simply available."""
        if replica.standing is Standing.TRIAL:
            self._is_trial = True
            self._path.watch.trial_begun(replica)
            self._reason += ", on trial"
        else:
            self._reason += ", as a last resort: every replica has failed lately"

    def _start_relay(self, head: ResponseHead) -> bool:
        """Take the answer of this replica; returns False if another one is asked instead."""
        if head.status >= 500:
            self._judge(self._replica, head.status)
        if head.status in _RETRIED and self._retry(may_stay=False):
            return False
        self._relay = ResponseRelay(
            self._request, head, self._own_lines(), hides_usage=self._prepared.hides_usage
        )
        self._status = head.status
        if head.status >= 400:
            self._error_code = f"engine_{head.status}"
        self._unsent = self._relay.head_bytes
        return True

    def _retry_fault(self) -> bool:
        failed = self._replica
        if not self._retry(may_stay=False):
            return False
        self._judge(failed, _STATUS_FAULT)
        return True

    def _complete(self, relay: ResponseRelay) -> None:
        if relay.has_error_event:
            self._error_code = "engine_error_event"
        if relay.is_engine_fault:
            self._judge(self._replica, _STATUS_FAULT)
        elif self._first_content_at is None and self._status < 500:
            self._judge(self._replica, self._status)
            if self._status < 300 and self._request.path not in _NO_WORK_PATHS:
                assert self._replica is not None
                self._replica.has_progressed = True
        self._finish(self._status, closes=relay.closes_connection)

    def _give_up_retrying(self) -> None:
        self._unsent = b""
        # No further attempt can need them.
        self._prepared.body = b""
        self._request.body = b""

    def _note_content(self) -> None:
        self._last_content_at = self._path.clock.monotonic()
        assert self._replica is not None
        self._replica.has_progressed = True
        if self._first_content_at is None:
            self._first_content_at = self._last_content_at
            self._judge(self._replica, self._status)

    def _send(self, candidates: Sequence[Replica]) -> None:
        path, prepared, request = self._path, self._prepared, self._request
        body = prepared.body
        decision = path.policy.choose(
            RoutingRequest(prepared.model, prepared.keys, len(body)), candidates
        )
        self._policy = decision.policy
        self._reason = decision.reason
        self._replica = replica = decision.replica
        if not replica.is_available:
            self._note_standing(replica)
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
        others = candidates
        if failed in candidates:
            others = tuple(replica for replica in candidates if replica is not failed)
        if not others and not (may_stay and failed in candidates):
            return False
        self._retries += 1
        self._relay, self._unsent, self._error_code = None, b"", None
        assert self._call is not None
        self._call.abort()
        self._release()
        self._go(others or candidates, failed)
        return True

    def _release(self) -> None:
        # A call is held exactly as long as its replica counts the request as in flight.
        if self._call is not None:
            assert self._replica is not None
            self._call = None
            self._replica.end(self._num_sent_bytes)
            if self._is_trial:
                self._is_trial = False
                self._path.watch.trial_ended(self._replica)
            if self._path.waiting is not None:
                self._path.waiting.serve()

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
        record = self._record(status)
        if self._admission is not None:
            self._admission.end(record.usage.input_tokens, was_sent=self._replica is not None)
        self._path.recorder.record(record)
        self._client.finished(closes=closes)

    def _record(self, status: int) -> RequestRecord:
        relay, prepared, tenant = self._relay, self._prepared, self._tenant
        usage_object = relay.usage() if relay is not None else None
        usage = parse_usage(usage_object) if usage_object is not None else UNKNOWN_USAGE
        first, last, accepted_at = self._first_content_at, self._last_content_at, self._accepted_at
        tpot_s: float | None = None
        num_tokens = usage.output_tokens or 0
        # What came in one piece says nothing about the time between its tokens.
        if first is not None and last is not None and last > first and num_tokens > 1:
            tpot_s = (last - first) / (num_tokens - 1)
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
            queue_s=self._queue_s,
            retries=self._retries,
            policy=self._policy,
            reason=self._reason,
            body_changes=prepared.body_changes,
        )
