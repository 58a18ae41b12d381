"""Keys of a prompt's leading bytes: equal keys, equal prefix.

Theory of operation: a prompt is a list of parts (tools, system text, messages …) in the order in
which they enter the model. It is cut into blocks:

    key_-1 = H(namespace)
    key_i  = H(key_i-1, H(bytes of block i))

So key `i` stands for blocks 0..i: two prompts share it exactly if they share the namespace, that
many leading bytes and the cuts in them. A block closes when it has `block_bytes`, or at the end of
a part if it has `MIN_BLOCK_BYTES` by then: where it ends depends on what lies before its end and on
nothing else, and a conversation that grows keeps the keys of all its messages.

The bytes are the client's own JSON, not a rendering of it: a client that writes the same messages
twice writes the same bytes, and reading them costs nothing. A block is hashed by itself and its
hash chained, because joining the key before it with a kilobyte would take longer than hashing it.

Nothing is remembered between requests. Hashing 8 KB takes about as long as looking one message up
in a table would, and a table would have to be bounded and shared.
"""

from collections.abc import Iterable
from typing import Final, cast

import msgspec
import xxhash

from headstart.types import PrefixKey

DEFAULT_BLOCK_BYTES: Final = 1024
MIN_BLOCK_BYTES: Final = 128


class PromptKeys(msgspec.Struct, frozen=True, gc=False):
    """The keys of one prompt.

    Attributes:
        keys: one per block, first block first; empty for a prompt without a full block.
        ends: bytes of prompt up to the end of each block.
        num_bytes: of the whole prompt, what is in no block included.
    """

    keys: list[PrefixKey]
    ends: list[int]
    num_bytes: int


NO_KEYS: Final = PromptKeys([], [], 0)
"""Of a request without a prompt."""


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


def prompt_keys(
    parts: Iterable[bytes | msgspec.Raw],
    seed: bytes,
    *,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> PromptKeys:
    """Return the keys of a prompt.

    Args:
        parts: the prompt's pieces in the order in which they enter the model.
        seed: from `namespace`.
        block_bytes: size of a block, >= 1.

    Cost: one pass over the bytes.
    Source: XXH3, 128 bits: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
    """
    keys: list[bytes] = []  # calling `PrefixKey` for each would take as long as a hash
    ends: list[int] = []
    add_key, add_end = keys.append, ends.append
    digest = xxhash.xxh3_128_digest
    key: bytes = digest(seed)
    least = min(MIN_BLOCK_BYTES, block_bytes)
    open_block = b""
    end = 0
    for part in parts:
        size = len(part)
        if size < block_bytes and not open_block:
            end += size
            if size >= least:
                key = digest(key + digest(part))
                add_key(key)
                add_end(end)
            else:
                open_block = bytes(part)
            continue
        view, start = memoryview(part), 0
        if open_block:
            start = min(block_bytes - len(open_block), size)
            open_block += view[:start]
            if len(open_block) < least:  # and so all of the part is in it
                end += size
                continue
            key = digest(key + digest(open_block))
            add_key(key)
            add_end(end + start)
            open_block = b""
        stop = size - (size - start) % block_bytes
        for at in range(start, stop, block_bytes):
            key = digest(key + digest(view[at : at + block_bytes]))
            add_key(key)
        ends += range(end + start + block_bytes, end + stop + 1, block_bytes)
        end += size
        if size - stop >= least:
            key = digest(key + digest(view[stop:]))
            add_key(key)
            add_end(end)
        elif stop < size:
            open_block = bytes(view[stop:])
    return PromptKeys(cast("list[PrefixKey]", keys), ends, end)
