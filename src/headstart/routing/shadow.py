"""Policies that are asked and not obeyed: what they would have chosen, and matched."""

from collections.abc import Sequence

from headstart.routing.policy import Policy, RoutingRequest
from headstart.routing.replica import Replica


class Shadow:
    """One policy beside the one that acts, and what it would have done.

    It sees the load and the caches that the acting policy made, so its figures say how often the
    two part and what that would have matched at that moment, not what the fleet would be like
    under it: that is the simulator's question.

    Attributes:
        policy: an instance of its own.
        num_decisions: how often it was asked.
        num_agreed: of these, how often it chose the same replica.
        matched_tokens: what its choices held.
        acted_matched_tokens: what the choices held that were acted on.
        input_tokens: of all those requests.
    """

    __slots__ = (
        "acted_matched_tokens",
        "input_tokens",
        "matched_tokens",
        "num_agreed",
        "num_decisions",
        "policy",
    )

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.num_decisions = self.num_agreed = 0
        self.matched_tokens = self.acted_matched_tokens = self.input_tokens = 0

    def observe(
        self, request: RoutingRequest, candidates: Sequence[Replica], acted: int
    ) -> Replica:
        """Ask the policy and count; return its choice.

        Args:
            request: filled in by the router.
            candidates: as given to the acting policy.
            acted: index of its choice.
        """
        chosen = self.policy.choose(request, candidates).replica
        index = candidates.index(chosen)
        self.num_decisions += 1
        self.num_agreed += index == acted
        self.input_tokens += request.input_tokens
        if request.matched_tokens:
            self.matched_tokens += request.matched_tokens[index]
            self.acted_matched_tokens += request.matched_tokens[acted]
        return chosen
