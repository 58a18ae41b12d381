"""Blocks that a replica will hold as soon as it computes what it was sent.

Engines register a block when they schedule it, so a second request with the same prefix hits what
the first is still computing. Its events come later; until then the index would send siblings of a
burst to different replicas. A promise fills the time from dispatch to first token.

Source: llm-d and Dynamo keep such entries for 2 and 5 s; ours end with the prefill.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headstart.prefix.counts import add_each, take_each
from headstart.prompt.token_keys import TokenPrompt
from headstart.types import PrefixKey

MAX_PROMISE_S: Final = 60.0
"""For one that nobody withdraws."""

MAX_PROMISES: Final = 16_384


@dataclass(frozen=True, slots=True)
class _Promise:
    slot: int
    tokens: TokenPrompt
    keys: Sequence[PrefixKey]
    ends_s: float


class Promises:
    """Promised blocks per replica, counted: several requests may promise the same."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[PrefixKey, int]] = {}
        self._open: OrderedDict[tuple[int, int], _Promise] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def of(self, slot: int) -> dict[PrefixKey, int] | None:
        """Return the blocks that a replica has promised; None for none."""
        return self._counts.get(slot)

    def add(self, slot: int, tokens: TokenPrompt, keys: Sequence[PrefixKey], now: float) -> None:
        """Promise that the replica will hold `keys`, blocks of `tokens`; once per prompt."""
        self._expire(now)
        name = (slot, id(tokens))
        if not keys or name in self._open:
            return
        self._open[name] = _Promise(slot, tokens, keys, now + MAX_PROMISE_S)
        add_each(self._counts.setdefault(slot, {}), keys)

    def withdraw(self, slot: int, tokens: TokenPrompt) -> None:
        """Take the promise for this prompt back: it was kept, or never will be."""
        promise = self._open.pop((slot, id(tokens)), None)
        if promise is not None:
            self._drop(promise)

    def clear(self, slot: int) -> None:
        """Take back all that the replica has promised."""
        for name in [name for name in self._open if name[0] == slot]:
            del self._open[name]
        self._counts.pop(slot, None)

    def check_integrity(self) -> None:
        """Assert that the counts are those of the open promises."""
        expected: dict[int, dict[PrefixKey, int]] = {}
        for (slot, identity), promise in self._open.items():
            assert slot == promise.slot
            assert identity == id(promise.tokens)
            add_each(expected.setdefault(slot, {}), promise.keys)
        assert self._counts == expected
        assert len(self._open) <= MAX_PROMISES

    def _expire(self, now: float) -> None:
        while self._open:
            promise = next(iter(self._open.values()))
            if promise.ends_s > now and len(self._open) < MAX_PROMISES:
                return
            self.withdraw(promise.slot, promise.tokens)

    def _drop(self, promise: _Promise) -> None:
        counts = self._counts[promise.slot]
        take_each(counts, promise.keys)
        if not counts:
            del self._counts[promise.slot]
