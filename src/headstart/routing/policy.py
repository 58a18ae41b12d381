"""What a routing policy is given, and what it answers.

A policy is plain synchronous code. It reads the replicas it is shown, neither logs nor counts,
and returns its choice as a value; whoever called it acts on that and records it.

Values that are made for each request are Structs: a frozen dataclass takes five times as long.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headstart.routing.replica import Replica
from headstart.types import PrefixKey


class RoutingRequest(msgspec.Struct, frozen=True):
    """What routing may know of a request.

    Attributes:
        model: name the client asked for.
        prefix_keys: chained hashes of the prompt's leading full blocks, first block first; empty
            for a prompt shorter than one block.
        prompt_bytes: size of the prompt's bytes, a stand-in for its tokens.
    """

    model: str
    prefix_keys: Sequence[PrefixKey] = ()
    prompt_bytes: int = 0


class Decision(msgspec.Struct, frozen=True):
    """A policy's choice.

    Attributes:
        replica: the chosen one, out of the candidates.
        policy: name of the policy that chose.
        reason: a few words for people, e.g. `ring owner` or `ring owner over its bound`.
    """

    replica: Replica
    policy: str
    reason: str


class Policy(Protocol):
    """Chooses a replica for each request."""

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        ...

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose among `candidates` one that has room.

        Args:
            request: what is known of it.
            candidates: all serve the model and may be used now, and at least one has room.
        """
        ...
