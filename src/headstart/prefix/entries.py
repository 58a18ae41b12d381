"""What the approximate index is made of."""

from collections.abc import Sequence
from typing import Final

import msgspec

from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.types import PrefixKey

SIZE_UNIT_BYTES: Final = 64
"""Sizes of blocks are kept in this unit: Python shares integers up to 256 and no others."""


class Entry(msgspec.Struct, gc=False):
    """A block of prompt that at least one replica holds; sets of replicas are bit masks of slots.

    Without the collector's header, which it needs not since nothing points back, it has 64 bytes.

    Attributes:
        held: who holds it, or is believed to soon.
        warm: of these, whose engine has answered a prompt with it.
        inner: of these that hold it, who also hold a block after it.
        parent: key of the block before it.
        size: of the block alone, in `SIZE_UNIT_BYTES`, rounded up.
        tokens: of the prompt up to the end of the block, times 4, plus how well that is known
            (`prefix.token_counts`).
    """

    held: int
    warm: int
    inner: int
    parent: PrefixKey | None
    size: int
    tokens: int


class End(msgspec.Struct, gc=False):
    """Where a prompt ended on one replica.

    Attributes:
        touched: monotonic seconds of the last dispatch or answer.
        extra_tokens: what the engine has beyond this block: what follows it without being a block,
            and what it generated. 0 if unknown.
    """

    touched: float
    extra_tokens: int = 0


class LastUse(msgspec.Struct, frozen=True, gc=False):
    """When a first block was used last.

    Attributes:
        at: monotonic seconds.
        clock: the replica's `Holdings.clock` then.
    """

    at: float
    clock: int


class Standing(msgspec.Struct, gc=False):
    """What a replica was believed to hold of a prompt when it was sent there.

    Attributes:
        prompt: the prompt.
        sent_at: monotonic seconds.
        clock: the replica's `Holdings.clock`.
        depth: leading blocks held.
        warm_depth: of these, answered for.
        tokens: in the blocks held.
        warm_tokens: in the blocks answered for.
        extra_tokens: as the end with the last block held has it; 0 if none ends there.
        end_touched: when that end was used last; None if there is none.
        root: when the first block was used last; None if it is new.
        token_prompt: the prompt as tokens, if the precise index was told of it.
        precise_tokens: what that said; None if it was not asked.
        is_remote: another gateway sent it.
        displaced: blocks that it takes the room of.
    """

    prompt: PromptKeys
    sent_at: float
    clock: int
    depth: int
    warm_depth: int
    tokens: int = 0
    warm_tokens: int = 0
    extra_tokens: int = 0
    end_touched: float | None = None
    root: LastUse | None = None
    token_prompt: TokenPrompt | None = None
    precise_tokens: int | None = None
    is_remote: bool = False
    displaced: Sequence[PrefixKey] = ()
