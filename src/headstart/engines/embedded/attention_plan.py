"""Which queries attend to which keys in one step, so that each key is read as seldom as possible.

ChunkAttention's two-phase partition (arXiv:2402.15220): sequences are ordered so that those which
share leading blocks are neighbours; the blocks that a group shares become one segment to which all
of the group's queries attend in one matrix product (chunk first), and what a sequence has alone
follows (sequence first). The parts are merged by log-sum-exp, so their order does not matter, and
neither does the order of keys inside a part that every query may see whole: blocks are sorted by
their place in memory and runs of neighbours are used as they lie, without being copied.

    rows       s0 s1 s1 s1 s2 s3        new tokens of four sequences, s1 is being prefilled
    segments   [-------A-------]        blocks that s0, s1, s2 share
                  [---B---]             earlier blocks of s1 alone
    causal        [---C---]             s1's new tokens among themselves
    leaves     L           L  L         the last, partly filled blocks of decoding sequences

Every row is in exactly one of `causal` and `leaves`, and in any number of segments. Knows block
numbers and positions; no arrays, no weights.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Final, TypeVar

from headstart.engines.embedded.backend import SequenceStep

SlotRange = tuple[int, int]
"""Neighbouring token slots of the pool: first, and one past the last."""

MIN_RUN_TOKENS: Final = 64
"""A shorter run costs less to copy than the calls that would use it in place (measured: a matrix
product and its softmax cost about 15 µs, copying 64 tokens of 3 heads of 64 about the same)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys that all rows of a range may see whole.

    Attributes:
        first_row, end_row: rows of the step; end is exclusive.
        ranges: where the keys lie, in ascending order, neighbours merged.
    """

    first_row: int
    end_row: int
    ranges: tuple[SlotRange, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """Scattered keys of a sequence with one new token, that token's own included.

    Attributes:
        row: its row.
        blocks: blocks to gather; the last is the one that is being filled.
        num_tokens: how many leading tokens of these blocks it sees, >= 1.
    """

    row: int
    blocks: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Causal:
    """New tokens of one sequence among themselves: each sees those up to itself.

    Attributes:
        first_row: the first of the rows that attend.
        end_row: one past the last.
        first_key_row: row of the sequence's first new token, counted in the whole step.
    """

    first_row: int
    end_row: int
    first_key_row: int


@dataclass(frozen=True, slots=True)
class RowAttention:
    """What a range of rows attends to; rows are counted from the range's first.

    Attributes:
        segments: keys that are seen whole.
        causal: sequences with several new tokens.
        leaves: sequences with one new token.
    """

    segments: tuple[Segment, ...]
    causal: tuple[Causal, ...]
    leaves: tuple[Leaf, ...]

    def tile(self, first_row: int, end_row: int) -> "RowAttention":
        """Return the part that concerns rows `first_row`..`end_row` alone."""

        def clip(part: _Part) -> _Part:
            first, end = max(part.first_row, first_row), min(part.end_row, end_row)
            return replace(part, first_row=first - first_row, end_row=end - first_row)

        def is_in(part: Segment | Causal) -> bool:
            return part.first_row < end_row and part.end_row > first_row

        return RowAttention(
            segments=tuple(clip(s) for s in self.segments if is_in(s)),
            causal=tuple(clip(c) for c in self.causal if is_in(c)),
            leaves=tuple(
                replace(leaf, row=leaf.row - first_row)
                for leaf in self.leaves
                if first_row <= leaf.row < end_row
            ),
        )


_Part = TypeVar("_Part", Segment, Causal)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's attention.

    Attributes:
        order: positions in the batch, in the order of the rows.
        row_starts: first row of each sequence, in that order, and the number of rows at the end.
        rows: what all rows attend to.
    """

    order: tuple[int, ...]
    row_starts: tuple[int, ...]
    rows: RowAttention


@dataclass(slots=True)
class _Sequence:
    """One sequence while the plan is made.

    Attributes:
        step: what it computes.
        first_row, end_row: its rows.
        blocks: its context's full blocks.
        alone: those of them that it shares with nobody in this step, or too few to matter.
    """

    step: SequenceStep
    first_row: int
    end_row: int
    blocks: Sequence[int]
    alone: list[int] = field(default_factory=list)


def plan_attention(batch: Sequence[SequenceStep], block_size: int) -> AttentionPlan:
    """Partition a step's attention.

    Cost: O(b log b) comparisons of block lists for b sequences, plus the blocks they list.
    """
    full_blocks = [step.block_ids[: step.start // block_size] for step in batch]
    order = sorted(range(len(batch)), key=lambda i: list(full_blocks[i]))
    row_starts = [0, *accumulate(len(batch[i].token_ids) for i in order)]
    sequences = [
        _Sequence(batch[i], row_starts[n], row_starts[n + 1], full_blocks[i])
        for n, i in enumerate(order)
    ]
    segments = _share(sequences, 0, block_size)
    leaves: list[Leaf] = []
    for sequence in sequences:
        if len(sequence.step.token_ids) > 1:
            segments.extend(_context(sequence, block_size))
        else:
            leaf, segment = _leaf(sequence, block_size)
            segments.extend(segment)
            leaves.append(leaf)
    causal = [
        Causal(s.first_row, s.end_row, s.first_row) for s in sequences if len(s.step.token_ids) > 1
    ]
    rows = RowAttention(tuple(segments), tuple(causal), tuple(leaves))
    return AttentionPlan(tuple(order), tuple(row_starts), rows)


def merge_blocks(blocks: Iterable[int], block_size: int) -> tuple[SlotRange, ...]:
    """Return the slots of `blocks` in ascending order as maximal runs of neighbours."""
    ranges: list[SlotRange] = []
    for block in sorted(blocks):
        first = block * block_size
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], first + block_size)
        else:
            ranges.append((first, first + block_size))
    return tuple(ranges)


def _share(sequences: Sequence[_Sequence], depth: int, block_size: int) -> list[Segment]:
    """Make a segment of each run of blocks that neighbours share from `depth` on, recursively.

    `sequences` are in ascending order of their blocks and agree in the first `depth` of them, so
    what the first and the last have in common all have in common.
    """
    first, last = sequences[0], sequences[-1]
    if first is last:
        first.alone.extend(first.blocks[depth:])
        return []
    end = _common_end(first.blocks, last.blocks, depth)
    segments: list[Segment] = []
    if (end - depth) * block_size >= MIN_RUN_TOKENS:
        ranges = merge_blocks(first.blocks[depth:end], block_size)
        segments.append(Segment(first.first_row, last.end_row, ranges))
    else:
        for sequence in sequences:
            sequence.alone.extend(sequence.blocks[depth:end])
    going_on = [sequence for sequence in sequences if len(sequence.blocks) > end]
    for _, group in groupby(going_on, key=lambda sequence: sequence.blocks[end]):
        segments.extend(_share(list(group), end, block_size))
    return segments


def _common_end(left: Sequence[int], right: Sequence[int], start: int) -> int:
    limit = min(len(left), len(right))
    return next((i for i in range(start, limit) if left[i] != right[i]), limit)


def _context(sequence: _Sequence, block_size: int) -> list[Segment]:
    """Cover what a sequence with several new tokens has before them, partly filled block too."""
    ranges = merge_blocks(sequence.alone, block_size)
    tail_block, num_tail = divmod(sequence.step.start, block_size)
    if num_tail:
        first = sequence.step.block_ids[tail_block] * block_size
        ranges = (*ranges, (first, first + num_tail))
    return [Segment(sequence.first_row, sequence.end_row, ranges)] if ranges else []


def _leaf(sequence: _Sequence, block_size: int) -> tuple[Leaf, list[Segment]]:
    """Divide what a sequence with one new token has alone into a copied and an uncopied part."""
    ranges = merge_blocks(sequence.alone, block_size)
    long = tuple((a, b) for a, b in ranges if b - a >= MIN_RUN_TOKENS)
    short = [
        block
        for a, b in ranges
        if b - a < MIN_RUN_TOKENS
        for block in range(a // block_size, b // block_size)
    ]
    tail_block, num_before = divmod(sequence.step.start, block_size)
    leaf = Leaf(
        row=sequence.first_row,
        blocks=(*short, sequence.step.block_ids[tail_block]),
        num_tokens=len(short) * block_size + num_before + 1,
    )
    return leaf, [Segment(sequence.first_row, sequence.end_row, long)] if long else []
