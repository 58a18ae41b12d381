"""One attempt to have a request answered by one replica: what was known, chosen and heard."""

from collections.abc import Sequence

import msgspec

from headstart.routing.load import NO_WORK, Work
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class Dispatch(msgspec.Struct, eq=False, weakref=False):
    """What the router remembers of an attempt; nothing here is built for reading.

    Made by `Router.send`, changed by the router only. A receipt is made of it on demand
    (`routing.receipt`), so most of it are references to what was at hand.

    Attributes:
        request: with what routing was filled in: `matched_tokens` and `modes` per candidate.
        candidates: among which was chosen, in the order of the request's sequences.
        decision: the policy's.
        index: of the chosen replica among the candidates.
        in_flight: requests that each candidate had before this one.
        pending_tokens: uncached tokens that each candidate had yet to prefill.
        work: what the request asks of the chosen replica, as expected.
        ahead_tokens: uncached tokens that the replica had yet to prefill before it.
        ahead_attention: these times their mean context.
        num_decoding: requests that the replica was generating for when this one was sent.
        first_at: when the first token came; None if it has not, or was not seen by itself.
        input_tokens: as the engine reports; None if it does not. Likewise the next two.
        cached_tokens: of these, taken from the cache.
        output_tokens: generated.
        is_answered: the engine has answered in full.
        ended_at: when nothing more was to come; None until then.
    """

    request: RoutingRequest
    candidates: Sequence[Replica]
    decision: Decision
    index: int
    in_flight: Sequence[int] = ()
    pending_tokens: Sequence[int] = ()
    work: Work = NO_WORK
    ahead_tokens: float = 0.0
    ahead_attention: float = 0.0
    num_decoding: int = 0
    first_at: float | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    is_answered: bool = False
    ended_at: float | None = None

    @property
    def replica(self) -> Replica:
        """The chosen one."""
        return self.decision.replica

    @property
    def policy(self) -> str:
        """The name of the policy that chose."""
        return self.decision.policy

    @property
    def reason(self) -> str:
        """Why, in a few words for people."""
        return self.decision.reason

    @property
    def sent_at(self) -> float:
        """Monotonic seconds when it was sent."""
        return self.request.now

    @property
    def matched_tokens(self) -> int | None:
        """What the index predicts the replica holds; None where no index was asked."""
        matched = self.request.matched_tokens
        return matched[self.index] if matched else None
