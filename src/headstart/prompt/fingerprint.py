"""Keys of a prompt's leading bytes: equal keys, equal prefix.

Theory of operation: one running hash goes over everything that must be equal for reuse (the
namespace) and then over the prompt's bytes in the order in which they enter the model. After every
block its value is a key, so key `i` stands for blocks 0..i: two prompts share key `i` exactly if
they share the namespace and that many leading bytes. The bytes are the client's own JSON, not a
rendering of it: a client that writes the same messages twice writes the same bytes, and reading
them costs nothing.

Nothing is remembered between requests. Hashing 8 KB takes about as long as looking one message up
in a table would, and a table would have to be bounded and shared.
"""

from collections.abc import Iterable
from typing import Final, cast

import msgspec
import xxhash

from headstart.types import PrefixKey

DEFAULT_BLOCK_BYTES: Final = 1024


def namespace(*fields: str) -> bytes:
    """Return the bytes that separate prompts which may not share: model, adapter, salt.

    Each field carries its length, so `("a", "bc")` and `("ab", "c")` differ.
    """
    parts = []
    for field in fields:
        encoded = field.encode("utf-8", "surrogatepass")
        parts.append(len(encoded).to_bytes(8, "big"))
        parts.append(encoded)
    return b"".join(parts)


def prefix_keys(
    parts: Iterable[bytes | msgspec.Raw],
    seed: bytes,
    *,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_blocks: int | None = None,
) -> list[PrefixKey]:
    """Return the keys of the leading full blocks, first block first.

    Args:
        parts: the prompt's pieces in the order in which they enter the model; where one ends and
            the next begins makes no difference.
        seed: from `namespace`.
        block_bytes: size of a block, >= 1.
        max_blocks: stop after so many; None goes to the end.

    Cost: one pass over the blocks, no copy.
    Source: XXH3, 128 bits: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
    """
    hasher = xxhash.xxh3_128(seed)
    update, digest = hasher.update, hasher.intdigest
    keys: list[int] = []  # calling `PrefixKey` for each would take as long as hashing a block
    room = block_bytes
    for part in parts:
        view = memoryview(part)
        start, size = 0, len(view)
        while size - start >= room:
            if len(keys) == max_blocks:
                return cast("list[PrefixKey]", keys)
            update(view[start : start + room])
            keys.append(digest())
            start += room
            room = block_bytes
        if start < size:
            update(view[start:])
            room -= size - start
    return cast("list[PrefixKey]", keys)
