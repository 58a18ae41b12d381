"""Attention of a range of rows in numpy: partial results per segment, merged by log-sum-exp.

Shapes: T rows (new tokens) of the range, H key-value heads, G query heads for each, D numbers per
head, N keys.
A partial result over some of a row's keys is (o, m, l): weighted values, maximum, and sum of
exponentials. Two of them merge exactly:

    m = max(m1, m2);  l = l1 e^(m1-m) + l2 e^(m2-m);  o = o1 e^(m1-m) + o2 e^(m2-m)

and after the last one the output is o / l.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from headstart.engines.embedded.attention_plan import (
    MIN_RUN_TOKENS,
    Causal,
    RowAttention,
    Segment,
    SlotRange,
)
from headstart.engines.embedded.gguf import FloatArray

IntArray = npt.NDArray[np.intp]

_MAX_SCORES: Final = 1 << 21
"""Scores held at a time (8 MiB): bounds memory at long contexts and keeps softmax near the CPU."""


@dataclass(frozen=True, slots=True)
class LeafArrays:
    """The leaves of a plan as index arrays, made once per step.

    Attributes:
        rows: [B] rows, or a slice if they are all rows.
        blocks: [B, n] block numbers, padded with the row's own last block.
        mask: [B, 1, n * block_size] 0, or -inf where a slot is not to be seen.
    """

    rows: IntArray | slice
    blocks: IntArray
    mask: FloatArray


def leaf_arrays(plan: RowAttention, block_size: int, num_rows: int) -> LeafArrays | None:
    """Turn the leaves of `num_rows` rows into index arrays; None if there are none."""
    if not plan.leaves:
        return None
    width = max(len(leaf.blocks) for leaf in plan.leaves)
    padded = [leaf.blocks + leaf.blocks[-1:] * (width - len(leaf.blocks)) for leaf in plan.leaves]
    rows: IntArray | slice = slice(None)
    if len(plan.leaves) < num_rows:
        rows = np.array([leaf.row for leaf in plan.leaves])
    num_tokens = np.array([leaf.num_tokens for leaf in plan.leaves])
    hidden = np.arange(width * block_size) >= num_tokens[:, None, None]
    return LeafArrays(rows, np.array(padded), np.where(hidden, -np.inf, 0).astype(np.float32))


class Accumulator:
    """The partial results of a range of rows, while one set of keys after another is merged in.

    Each row is begun once, with its causal part or its leaf, and then takes any number of
    segments.

    Args:
        queries: [H, T, G, D] C-contiguous, scaled by 1/sqrt(D).
    """

    __slots__ = ("_maximum", "_output", "_queries", "_sum")

    def __init__(self, queries: FloatArray) -> None:
        self._queries = queries
        self._output = np.empty_like(queries)
        self._maximum = np.empty((*queries.shape[:3], 1), np.float32)
        self._sum = np.empty((*queries.shape[:3], 1), np.float32)

    def begin_causal(self, causal: Causal, keys: FloatArray, values: FloatArray) -> None:
        """Let rows attend to the new tokens of their own sequence up to themselves.

        Args:
            causal: which rows.
            keys: [H, n, D], of the sequence's new tokens up to the last of these rows.
            values: likewise.
        """
        rows = slice(causal.first_row, causal.end_row)
        queries = self._queries[:, rows]
        scores = _scores(queries, [keys])
        num_rows, num_keys = queries.shape[1], keys.shape[1]
        above = np.triu(np.full((num_rows, num_rows), -np.inf, np.float32), 1)
        by_row = scores.reshape(*queries.shape[:3], num_keys)
        by_row[..., num_keys - num_rows :] += above[:, None]
        self._begin(rows, *_weigh(scores, [values], queries.shape))

    def begin_leaves(self, leaves: LeafArrays, keys: FloatArray, values: FloatArray) -> None:
        """Let decoding rows attend to their own scattered blocks.

        Args:
            leaves: rows and blocks.
            keys: one layer of the pool, [H, num_blocks, block_size, D].
            values: likewise.
        """
        queries = self._queries[:, leaves.rows]
        shape = (*queries.shape[:2], -1, queries.shape[3])  # [H, B, N, D]
        scores = np.matmul(queries, keys[:, leaves.blocks].reshape(shape).swapaxes(2, 3))
        scores += leaves.mask
        part = _weigh(scores, [values[:, leaves.blocks].reshape(shape)], queries.shape)
        self._begin(leaves.rows, *part)

    def add_segment(self, segment: Segment, keys: FloatArray, values: FloatArray) -> None:
        """Let a range of rows attend to keys that all of them see whole.

        Args:
            segment: rows and slots.
            keys: one layer of the pool, [H, num_slots, D].
            values: likewise.
        """
        parts_k, parts_v = _parts(keys, segment.ranges), _parts(values, segment.ranges)
        num_heads, _, group_size, _ = self._queries.shape
        num_keys = sum(end - first for first, end in segment.ranges)
        tile = max(1, _MAX_SCORES // (num_heads * group_size * num_keys))
        for a in range(segment.first_row, segment.end_row, tile):
            b = min(a + tile, segment.end_row)
            queries = self._queries[:, a:b]
            self._merge(a, b, *_weigh(_scores(queries, parts_k), parts_v, queries.shape))

    def result(self) -> FloatArray:
        """Return the attention's output, [H, T, G, D]; ends the accumulation."""
        self._output /= self._sum
        return self._output

    def _begin(
        self, rows: IntArray | slice, output: FloatArray, maximum: FloatArray, total: FloatArray
    ) -> None:
        self._output[:, rows] = output
        self._maximum[:, rows] = maximum
        self._sum[:, rows] = total

    def _merge(
        self, a: int, b: int, output: FloatArray, maximum: FloatArray, total: FloatArray
    ) -> None:
        old = self._maximum[:, a:b]
        new = np.maximum(old, maximum)
        old -= new
        np.exp(old, out=old)
        maximum -= new
        np.exp(maximum, out=maximum)
        output *= maximum
        total *= maximum
        self._output[:, a:b] *= old
        self._output[:, a:b] += output
        self._sum[:, a:b] *= old
        self._sum[:, a:b] += total
        self._maximum[:, a:b] = new


def _parts(pool: FloatArray, ranges: Sequence[SlotRange]) -> list[FloatArray]:
    """Return the slots as views where a run is long; the short ones copied into one array."""
    parts = [pool[:, a:b] for a, b in ranges if b - a >= MIN_RUN_TOKENS]
    short = [pool[:, a:b] for a, b in ranges if b - a < MIN_RUN_TOKENS]
    if short:
        parts.append(np.concatenate(short, axis=1))
    return parts


def _scores(queries: FloatArray, parts: Sequence[FloatArray]) -> FloatArray:
    """Multiply queries [H, R, G, D] by keys, several [H, n, D]: [H, R * G, N]."""
    num_heads, num_rows, group_size, head_dim = queries.shape
    flat = queries.reshape(num_heads, num_rows * group_size, head_dim)
    num_keys = sum(part.shape[1] for part in parts)
    scores: FloatArray = np.empty((num_heads, num_rows * group_size, num_keys), np.float32)
    start = 0
    for part in parts:
        end = start + part.shape[1]
        np.matmul(flat, part.swapaxes(1, 2), out=scores[:, :, start:end])
        start = end
    return scores


def _weigh(
    scores: FloatArray, parts: Sequence[FloatArray], shape: tuple[int, ...]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Turn scores into a partial result (o, m, l) of rows of `shape`; overwrites `scores`."""
    maximum = scores.max(axis=-1, keepdims=True)
    scores -= maximum
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    start = parts[0].shape[-2]
    output = np.matmul(scores[..., :start], parts[0])
    for part in parts[1:]:
        end = start + part.shape[-2]
        output += np.matmul(scores[..., start:end], part)
        start = end
    column = (*shape[:3], 1)
    return output.reshape(shape), maximum.reshape(column), total.reshape(column)
