"""What a routing policy is given, and what it answers.

A policy is plain synchronous code. It reads the replicas it is shown, neither logs nor counts,
and returns its choice as a value; whoever called it acts on that and records it.

Values that are made for each request are Structs: a frozen dataclass takes five times as long.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headstart.prefix.trust import TrustMode
from headstart.prompt.fingerprint import NO_KEYS, PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.routing.replica import Replica


class RoutingRequest(msgspec.Struct, gc=False):
    """What routing may know of a request.

    The last three are filled in by the router, `matched_tokens` and `modes` only for policies that
    use them.

    Attributes:
        model: name the client asked for.
        prompt: keys of the prompt's bytes.
        tokens: the prompt as tokens, where the tokenizer is known.
        prompt_bytes: size of the body.
        session: what the client calls its conversation; empty if it does not say.
        now: monotonic seconds.
        is_stream: the answer comes as a stream, so that its first token is seen.
        input_tokens: of the prompt: counted where `tokens` is known, else estimated.
        matched_tokens: how many of them each candidate holds, as the index predicts; empty where
            no index was asked.
        modes: how far that is to be believed, for each candidate.
    """

    model: str
    prompt: PromptKeys = NO_KEYS
    tokens: TokenPrompt | None = None
    prompt_bytes: int = 0
    session: str = ""
    now: float = 0.0
    is_stream: bool = True
    input_tokens: int = 0
    matched_tokens: Sequence[int] = ()
    modes: Sequence[TrustMode] = ()


class Decision(msgspec.Struct, frozen=True):
    """A policy's choice.

    Attributes:
        replica: the chosen one, out of the candidates.
        policy: name of the policy that chose.
        reason: a few words for people, e.g. `ring owner` or `ring owner over its bound`.
        prices: what each candidate would cost, in the policy's own unit, the least is best; empty
            for a policy that does not price.
    """

    replica: Replica
    policy: str
    reason: str
    prices: Sequence[float] = ()


class Policy(Protocol):
    """Chooses a replica for each request."""

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        ...

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        ...

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose among `candidates` one that has room.

        Args:
            request: what is known of it.
            candidates: all serve the model and may be used now, and at least one has room.
        """
        ...
