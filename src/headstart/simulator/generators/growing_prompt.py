"""A prompt that grows, turn by turn, and the draws that generators have in common."""

from math import log
from random import Random

from headstart.simulator.trace import PrefixTree


class GrowingPrompt:
    """A prompt to which only ever something is added.

    Args:
        tree: of the trace; gives the numbers.
        block_tokens: in a block.

    Attributes:
        num_tokens: so far.
        blocks: the full ones, chained.
    """

    __slots__ = ("_block_tokens", "_tree", "blocks", "num_tokens")

    def __init__(self, tree: PrefixTree, block_tokens: int) -> None:
        self._tree = tree
        self._block_tokens = block_tokens
        self.num_tokens = 0
        self.blocks: tuple[int, ...] = ()

    def grow(self, num_tokens: int) -> None:
        """Add tokens that no other prompt has at this place."""
        self.num_tokens += num_tokens
        num_new = self.num_tokens // self._block_tokens - len(self.blocks)
        self.blocks += tuple(self._tree.fresh(num_new))

    def fork(self) -> "GrowingPrompt":
        """Return a prompt that begins with this one and grows by itself."""
        other = GrowingPrompt(self._tree, self._block_tokens)
        other.num_tokens, other.blocks = self.num_tokens, self.blocks
        return other


def draw_length(rng: Random, mean: float, sigma: float) -> int:
    """Return a number of tokens, >= 1, log-normal with this mean."""
    return max(1, round(rng.lognormvariate(log(mean) - sigma * sigma / 2, sigma)))


def draw_turns(rng: Random, mean: float) -> int:
    """Return a number of turns, >= 1, geometric with this mean (>= 1)."""
    turns = 1
    while rng.random() >= 1 / mean:
        turns += 1
    return turns
