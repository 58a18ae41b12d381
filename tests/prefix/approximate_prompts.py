"""Prompts by path: `(1, 4)` is block 4 after block 1; paths with a common start share it."""

import hashlib
from collections.abc import Sequence

from headstart.prompt.fingerprint import PromptKeys
from headstart.types import PrefixKey


def key_of(path: Sequence[int]) -> PrefixKey:
    return PrefixKey(hashlib.sha256(bytes(path)).digest()[:16])


def block_bytes(path: Sequence[int]) -> int:
    """Blocks are of three sizes, by their last step."""
    return 128 * (1 + path[-1] % 3)


def prompt_of(*path: int, tail_bytes: int = 0) -> PromptKeys:
    ends: list[int] = []
    for depth in range(1, len(path) + 1):
        ends.append((ends[-1] if ends else 0) + block_bytes(path[:depth]))
    keys = [key_of(path[:depth]) for depth in range(1, len(path) + 1)]
    return PromptKeys(keys, ends, (ends[-1] if ends else 0) + tail_bytes)
