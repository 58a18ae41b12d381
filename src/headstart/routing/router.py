"""The one facade of routing: a request goes in, a dispatch comes out and hears what became of it.

    send ──> first_token ──> answered ──> ended        streamed
    send ──────────────────> answered ──> ended        in one piece
    send ───────────────────────────────> ended        failed, or the client left

It asks the index, lets the policy choose, counts load, and gives what came back to the index and to
the rates. It holds no clock and does no I/O: the gateway and the simulator drive the same object.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from headstart.prefix.trust_mode import TrustMode
from headstart.routing.dispatch import Dispatch
from headstart.routing.knowledge import PrefixKnowledge
from headstart.routing.least_loaded import LeastLoaded
from headstart.routing.load import Work
from headstart.routing.observer import DispatchObserver
from headstart.routing.policy import Decision, Policy, RoutingRequest
from headstart.routing.queue_orders import Match
from headstart.routing.rates import RateBook, Sample
from headstart.routing.replica import Replica
from headstart.routing.reuse import ReuseModel
from headstart.routing.shadow import Shadow

__all__ = ["PrefixKnowledge", "Router"]

_LOOK_S: Final = 0.5
"""How often replicas' capacities and what they evict are looked at."""

_FORGOTTEN_S: Final = 1e6

_TOKENS_PER_BYTE: Final = 0.25
_LEAST_TOKENS_PER_BYTE: Final = 0.02
_MOST_TOKENS_PER_BYTE: Final = 2.0
_RATIO_GAIN: Final = 0.05


class Router:
    """Routes requests over replicas and learns from what becomes of them.

    Args:
        policy: chooses.
        view: what each replica holds; None for policies that never ask.
        shadows: policies that are evaluated beside it; each an instance of its own.
        rates: what is known of replicas' speeds before the first request.

    Attributes:
        policy: chooses.
        observer: hears of every dispatch; None if nobody wants to.

    The index is asked, and learns, only if the policy or a shadow uses it.
    """

    __slots__ = (
        "_candidates",
        "_learns",
        "_looked_at",
        "_rates",
        "_replicas",
        "_reuse",
        "_shadows",
        "_slots",
        "_tokens_per_byte",
        "_view",
        "observer",
        "policy",
    )

    def __init__(
        self,
        policy: Policy,
        view: PrefixKnowledge | None = None,
        shadows: Sequence[Shadow] = (),
        rates: RateBook | None = None,
    ) -> None:
        self.policy = policy
        self.observer: DispatchObserver | None = None
        self._shadows = tuple(shadows)
        uses_index = policy.uses_index or any(shadow.policy.uses_index for shadow in shadows)
        self._view = view if uses_index else None
        # Policies that read no index read no rates either.
        self._learns = uses_index
        self._rates = rates if rates is not None else RateBook()
        self._tokens_per_byte = _TOKENS_PER_BYTE
        self._reuse = ReuseModel()
        self._looked_at = -inf
        self._replicas: dict[int, Replica] = {}
        self._candidates: Sequence[Replica] = ()
        self._slots: Sequence[int] = ()

    @property
    def uses_index(self) -> bool:
        """Prompts are looked up, and what replicas hold is learned."""
        return self._view is not None

    @property
    def rates(self) -> RateBook:
        """How quick each replica is."""
        return self._rates

    @property
    def shadows(self) -> Sequence[Shadow]:
        """What other policies would have chosen."""
        return self._shadows

    # A request's life.

    def send(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Dispatch:
        """Choose one of `candidates` for `request` and count it in there.

        Args:
            request: what is known of it; its last three fields are filled in here.
            candidates: at least one has room.

        Mutates: the request, the chosen replica's load, the index.
        """
        if request.now >= self._looked_at + _LOOK_S:
            self._look(request.now)
        view = self._view if request.prompt.keys or request.tokens is not None else None
        self._describe(request, candidates, view)
        decision = self.policy.choose(request, candidates)
        replica = decision.replica
        dispatch = Dispatch(
            request,
            candidates,
            decision,
            candidates.index(replica),
            [other.load.in_flight for other in candidates],
            [other.load.pending_tokens for other in candidates],
        )
        for shadow in self._shadows:
            shadow.observe(request, candidates, dispatch.index)
        self._count_in(dispatch, replica)
        if view is not None:
            view.dispatched(replica.slot, request.prompt, request.tokens, request.now)
            if request.prompt.keys:
                self._reuse.observe(request.prompt, request.now)
        if self.observer is not None:
            self.observer.sent(dispatch)
        return dispatch

    def best_match(
        self, request: RoutingRequest, candidates: Sequence[Replica]
    ) -> tuple[Match, float]:
        """Return what is held of a prompt at best, and in how many seconds it could begin.

        Only candidates that have room count, if any has. Nothing is chosen, counted or learned.

        Args:
            request: what is known of it.
            candidates: at least one.
        """
        view = self._view if request.prompt.keys or request.tokens is not None else None
        self._describe(request, candidates, view)
        num_tokens = request.input_tokens
        best, soonest_s = 0, inf
        is_full = not any(replica.has_room for replica in candidates)
        for index, replica in enumerate(candidates):
            if not is_full and not replica.has_room:
                continue
            matched = request.matched_tokens[index] if request.matched_tokens else 0
            best = max(best, matched)
            load, uncached = replica.load, max(num_tokens - matched, 1)
            wait_s = max(load.wait_s(request.now), 0.0) + load.base_s
            attention_s = (num_tokens - 0.5 * uncached) * load.attention_s
            soonest_s = min(soonest_s, wait_s + uncached * (load.linear_s + attention_s))
        return Match(best, num_tokens), soonest_s

    def send_blind(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Dispatch:
        """Send without index and policy, where these have failed; as `send` otherwise."""
        request.matched_tokens, request.modes = (), ()
        request.input_tokens = int(request.prompt.num_bytes * self._tokens_per_byte)
        replica = LeastLoaded().pick(candidates)
        decision = Decision(replica, "least_loaded", "what replicas hold could not be asked")
        dispatch = Dispatch(request, candidates, decision, candidates.index(replica))
        dispatch.in_flight = [other.load.in_flight for other in candidates]
        dispatch.pending_tokens = [other.load.pending_tokens for other in candidates]
        self._count_in(dispatch, replica)
        return dispatch

    def first_token(self, dispatch: Dispatch, now: float) -> None:
        """Hear that the first token came; only of an answer that is streamed."""
        if dispatch.first_at is None:
            dispatch.first_at = now
            replica, request = dispatch.replica, dispatch.request
            replica.load.first_token(dispatch, now)
            if request.modes:
                assert self._view is not None
                self._view.first_token(replica.slot, request.prompt, now)
            if self.observer is not None:
                self.observer.first_token(dispatch)

    def answered(
        self,
        dispatch: Dispatch,
        input_tokens: int | None,
        cached_tokens: int | None,
        output_tokens: int | None,
        now: float,
    ) -> None:
        """Hear that the engine has answered in full, and what it reports; before `ended`."""
        dispatch.input_tokens = input_tokens
        dispatch.cached_tokens = cached_tokens
        dispatch.output_tokens = output_tokens
        dispatch.is_answered = True
        num_bytes = dispatch.request.prompt.num_bytes
        if num_bytes and (not self._learns or self._rates.is_curious(dispatch.replica.slot)):
            if input_tokens:
                self._learn_ratio(input_tokens / num_bytes)
            if self._learns:
                self._learn_rates(dispatch, now)
        if self.observer is not None:
            self.observer.answered(dispatch)

    def ended(self, dispatch: Dispatch, now: float) -> None:
        """Hear that nothing more comes; exactly once for each `send`."""
        assert dispatch.ended_at is None
        dispatch.ended_at = now
        request, replica = dispatch.request, dispatch.replica
        replica.end(request.prompt_bytes)
        replica.load.end(dispatch, dispatch.work, now)
        if not dispatch.is_answered and dispatch.first_at is None:
            replica.load.take_back(dispatch.work)
        if request.modes:
            self._teach(dispatch, replica.slot, now)
        if self.observer is not None:
            self.observer.ended(dispatch)

    def _teach(self, dispatch: Dispatch, slot: int, now: float) -> None:
        """Let the index know what the replica holds now."""
        request, view = dispatch.request, self._view
        assert view is not None
        if dispatch.is_answered or dispatch.first_at is not None:
            # Whoever has seen a token knows that the prompt was computed, whatever came after.
            view.answered(
                slot,
                request.prompt,
                request.tokens,
                dispatch.matched_tokens or 0,
                dispatch.input_tokens,
                dispatch.cached_tokens,
                dispatch.output_tokens,
                now,
            )
        else:
            view.failed(slot, request.prompt, now)

    # Replicas.

    def add_replica(self, replica: Replica) -> None:
        """Know a replica of which nothing is known; before it is a candidate.

        Args:
            replica: in a slot that no other has, those included that are leaving.
        """
        assert replica.slot not in self._replicas
        self._replicas[replica.slot] = replica
        replica.load.set_rates(self._rates.rates(replica.slot))
        if len(self._replicas) > 1:
            # Nobody is to make up for the time before it came.
            others = [each.load for each in self._replicas.values() if each is not replica]
            replica.load.assigned_tokens = sum(e.assigned_tokens for e in others) / len(others)
            replica.load.assigned_input_tokens = sum(e.assigned_input_tokens for e in others) / len(
                others
            )
        if self._view is not None:
            self._view.add_replica(replica.slot, replica.name)

    def remove_replica(self, replica: Replica) -> None:
        """Forget a replica; after the last of its requests has ended."""
        del self._replicas[replica.slot]
        self._rates.forget(replica.slot)
        if self._view is not None:
            self._view.remove_replica(replica.slot)

    # Steps.

    def _describe(
        self,
        request: RoutingRequest,
        candidates: Sequence[Replica],
        view: PrefixKnowledge | None,
    ) -> None:
        tokens, prompt = request.tokens, request.prompt
        if view is not None:
            if candidates is not self._candidates:
                # The fleet hands out the same tuple until something changes.
                self._candidates = tuple(candidates)
                self._slots = [replica.slot for replica in candidates]
            slots = self._slots
            request.matched_tokens = view.match(prompt, tokens, slots, request.now)
            request.modes = view.modes(slots)
            if tokens is None and TrustMode.PRECISE in request.modes:
                request.modes = [_without_tokens(mode) for mode in request.modes]
        if tokens is not None:
            request.input_tokens = tokens.num_tokens
        elif view is not None:
            request.input_tokens = view.estimate_tokens(prompt, candidates[0].slot)
        else:
            request.input_tokens = int(prompt.num_bytes * self._tokens_per_byte)

    def _look(self, now: float) -> None:
        """Take over what the index knows and the load does not: room, and the harm of evicting."""
        passed_s = min(now - self._looked_at, _FORGOTTEN_S)
        self._looked_at = now
        for slot, replica in self._replicas.items():
            load = replica.load
            load.fade(passed_s)
            if self._view is not None:
                capacity_tokens, idle_s = self._view.pressure(slot, now)
                load.set_capacity(capacity_tokens)
                harm = 0.0 if idle_s is None else self._reuse.probability(idle_s)
                load.evict_s = harm * load.rates.linear_s

    def _count_in(self, dispatch: Dispatch, replica: Replica) -> None:
        request, load = dispatch.request, replica.load
        num_tokens, matched = request.input_tokens, dispatch.matched_tokens or 0
        # The last token is always computed.
        uncached = num_tokens - matched
        if uncached < 1:
            uncached = 1 if num_tokens else 0
        if load.num_pending:
            dispatch.ahead_tokens, dispatch.ahead_attention = load.ahead(request.now)
        dispatch.num_decoding = load.num_decoding
        dispatch.work = work = Work(
            uncached, uncached * (num_tokens - 0.5 * uncached), num_tokens, request.is_stream
        )
        replica.begin(request.prompt_bytes)
        load.begin(dispatch, work, request.now)

    def _learn_ratio(self, tokens_per_byte: float) -> None:
        ratio = min(max(tokens_per_byte, _LEAST_TOKENS_PER_BYTE), _MOST_TOKENS_PER_BYTE)
        self._tokens_per_byte += _RATIO_GAIN * (ratio - self._tokens_per_byte)

    def _learn_rates(self, dispatch: Dispatch, now: float) -> None:
        work, first_at = dispatch.work, dispatch.first_at
        uncached, attention = work.uncached_tokens, work.attention
        if dispatch.input_tokens is not None and dispatch.cached_tokens is not None:
            uncached = max(dispatch.input_tokens - dispatch.cached_tokens, 1)
            attention = uncached * (dispatch.input_tokens - 0.5 * uncached)
        output_tokens = 0
        if first_at is None:
            if dispatch.output_tokens is None:
                return  # how much of the time was prefill cannot be told
            first_at, output_tokens = now, dispatch.output_tokens
        tokens = dispatch.ahead_tokens + uncached
        sample = Sample(
            first_at - dispatch.sent_at,
            tokens,
            dispatch.ahead_attention + attention,
            dispatch.num_decoding,
            output_tokens,
            # What was before it is known less well.
            weight=uncached / tokens,
        )
        rates = self._rates
        if rates.observe(dispatch.replica.slot, sample, now):
            for replica in self._replicas.values():
                replica.load.set_rates(rates.rates(replica.slot))


def _without_tokens(mode: TrustMode) -> TrustMode:
    """Return what a prediction rests on for a prompt that was not tokenised."""
    return TrustMode.APPROXIMATE if mode is TrustMode.PRECISE else mode
