"""What a simulated gateway knows of replicas: what it sees, and what it sent there itself."""

from collections.abc import Sequence
from typing import Final, Protocol

from headstart.prefix.promises import Promises
from headstart.prefix.trust_mode import TrustMode
from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.simulator.sight import Sight
from headstart.types import PrefixKey

BYTES_PER_TOKEN: Final = 4
"""Of the prompts that gateways see; policies that count in bytes need one."""


class Pressured(Protocol):
    """A cache that may be full (`engine.SimulatedEngine`)."""

    def pressure(self, now: float) -> tuple[int, float | None]:
        """Return its capacity in tokens, and how long what it evicts next has been idle."""
        ...


class SimulatedKnowledge:
    """The index of a simulated gateway; see `routing.knowledge.PrefixKnowledge`.

    What was sent to a replica counts as held there until it is answered, as in the gateway.

    Args:
        block_tokens: tokens per block.
        sight: what can be seen of caches.
        caches: of each slot; they tell their pressure themselves, which the gateway learns from
            its approximate index.
    """

    def __init__(self, block_tokens: int, sight: Sight, caches: Sequence[Pressured]) -> None:
        self._block_tokens = block_tokens
        self._sight = sight
        self._caches = caches
        self._promises = Promises()
        self._modes: Sequence[TrustMode] = ()
        self._last: tuple[TokenPrompt | None, Sequence[int], Sequence[int]] = (None, (), ())

    def add_replica(self, slot: int, name: str) -> None:
        """Know a replica."""

    def remove_replica(self, slot: int) -> None:
        """Forget a replica."""
        self._promises.clear(slot)

    def match(
        self,
        prompt: PromptKeys,  # noqa: ARG002
        tokens: TokenPrompt | None,
        slots: Sequence[int],
        now: float,
    ) -> Sequence[int]:
        """Return how many of the prompt's tokens each replica holds, promised ones included."""
        assert tokens is not None
        size, promises = self._block_tokens, self._promises
        keys = tokens.keys_by_block_size[size]
        matched = self._sight.num_blocks(keys, slots, now)
        if promises:
            self._extend(keys, slots, matched)
        matched = [num_blocks * size for num_blocks in matched]
        self._last = (tokens, slots, matched)
        return matched

    def modes(self, slots: Sequence[int]) -> Sequence[TrustMode]:
        """Return that all are precise."""
        if len(self._modes) != len(slots):
            self._modes = (TrustMode.PRECISE,) * len(slots)
        return self._modes

    def dispatched(
        self, slot: int, prompt: PromptKeys, tokens: TokenPrompt | None, now: float
    ) -> None:
        """Promise that the replica will hold the prompt."""
        assert tokens is not None
        last, slots, matched = self._last
        if last is not tokens:
            slots, matched = (slot,), self.match(prompt, tokens, (slot,), now)
        start = matched[slots.index(slot)] // self._block_tokens
        self._promises.add(slot, tokens, tokens.keys_by_block_size[self._block_tokens][start:], now)

    def dispatched_elsewhere(
        self,
        slot: int,
        prompt: PromptKeys,  # noqa: ARG002
        tokens: TokenPrompt | None,
        now: float,
    ) -> None:
        """Hear that another gateway sent a prompt; `tokens` has the keys that were missing."""
        if tokens is not None:
            keys = tokens.keys_by_block_size.get(self._block_tokens, [])
            self._promises.add(slot, tokens, keys, now)

    def first_token(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Hear that the prompt was computed, which is seen."""

    def answered(
        self,
        slot: int,
        prompt: PromptKeys,  # noqa: ARG002
        tokens: TokenPrompt | None,
        matched_tokens: int,  # noqa: ARG002
        input_tokens: int | None,  # noqa: ARG002
        cached_tokens: int | None,  # noqa: ARG002
        output_tokens: int | None,  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> None:
        """End the promise."""
        if tokens is not None:
            self._promises.withdraw(slot, tokens)

    def failed(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Hear that the replica may not have computed it: its promises end by themselves."""

    def estimate_tokens(self, prompt: PromptKeys, slot: int) -> int:  # noqa: ARG002
        """Return how many tokens a prompt has."""
        return prompt.num_bytes // BYTES_PER_TOKEN

    def pressure(self, slot: int, now: float) -> tuple[int, float | None]:
        """Return a replica's capacity in tokens, and the idle time of what it would evict next."""
        return self._caches[slot].pressure(now)

    def _extend(self, keys: Sequence[PrefixKey], slots: Sequence[int], matched: list[int]) -> None:
        """Go on through blocks that are promised, and held ones behind them."""
        of, has, num = self._promises.of, self._sight.has, len(keys)
        for index, slot in enumerate(slots):
            promised = of(slot)
            if promised is None:
                continue
            at = matched[index]
            while at < num and (keys[at] in promised or has(slot, keys[at])):
                at += 1
            matched[index] = at
