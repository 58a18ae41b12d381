"""`prefix_keys`: equal keys, equal prefix; anywhere, anytime."""

import os
import subprocess
import sys
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.fingerprint import namespace, prefix_keys

SEED = namespace("model", "")


def num_common_bytes(first: bytes, second: bytes) -> int:
    at = 0
    while at < min(len(first), len(second)) and first[at] == second[at]:
        at += 1
    return at


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(1, 40))
def test_two_prompts_share_exactly_the_keys_of_their_common_blocks(first, second, block_bytes):
    """Against the naive comparison of leading bytes."""
    common = num_common_bytes(first, second) // block_bytes
    keys = [prefix_keys([text], SEED, block_bytes=block_bytes) for text in (first, second)]
    same = sum(a == b for a, b in zip(*keys, strict=False))
    assert same == common
    assert len(keys[0]) == len(first) // block_bytes


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5), st.integers(1, 30))
def test_where_parts_are_cut_makes_no_difference(text, cuts, block_bytes):
    """Tools, system and messages are one run of bytes."""
    at = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(at)]
    assert prefix_keys(parts, SEED, block_bytes=block_bytes) == prefix_keys(
        [text], SEED, block_bytes=block_bytes
    )


@given(st.integers(0, 6))
def test_no_more_blocks_than_asked_for(max_blocks):
    """A 20 MB prompt costs what its leading blocks cost."""
    text = b"x" * 100
    keys = prefix_keys([text], SEED, block_bytes=20)
    assert prefix_keys([text], SEED, block_bytes=20, max_blocks=max_blocks) == keys[:max_blocks]


def test_the_namespace_separates():
    """Another model or salt shares nothing, however the fields are cut."""
    text = b"x" * 64
    seeds = [
        namespace("a", ""),
        namespace("b", ""),
        namespace("a", "s"),
        namespace("as", ""),
        namespace("", "as"),
    ]
    keys = {prefix_keys([text], seed, block_bytes=64)[0] for seed in seeds}
    assert len(keys) == len(seeds)


def test_raw_json_is_hashed_as_it_is():
    """No copy and no rendering between the client's bytes and the key."""
    text = b'[{"role": "user"}]'
    assert prefix_keys([msgspec.Raw(text)], SEED, block_bytes=4) == prefix_keys(
        [text], SEED, block_bytes=4
    )


def test_keys_are_the_same_in_every_process():
    """Gateways agree without talking, whatever their hash seed."""
    code = (
        "from headstart.prompt.fingerprint import *;"
        "print(prefix_keys([b'y' * 3000], namespace('m', 'é')))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert printed == {f"{prefix_keys([b'y' * 3000], namespace('m', 'é'))}\n"}
