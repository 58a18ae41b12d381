"""A prefix view that holds what it is told to and writes down what it hears."""

from collections.abc import Sequence

from headstart.prefix.trust import TrustMode
from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt


class RecordingView:
    """Stands in for `prefix.view.PrefixView` where only the conversation with it matters.

    Attributes:
        held: tokens by slot, whatever the prompt.
        idle_s: of what each would evict next, by slot; without it there is room.
        heard: what was called, with the slot and what matters of the rest.
    """

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.idle_s: dict[int, float] = {}
        self.heard: list[tuple[object, ...]] = []

    def add_replica(self, slot: int, name: str) -> None:
        self.held[slot] = 0
        self.heard.append(("add", slot, name))

    def remove_replica(self, slot: int) -> None:
        del self.held[slot]
        self.heard.append(("remove", slot))

    def match(
        self, prompt: PromptKeys, tokens: TokenPrompt | None, slots: Sequence[int], now: float
    ) -> list[int]:
        self.heard.append(("match", tuple(slots)))
        return [self.held[slot] for slot in slots]

    def modes(self, slots: Sequence[int]) -> list[TrustMode]:
        return [TrustMode.APPROXIMATE] * len(slots)

    def dispatched(
        self, slot: int, prompt: PromptKeys, tokens: TokenPrompt | None, now: float
    ) -> None:
        self.heard.append(("dispatched", slot))

    def first_token(self, slot: int, prompt: PromptKeys, now: float) -> None:
        self.heard.append(("first_token", slot))

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
        self.heard.append(("answered", slot, matched_tokens, cached_tokens))

    def failed(self, slot: int, prompt: PromptKeys, now: float) -> None:
        self.heard.append(("failed", slot))

    def estimate_tokens(self, prompt: PromptKeys, slot: int) -> int:
        return prompt.num_bytes // 4

    def pressure(self, slot: int, now: float) -> tuple[int, float | None]:
        return 1_000_000, self.idle_s.get(slot)
