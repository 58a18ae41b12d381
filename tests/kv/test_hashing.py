"""Block hashes: what they depend on, and that they are the same everywhere."""

import hashlib
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.kv.hashing import HASH_BYTES, hash_block, root_hash

TOKENS = list(range(16))


def test_a_hash_is_sha256_of_parent_and_tokens_cut_to_16_bytes():
    """The form is fixed: replicas of different versions must agree."""
    root = root_hash("m", None)
    expected = hashlib.sha256(root + struct.pack("<16I", *TOKENS)).digest()[:16]
    assert hash_block(root, TOKENS) == expected
    assert len(root) == len(expected) == HASH_BYTES


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("m", None), ("n", None)),
        (("m", None), ("m", "")),
        (("m", None), ("m", "a")),
        (("m", "a"), ("m", "b")),
        (("ma", "b"), ("m", "ab")),
        (("m", "\ud800"), ("m", "?")),
    ],
)
def test_namespace_and_salt_isolate(left, right):
    """No two pairs of namespace and salt share a root."""
    assert root_hash(*left) != root_hash(*right)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=32), st.data())
def test_one_changed_token_changes_every_later_hash(token_ids, data):
    """The chain carries a difference on."""
    i = data.draw(st.integers(0, len(token_ids) - 1))
    changed = [*token_ids]
    changed[i] ^= 1
    root = root_hash("m", None)
    left, right = hash_block(root, token_ids), hash_block(root, changed)
    assert left != right
    assert hash_block(left, TOKENS) != hash_block(right, TOKENS)


def test_hashes_do_not_depend_on_the_process():
    """Another process with another hash seed computes the same."""
    code = (
        "from headstart.kv.hashing import *;print(hash_block(root_hash('m', 's'), range(16)).hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {hash_block(root_hash("m", "s"), TOKENS).hex()}
