"""One attempt to have a request answered: the choice of a replica, the call, and their end.

A replica counts a request as in flight for exactly as long as its attempt is open.
"""

import logging
from collections.abc import Sequence

from headstart.engines.upstream import Call, ResponseSink
from headstart.gateway.data_path import DataPath
from headstart.gateway.prepare import PreparedRequest
from headstart.gateway.token_side import Sample
from headstart.prompt.fingerprint import NO_KEYS
from headstart.routing.policy import RoutingRequest
from headstart.routing.replica import Replica, Standing
from headstart.wire.http1 import Request
from headstart.wire.usage import Usage

_log = logging.getLogger(__name__)


class Attempt:
    """A request at one replica; it is sent by being made.

    Args:
        path: what it works with.
        request: the client's.
        prepared: what was found in it, with the body to send.
        candidates: one of them is chosen; at least one has room.
        sink: hears of the answer, not before this returns.

    Attributes:
        dispatch: the router's memory of it.
        replica: the chosen one.
        remark: what there is to say of that replica's standing, after the policy's reason.
        call: under way; None once the attempt has ended.
    """

    __slots__ = ("_is_trial", "_path", "_sample", "call", "dispatch", "remark", "replica")

    def __init__(
        self,
        path: DataPath,
        request: Request,
        prepared: PreparedRequest,
        candidates: Sequence[Replica],
        sink: ResponseSink,
    ) -> None:
        self._path = path
        body = prepared.body
        asked = RoutingRequest(
            prepared.model,
            prepared.prompt,
            prepared.tokens,
            len(body),
            prepared.session,
            path.clock.monotonic(),
            prepared.is_stream,
        )
        try:
            dispatch = path.router.send(asked, candidates)
        except Exception:  # noqa: BLE001 -- what is known of caches may fail, requests not
            # Trouble with the index is a miss with a cause, and never a failed request.
            _log.exception("routing failed; the request goes where there is least to do")
            dispatch = path.router.send_blind(asked, candidates)
        self.dispatch = dispatch
        self.replica = replica = dispatch.replica
        self.remark = ""
        self._is_trial = False
        if not replica.is_available:
            self._note_standing()
        self._sample: Sample | None = None
        if path.tokens is not None:
            self._sample = path.tokens.sample(replica.slot, request.path, prepared)
        pool = path.pools[replica.name]
        head = pool.origin.head(request, len(body))
        self.call: Call | None = pool.call(request.method, (head, body) if body else (head,), sink)

    def content_began(self, now: float) -> None:
        """Hear that the first piece of content came."""
        self._path.router.first_token(self.dispatch, now)

    def answered(self, prepared: PreparedRequest, usage: Usage, now: float) -> None:
        """Hear of the engine's figures; before the end."""
        try:
            self._learn(prepared, usage, now)
        except Exception:  # noqa: BLE001 -- what is known of caches may fail, requests not
            _log.exception("what an answer says of the cache could not be learned")

    def _learn(self, prepared: PreparedRequest, usage: Usage, now: float) -> None:
        input_tokens = usage.input_tokens
        self._path.router.answered(
            self.dispatch, input_tokens, usage.cached_tokens, usage.output_tokens, now
        )
        tokens = self._path.tokens
        if tokens is not None:
            tokens.answered(self.replica.slot, prepared, input_tokens)
            if self._sample is not None:
                self._sample()

    def judge(self, status: int) -> None:
        """Let health know how the replica answered, if it would make a difference."""
        if status >= 500 or self.replica.is_suspect:
            self._path.watch.answered(self.replica, status)

    def end(self, now: float) -> None:
        """Count the request out; without effect the second time."""
        if self.call is None:
            return
        self.call = None
        dispatch = self.dispatch
        try:
            self._path.router.ended(dispatch, now)
        except Exception:  # noqa: BLE001 -- what is known of caches may fail, requests not
            _log.exception("what a request says of the cache could not be learned")
        # The record keeps the dispatch until it is written, and needs no prompt.
        dispatch.request.prompt, dispatch.request.tokens = NO_KEYS, None
        if self._is_trial:
            self._path.watch.trial_ended(self.replica)
        if self._path.waiting is not None:
            self._path.waiting.serve()

    def _note_standing(self) -> None:
        """Say why a replica is used that is not simply available."""
        if self.replica.standing is Standing.TRIAL:
            self._is_trial = True
            self._path.watch.trial_begun(self.replica)
            self.remark = ", on trial"
        else:
            self.remark = ", as a last resort: every replica has failed lately"
