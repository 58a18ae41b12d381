"""The narrow waist between scheduling and arithmetic: what a step computes, and who computes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headstart.types import TokenId


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """What one sequence computes in one step.

    Attributes:
        token_ids: the new tokens, at least one.
        start: position of the first of them; the KV of all positions before it is in the pool.
        block_ids: blocks of positions 0, block_size, ...; they reach past the last new token.
            Blocks may be shared with other sequences up to `start`, not beyond.
        needs_logits: whether the next token is sampled after the last of `token_ids`.
    """

    token_ids: Sequence[TokenId]
    start: int
    block_ids: Sequence[int]
    needs_logits: bool


class Backend(Protocol):
    """Runs the model over a batch and keeps its KV; knows no requests, hashes or sampling.

    The KV of a position is written before the call returns and read by later calls under the
    same block number, whoever makes them. Repeating a step writes the same values again.
    """

    def forward(self, batch: Sequence[SequenceStep]) -> npt.NDArray[np.float32]:
        """Compute one step.

        Args:
            batch: at least one sequence; all may differ in length.

        Returns:
            logits: [number of `needs_logits`, V] float32, in the batch's order; valid until the
            next call.
        """
        ...
