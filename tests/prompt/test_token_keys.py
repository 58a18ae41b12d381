"""Keys of token blocks: chained, little-endian, and apart for each adapter and salt."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.token_keys import block_keys, block_root

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(TOKENS, st.integers(1, 9))
def test_a_key_is_the_hash_of_the_key_before_and_the_blocks_tokens(token_ids, block_size):
    expected, key = [], block_root("", "")
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = token_ids[start : start + block_size]
        packed = b"".join(struct.pack("<I", token) for token in block)
        key = xxhash.xxh3_128_digest(key + packed)
        expected.append(key)
    assert block_keys(token_ids, block_size, block_root("", "")) == expected


@given(TOKENS, TOKENS, st.integers(1, 4))
def test_prompts_share_keys_exactly_as_far_as_they_share_blocks(first, second, block_size):
    root = block_root("", "")
    shared = sum(
        first[: end * block_size] == second[: end * block_size]
        for end in range(1, min(len(first), len(second)) // block_size + 1)
    )
    pairs = zip(
        block_keys(first, block_size, root), block_keys(second, block_size, root), strict=False
    )
    assert sum(a == b for a, b in pairs) == shared


def test_adapter_and_salt_make_other_roots():
    roots = {
        block_root("", ""),
        block_root("law", ""),
        block_root("", "law"),
        block_root("law", "law"),
        block_root("la", "wlaw"),
    }
    assert len(roots) == 5


def test_a_token_that_is_no_unsigned_32_bit_integer_is_refused():
    with pytest.raises(struct.error):
        block_keys([1, -1], 2, block_root("", ""))
