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

from headstart.accounting.tenant import Tenant
from headstart.errors import (
    HeadstartError,
    Overloaded,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headstart.gateway.attempt import Attempt
from headstart.gateway.data_path import ClientPort, DataPath
from headstart.gateway.limits import Admission
from headstart.gateway.prepare import PreparedRequest
from headstart.gateway.record import make_record
from headstart.gateway.relay import ResponseRelay
from headstart.gateway.respond import error_response
from headstart.gateway.timeline import Timeline
from headstart.gateway.token_worker import TokenTicket
from headstart.gateway.waiting import Waiter, no_replica
from headstart.prompt.token_keys import TokenPrompt
from headstart.routing.policy import RoutingRequest
from headstart.routing.queue import Line, Place
from headstart.routing.queue_orders import NO_MATCH, Match
from headstart.routing.receipt import receipt_header
from headstart.routing.replica import Replica
from headstart.wire.http1 import Request, ResponseHead
from headstart.wire.priority import priority_of
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
        "_admission",
        "_attempt",
        "_client",
        "_error_code",
        "_is_done",
        "_path",
        "_place",
        "_prepared",
        "_priority",
        "_relay",
        "_request",
        "_request_id",
        "_retries",
        "_status",
        "_tenant",
        "_ticket",
        "_times",
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
        self._times = Timeline(path.clock.time(), accepted_at)
        self._tenant: Tenant = path.authenticator.stranger
        self._prepared = PreparedRequest(request.body)
        self._admission: Admission | None = None
        self._ticket: TokenTicket | None = None
        self._place: Place[Waiter] | None = None
        self._priority = 0
        self._attempt: Attempt | None = None
        self._relay: ResponseRelay | None = None
        self._retries = 0
        self._status = 0
        self._error_code: str | None = None
        self._unsent = b""
        self._is_done = False

    # From the client's connection.

    def begin(self) -> None:
        """Take the request up; it may be answered before this returns."""
        path = self._path
        try:
            self._tenant = path.authenticator.tenant_of(self._request.header.fields)
            path.preparer.prepare(self._request, self._prepared)
            if path.waiting is not None:
                self._priority = priority_of(
                    self._request.header.fields, self._tenant.limits.least_priority
                )
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
        if self._prepared.token_key is None or not self._waits_for_tokens():
            self._go(candidates)

    def client_lost(self) -> None:
        """Hear that the client has left: the engine is to stop working for it."""
        if self._is_done:
            return
        self._abort()
        if self._place is not None:
            assert self._path.waiting is not None
            self._path.waiting.leave(self._place)
            self._end_wait()
        self._error_code = CLIENT_DISCONNECTED
        self._finish(_STATUS_CLIENT_CLOSED, closes=True)

    def gateway_ends(self) -> None:
        """Hear that the gateway ends now: fail in form."""
        if self._is_done:
            return
        self._abort()
        error = UpstreamUnavailable("The gateway is shutting down; try again elsewhere.")
        if self._relay is not None and not self._unsent:
            self._end_broken(self._relay, error)
        else:
            self._answer(error)

    def client_paused(self) -> None:
        """Hear that the client is slow: take nothing more from the engine."""
        if self._attempt is not None and self._attempt.call is not None:
            self._attempt.call.pause_reading()

    def client_resumed(self) -> None:
        """Hear that the client has caught up."""
        if self._attempt is not None and self._attempt.call is not None:
            self._attempt.call.resume_reading()

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
        attempt = self._attempt
        assert attempt is not None
        call = attempt.call
        assert call is not None
        is_timeout = isinstance(error, UpstreamTimeout)
        self._path.watch.failed(attempt.replica, call, error)
        if self._relay is not None and not self._unsent:
            self._end_broken(self._relay, error)
        elif (is_timeout and call.is_sent) or not self._retry(may_stay=call.is_reused):
            self._answer(error)

    def engine_stalled(self) -> None:
        """Try elsewhere, if that is possible; else go on waiting."""
        if self._relay is None or self._unsent:
            self._retry(may_stay=False)

    # From the waiting room.

    def match_on(self, targets: Sequence[Replica]) -> tuple[Match, float]:
        """Return what `targets` hold of the prompt, and in how many seconds it could begin."""
        prepared, path = self._prepared, self._path
        now = path.clock.monotonic()
        request = RoutingRequest(prepared.model, prepared.prompt, prepared.tokens, now=now)
        try:
            return path.router.best_match(request, targets)
        except Exception:  # noqa: BLE001 -- what is known of caches may fail, requests not
            _log.exception("a request that waits could not be looked up; it counts as not cached")
            return NO_MATCH, 0.0

    def turn_came(self, targets: Sequence[Replica]) -> None:
        """Go to one of `targets`, at least one of which has room."""
        self._end_wait()
        self._send(targets)

    def turn_failed(self, error: HeadstartError) -> None:
        """Say why the request cannot be sent."""
        self._end_wait()
        self._answer(error)

    # Steps.

    def _waits_for_tokens(self) -> bool:
        tokens = self._path.tokens
        assert tokens is not None
        self._ticket = tokens.find(self._prepared, self._request.path, self._tokens_came)
        return self._ticket is not None

    def _tokens_came(self, tokens: TokenPrompt | None) -> None:
        self._ticket = None
        self._prepared.tokens = tokens
        try:
            candidates = self._path.fleet.candidates(self._prepared.model)
            if not candidates:
                raise no_replica(self._prepared.model)
        except HeadstartError as error:  # since it came, its replicas have gone
            self._answer(error)
            return
        self._go(candidates)

    def _go(self, targets: Sequence[Replica], failed: Replica | None = None) -> None:
        """Send, or wait while all of `targets` are full; `failed` was tried and is none of them."""
        prepared, waiting = self._prepared, self._path.waiting
        if waiting is not None:
            try:
                self._place = waiting.enter(
                    self,
                    Line(prepared.model, failed, self._priority),
                    targets,
                    len(prepared.body),
                    prepared.cache_salt,
                    self._tenant.name,
                )
            except Overloaded as error:
                self._answer(error)
                return
            if self._place is not None:
                return
        self._send(targets)

    def _end_wait(self) -> None:
        assert self._place is not None
        self._times.queue_s += self._path.clock.monotonic() - self._place.since
        self._place = None

    def _abort(self) -> None:
        """Stop whatever is under way."""
        if self._attempt is not None and self._attempt.call is not None:
            self._attempt.call.abort()
        elif self._ticket is not None:
            self._ticket.cancel()

    def _start_relay(self, head: ResponseHead) -> bool:
        """Take the answer of this replica; returns False if another one is asked instead."""
        attempt = self._attempt
        assert attempt is not None
        if head.status >= 500:
            attempt.judge(head.status)
        if head.status in _RETRIED and self._retry(may_stay=False):
            return False
        self._relay = ResponseRelay(
            self._request, head, self._own_lines(attempt), hides_usage=self._prepared.hides_usage
        )
        self._status = head.status
        if head.status >= 400:
            self._error_code = f"engine_{head.status}"
        self._unsent = self._relay.head_bytes
        return True

    def _retry_fault(self) -> bool:
        failed = self._attempt
        assert failed is not None
        if not self._retry(may_stay=False):
            return False
        failed.judge(_STATUS_FAULT)
        return True

    def _complete(self, relay: ResponseRelay) -> None:
        attempt = self._attempt
        assert attempt is not None
        if relay.has_error_event:
            self._error_code = "engine_error_event"
        if relay.is_engine_fault:
            attempt.judge(_STATUS_FAULT)
        elif self._times.first_content_at is None and self._status < 500:
            attempt.judge(self._status)
            if self._status < 300 and self._request.path not in _NO_WORK_PATHS:
                attempt.replica.has_progressed = True
        self._finish(self._status, closes=relay.closes_connection)

    def _give_up_retrying(self) -> None:
        self._unsent = b""
        # No further attempt can need them.
        self._prepared.body = b""
        self._request.body = b""

    def _note_content(self) -> None:
        times, attempt, now = self._times, self._attempt, self._path.clock.monotonic()
        assert attempt is not None
        times.last_content_at = now
        attempt.replica.has_progressed = True
        if times.first_content_at is None:
            times.first_content_at = now
            attempt.content_began(now)
            attempt.judge(self._status)

    def _send(self, candidates: Sequence[Replica]) -> None:
        try:
            attempt = Attempt(self._path, self._request, self._prepared, candidates, self)
        except Exception as error:  # noqa: BLE001 -- one fault, one answer
            _log.error("request %s: %s while sending it", self._request_id, type(error).__name__)
            self._answer(HeadstartError(_INTERNAL_ERROR))
            return
        self._attempt = attempt
        if self._path.waiting is not None:
            self._path.waiting.charge(self._tenant.name, attempt.dispatch.work.uncached_tokens)
        if self._client.is_write_paused:
            assert attempt.call is not None
            attempt.call.pause_reading()

    def _retry(self, *, may_stay: bool) -> bool:
        """Send once more, elsewhere; return False if that is not possible.

        Args:
            may_stay: the same replica will do where it is the only one: a kept connection was
                closed under the request, which says nothing about the engine.
        """
        attempt = self._attempt
        assert attempt is not None
        failed = attempt.replica
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
        self._abort()
        attempt.end(self._path.clock.monotonic())
        self._go(others or candidates, failed)
        return True

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

    def _own_lines(self, attempt: Attempt) -> bytes:
        lines = (
            f"x-headstart-request-id: {self._request_id}\r\n"
            f"x-headstart-replica: {attempt.replica.name}\r\n"
        )
        if self._prepared.template is not None:
            lines += f"x-headstart-template: {self._prepared.template}\r\n"
        if self._prepared.wants_receipt:
            lines += f"x-headstart-receipt: {receipt_header(attempt.dispatch)}\r\n"
        return lines.encode("latin-1", "replace")

    def _finish(self, status: int, *, closes: bool) -> None:
        assert not self._is_done
        self._is_done = True
        relay, attempt = self._relay, self._attempt
        usage_object = relay.usage() if relay is not None else None
        usage = parse_usage(usage_object) if usage_object is not None else UNKNOWN_USAGE
        now = self._path.clock.monotonic()
        if attempt is not None:
            if relay is not None and status < 300:
                attempt.answered(self._prepared, usage, now)
            attempt.end(now)
        if self._path.waiting is not None and usage.output_tokens:
            self._path.waiting.charge(self._tenant.name, usage.output_tokens)
        if self._admission is not None:
            self._admission.end(usage.input_tokens, was_sent=attempt is not None)
        self._path.recorder.record(
            make_record(
                self._request,
                self._prepared,
                self._tenant,
                self._times,
                usage,
                request_id=self._request_id,
                status=status,
                error_code=self._error_code,
                attempt=attempt,
                has_answer=relay is not None,
                retries=self._retries,
                now=now,
            )
        )
        self._client.finished(closes=closes)
