"""From bytes of prompt to tokens, as engines' own counts teach it.

Theory of operation: every block that is known carries how many tokens the prompt has up to its
end, and how well that is known:

    GUESSED    bytes times the replica's tokens per byte
    SCALED     in proportion to its bytes, between blocks that are known better
    MEASURED   an engine's cache ended here (to half a block), or a prompt ended a little later
    EXACT      a prompt ended here and the engine said how many tokens it had

What a prompt was counted as includes the opening of the answer (`<|assistant|>` and the like). In a
conversation the answer follows, and the same tokens with it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from headstart.prefix.entries import Entry
from headstart.prompt.fingerprint import PromptKeys
from headstart.types import PrefixKey

GUESSED: Final = 0
SCALED: Final = 1
MEASURED: Final = 2
EXACT: Final = 3

PRIOR_TOKENS_PER_BYTE: Final = 0.25
_PRIOR_BYTES: Final = 1024.0

_MIN_TOKENS_PER_BYTE: Final = 0.05
_MAX_TOKENS_PER_BYTE: Final = 1.5
"""Outside of these a prompt is no text: images in base64, or an engine that counts otherwise."""

_MAX_BYTES: Final = 32_768
"""No prompt counts for more than so many bytes."""

_DECAY: Final = 1 - 1 / 64


def is_text(num_bytes: int, tokens: int) -> bool:
    """Return whether so many bytes of JSON with so many tokens can be mostly text."""
    least, most = _MIN_TOKENS_PER_BYTE * num_bytes, _MAX_TOKENS_PER_BYTE * num_bytes
    return num_bytes > 0 and least <= tokens <= most


class TokenScale(msgspec.Struct):
    """Tokens per byte of recent prompts: a ratio of sums, in which older ones fade.

    Attributes:
        tokens, num_bytes: the sums.
        tokens_per_byte: their ratio.
    """

    tokens: float = PRIOR_TOKENS_PER_BYTE * _PRIOR_BYTES
    num_bytes: float = _PRIOR_BYTES
    tokens_per_byte: float = PRIOR_TOKENS_PER_BYTE

    def learn(self, num_bytes: int, tokens: int) -> None:
        """Take in a prompt of text that the engine has counted."""
        weight = min(num_bytes, _MAX_BYTES)
        self.num_bytes = self.num_bytes * _DECAY + weight
        self.tokens = self.tokens * _DECAY + tokens * (weight / num_bytes)
        self.tokens_per_byte = self.tokens / self.num_bytes


def settle(
    entries: Mapping[PrefixKey, Entry],
    prompt: PromptKeys,
    input_tokens: int,
    tokens_per_byte: float,
) -> int | None:
    """Take in how many tokens a prompt has.

    Args:
        entries: with the prompt's blocks.
        prompt: with at least one key.
        input_tokens: as the engine counted them.
        tokens_per_byte: for what follows the last block.

    Returns:
        The tokens after the last block; None if all was known already.

    Mutates: the tokens of its last block and, if it was new, of those before it.
    Cost: O(blocks that were guessed).
    """
    keys, ends = prompt.keys, prompt.ends
    entry = entries.get(keys[-1])
    if entry is not None and entry.tokens == input_tokens << 2 | EXACT:
        return None if ends[-1] == prompt.num_bytes else 0
    tail_bytes = prompt.num_bytes - ends[-1]
    tail = min(int(tail_bytes * tokens_per_byte), input_tokens)
    known = (input_tokens - tail) << 2 | (MEASURED if tail_bytes else EXACT)
    if entry is None or entry.tokens == known:
        return tail
    quality = entry.tokens & 3
    if quality == EXACT and tail_bytes:
        return input_tokens - min(entry.tokens >> 2, input_tokens)
    if quality < MEASURED or not tail_bytes:
        entry.tokens = known
    if quality == GUESSED and len(keys) > 1:
        _scale(entries, prompt, input_tokens - tail)
    return tail


def _scale(entries: Mapping[PrefixKey, Entry], prompt: PromptKeys, tokens: int) -> None:
    """Spread `tokens` over the guessed blocks before the last one."""
    keys, ends = prompt.keys, prompt.ends
    at = len(keys) - 2
    base = start = 0
    guessed = []  # from the last one backwards
    while at >= 0:
        entry = entries[keys[at]]
        known = entry.tokens
        if known & 3 != GUESSED and known >> 2 <= tokens:
            base, start = known >> 2, ends[at]
            break
        guessed.append(entry)
        at -= 1
    if guessed:
        share = (tokens - base) / (ends[-1] - start)
        for entry in reversed(guessed):
            at += 1
            entry.tokens = (base + int((ends[at] - start) * share)) << 2 | SCALED


def measure(entry: Entry, cached_tokens: int, block_size: int) -> None:
    """Take in that an engine's cache ended where this block ends, or in the block after it.

    The figure rises at once, since what was cached is there, and sinks by halves, since what was
    not may have been evicted.
    """
    if entry.tokens & 3 == EXACT:
        return
    tokens, old = cached_tokens + block_size // 2, entry.tokens >> 2
    if entry.tokens & 3 == MEASURED and tokens < old:
        tokens = (tokens + old) // 2
    entry.tokens = tokens << 2 | MEASURED
