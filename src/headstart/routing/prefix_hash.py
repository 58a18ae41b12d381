"""Consistent hashing with bounded load over a prompt's leading blocks."""

from bisect import bisect_right
from collections.abc import Sequence

from headstart.prompt.fingerprint import PromptKeys
from headstart.routing.bounded_ring import BoundedRing
from headstart.routing.config import PrefixHashConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica
from headstart.types import PrefixKey


class PrefixHash:
    """Prompts that begin alike go to one replica, unless it has more than its share.

    The key stands for the first 1, 2, 4 … times `block_bytes`, as many as the prompt has and at
    most `leading_blocks`; for what ends in there, if a message ends before. A conversation that
    grows thus changes its key, and possibly its replica, at most log2(leading_blocks) times, and
    not once per turn. A prompt shorter than a block has no key: it goes where there is least to do.
    """

    __slots__ = ("_config", "_ring")

    def __init__(self, config: PrefixHashConfig) -> None:
        self._config = config
        self._ring = BoundedRing(config.load_bound)

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "prefix_hash"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return False

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the first replica on the ring that is below its bound.

        Cost: O(candidates + log(candidates)) while the set of candidates stays the same.
        """
        key = leading_key(request.prompt, self._config)
        if key is None:
            replica = self._ring.pick_least_loaded(candidates)
            return Decision(replica, self.name, "short prompt, least loaded")
        replica, reason = self._ring.pick(key, candidates)
        return Decision(replica, self.name, reason)


def leading_key(prompt: PromptKeys, blocks: PrefixHashConfig) -> PrefixKey | None:
    """Return the key of a prompt's first 1, 2, 4 … blocks; None if it is shorter than one."""
    num_blocks = min(prompt.num_bytes // blocks.block_bytes, blocks.leading_blocks)
    if num_blocks == 0 or not prompt.keys:
        return None
    last_end = floor_power_of_two(num_blocks) * blocks.block_bytes
    # The first block ends there at the latest, but for keys of blocks of another size.
    return prompt.keys[max(bisect_right(prompt.ends, last_end) - 1, 0)]


def floor_power_of_two(number: int) -> int:
    """Return the largest power of two that is at most `number` (>= 1)."""
    assert number >= 1
    return 1 << (number.bit_length() - 1)
