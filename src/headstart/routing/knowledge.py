"""What the router needs to know of replicas' caches, and whom it tells."""

from collections.abc import Sequence
from typing import Protocol

from headstart.prefix.trust import TrustMode
from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt


class PrefixKnowledge(Protocol):
    """What each replica holds (`prefix.view.PrefixView`; the simulator's exact one)."""

    def add_replica(self, slot: int, name: str) -> None:
        """Know a replica; it holds nothing."""
        ...

    def remove_replica(self, slot: int) -> None:
        """Forget a replica."""
        ...

    def match(
        self, prompt: PromptKeys, tokens: TokenPrompt | None, slots: Sequence[int], now: float
    ) -> Sequence[int]:
        """Return how many of the prompt's tokens each replica holds."""
        ...

    def modes(self, slots: Sequence[int]) -> Sequence[TrustMode]:
        """Return how far what is known of each is to be believed."""
        ...

    def dispatched(
        self, slot: int, prompt: PromptKeys, tokens: TokenPrompt | None, now: float
    ) -> None:
        """Hear that a prompt was sent to a replica."""
        ...

    def first_token(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Hear that the replica has computed it, before it has answered in full."""
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
        """Hear that the replica has computed it, and what it says of its cache."""
        ...

    def failed(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Hear that the replica may not have computed it."""
        ...

    def estimate_tokens(self, prompt: PromptKeys, slot: int) -> int:
        """Return about how many tokens a prompt has, on the scale of what is matched."""
        ...

    def pressure(self, slot: int, now: float) -> tuple[int, float | None]:
        """Return a replica's capacity in tokens, and the idle time of what it would evict next.

        The latter is None while there is room.
        """
        ...
