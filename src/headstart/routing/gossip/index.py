"""Prefixes that other processes sent somewhere, brought into our own index.

A prompt is remembered from its dispatch until its outcome, which says by its number only what came
of it. The memory is bounded: an outcome whose prompt is forgotten, or was never heard, teaches
nothing, and the next request with that prefix does.
"""

from collections.abc import Callable
from typing import Final, Protocol, cast

import msgspec

from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.types import PrefixKey
from headstart.wire.gossip import (
    GossipBatch,
    GossipDecodeError,
    Outcome,
    SentPrompt,
    unpack_blocks,
    unpack_keys,
)

MAX_REMEMBERED_KEYS: Final = 1 << 18
"""Of all prompts without an outcome, each of which counts as one key more: about 25 MB."""


class SharedKnowledge(Protocol):
    """What learns from other processes' dispatches: `prefix.view.PrefixView`."""

    def dispatched_elsewhere(
        self, slot: int, prompt: PromptKeys, tokens: TokenPrompt | None, now: float
    ) -> None:
        """Hear that another process sent a prompt to a replica.

        Args:
            slot: of the replica.
            prompt: keys of its bytes; the same object comes with what became of it.
            tokens: with the keys of those blocks that the replica did not hold then.
            now: monotonic seconds.
        """
        ...

    def first_token(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Hear that the replica has computed it."""
        ...

    def answered(
        self,
        slot: int,
        prompt: PromptKeys,
        tokens: TokenPrompt | None,
        matched_tokens: int,
        input_tokens: int | None,
        cached_tokens: int | None,
        output_tokens: int | None,
        now: float,
    ) -> None:
        """Hear that it has, and what it says of its cache."""
        ...

    def failed(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Hear that it may not have computed the prompt."""
        ...


class _Waiting(msgspec.Struct, frozen=True):
    """A prompt without an outcome."""

    replica_id: bytes
    prompt: PromptKeys
    tokens: TokenPrompt | None
    matched_tokens: int | None
    weight: int


class RemoteIndex:
    """Applies what peers tell of prompts.

    Args:
        view: what each replica holds, as this process knows it.
        slot_of: the slot of a replica; None if it is none of ours.
    """

    __slots__ = (
        "_num_keys",
        "_slot_of",
        "_view",
        "_waiting",
        "num_forgotten",
        "num_malformed",
        "num_strange",
    )

    def __init__(self, view: SharedKnowledge, slot_of: Callable[[bytes], int | None]) -> None:
        self._view = view
        self._slot_of = slot_of
        self._waiting: dict[tuple[str, int, int], _Waiting] = {}  # oldest first
        self._num_keys = 0
        self.num_forgotten = 0
        self.num_malformed = 0
        self.num_strange = 0

    def sent(self, batch: GossipBatch, prompt: SentPrompt, now: float) -> None:
        """Take in that a prompt of `batch` was sent.

        Cost: O(its keys).
        """
        slot = self._slot_of(prompt.replica)
        if slot is None:
            self.num_strange += 1
            return
        try:
            keys, tokens = _keys_of(prompt), _tokens_of(prompt)
        except GossipDecodeError:
            self.num_malformed += 1
            return
        self._remember(
            (batch.sender, batch.epoch, prompt.number),
            _Waiting(prompt.replica, keys, tokens, prompt.matched_tokens, prompt.num_keys + 1),
        )
        self._view.dispatched_elsewhere(slot, keys, tokens, now)

    def computed(self, batch: GossipBatch, number: int, now: float) -> None:
        """Take in that the answer to a prompt of the sender of `batch` has begun."""
        waiting = self._waiting.get((batch.sender, batch.epoch, number))
        if waiting is None:
            self.num_forgotten += 1
            return
        slot = self._slot_of(waiting.replica_id)
        if slot is not None:
            self._view.first_token(slot, waiting.prompt, now)

    def came_back(self, batch: GossipBatch, outcome: Outcome, now: float) -> None:
        """Take in what came of a prompt of the sender of `batch`."""
        waiting = self._waiting.pop((batch.sender, batch.epoch, outcome.number), None)
        if waiting is None:
            self.num_forgotten += 1
            return
        self._num_keys -= waiting.weight
        # Asked again: the replica may be gone, and its slot another's.
        slot = self._slot_of(waiting.replica_id)
        if slot is None:
            self.num_strange += 1
        elif outcome.is_computed:
            self._view.answered(
                slot,
                waiting.prompt,
                waiting.tokens,
                waiting.matched_tokens or 0,
                outcome.input_tokens,
                outcome.cached_tokens,
                outcome.output_tokens,
                now,
            )
        else:
            self._view.failed(slot, waiting.prompt, now)

    def check_integrity(self) -> None:
        """Assert the bound and its count."""
        assert self._num_keys == sum(each.weight for each in self._waiting.values())
        assert self._num_keys <= MAX_REMEMBERED_KEYS

    def _remember(self, key: tuple[str, int, int], waiting: _Waiting) -> None:
        before = self._waiting.pop(key, None)
        if before is not None:
            self._num_keys -= before.weight
        self._waiting[key] = waiting
        self._num_keys += waiting.weight
        while self._num_keys > MAX_REMEMBERED_KEYS:
            oldest = next(iter(self._waiting))
            self._num_keys -= self._waiting.pop(oldest).weight


def _keys_of(prompt: SentPrompt) -> PromptKeys:
    keys, ends = unpack_blocks(prompt)
    return PromptKeys(cast("list[PrefixKey]", keys), ends, prompt.num_bytes)


def _tokens_of(prompt: SentPrompt) -> TokenPrompt | None:
    """Return the prompt's tokens without the blocks that the replica held when it was sent."""
    if prompt.num_tokens is None:
        return None
    return TokenPrompt(
        prompt.num_tokens,
        {
            each.block_size: cast("list[PrefixKey]", unpack_keys(each.keys))
            for each in prompt.token_keys
        },
    )
