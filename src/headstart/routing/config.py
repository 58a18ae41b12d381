"""Which policy routes, and its parameters."""

from dataclasses import dataclass, field
from typing import Literal

PolicyName = Literal["round_robin", "least_loaded", "prefix_hash"]


@dataclass(frozen=True, slots=True)
class PrefixHashConfig:
    """Parameters of consistent hashing with bounded load.

    Attributes:
        leading_blocks: at most this many leading blocks of a prompt choose its replica, >= 1;
            rounded down to a power of two.
        load_bound: a replica takes at most this multiple of the mean load, > 1.
        block_bytes: bytes of prompt in one block, >= 1.
    """

    leading_blocks: int = 8
    load_bound: float = 1.25
    block_bytes: int = 1024


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Policy by name and the parameters of those that have some."""

    policy: PolicyName = "prefix_hash"
    prefix_hash: PrefixHashConfig = field(default_factory=PrefixHashConfig)
