"""`prompt_keys`: equal keys, equal prefix; anywhere, anytime."""

import os
import subprocess
import sys
from itertools import pairwise

import msgspec
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.fingerprint import MIN_BLOCK_BYTES, NO_KEYS, namespace, prompt_keys

SEED = namespace("model", "")
PARTS = st.lists(st.binary(max_size=120), max_size=6)
BLOCK_BYTES = st.integers(1, 60)


def naive_blocks(parts, block_bytes):
    """The bytes of each block, one byte at a time."""
    least = min(MIN_BLOCK_BYTES, block_bytes)
    blocks, block = [], b""
    for part in parts:
        for byte in part:
            block += bytes([byte])
            if len(block) == block_bytes:
                blocks.append(block)
                block = b""
        if len(block) >= least:
            blocks.append(block)
            block = b""
    return blocks


def num_common(first, second):
    at = 0
    while at < min(len(first), len(second)) and first[at] == second[at]:
        at += 1
    return at


@given(PARTS, PARTS, PARTS, BLOCK_BYTES | st.integers(100, 400))
def test_two_prompts_share_exactly_the_keys_of_their_common_blocks(
    head, first, second, block_bytes
):
    """Against the naive comparison of blocks."""
    prompts = [head + first, head + second]
    keys = [prompt_keys(parts, SEED, block_bytes=block_bytes).keys for parts in prompts]
    blocks = [naive_blocks(parts, block_bytes) for parts in prompts]
    assert [len(own) for own in keys] == [len(own) for own in blocks]
    assert num_common(*keys) == num_common(*blocks)
    assert sum(a == b for a, b in zip(*keys, strict=False)) == num_common(*blocks)


@given(PARTS, BLOCK_BYTES | st.integers(100, 400))
def test_ends_are_those_of_the_blocks(parts, block_bytes):
    """In bytes of prompt; what is in no block counts in the size only."""
    prompt = prompt_keys(parts, SEED, block_bytes=block_bytes)
    sizes = [end - start for start, end in pairwise([0, *prompt.ends])]
    assert sizes == [len(block) for block in naive_blocks(parts, block_bytes)]
    assert prompt.num_bytes == sum(map(len, parts))


@given(st.lists(st.binary(min_size=MIN_BLOCK_BYTES, max_size=3000), max_size=5), st.binary())
def test_a_conversation_that_grows_keeps_the_keys_of_its_messages(messages, more):
    """Each message that is not tiny ends with a key, which the next turn has again."""
    before = prompt_keys(messages, SEED)
    after = prompt_keys([*messages, more], SEED)
    assert after.keys[: len(before.keys)] == before.keys
    assert before.num_bytes == (before.ends[-1] if messages else 0)


@given(st.binary(max_size=500), st.lists(st.integers(0, 500), max_size=5))
def test_a_cut_matters_only_where_it_ends_a_block(text, cuts):
    """Pieces too small for a block are one run of bytes."""
    at = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(at)]
    same = prompt_keys(parts, SEED).ends == prompt_keys([text], SEED).ends
    assert (prompt_keys(parts, SEED) == prompt_keys([text], SEED)) == same


def test_keys_are_chained():
    """As the module's text says."""
    digest = xxhash.xxh3_128_digest
    first = digest(digest(SEED) + digest(b"a" * 200))
    second = digest(first + digest(b"b" * 1024))
    assert prompt_keys([b"a" * 200, b"b" * 1030], SEED).keys == [first, second]


def test_a_request_without_a_prompt_has_no_keys():
    """Nor has one whose prompt is too short for a block."""
    assert prompt_keys([], SEED) == NO_KEYS
    short = prompt_keys([b"x" * 100, b"y" * 27], SEED)
    assert short.keys == []
    assert short.num_bytes == 127


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
    keys = {prompt_keys([text], seed, block_bytes=64).keys[0] for seed in seeds}
    assert len(keys) == len(seeds)


def test_raw_json_is_hashed_as_it_is():
    """No rendering between the client's bytes and the key."""
    text = b'[{"role": "user"}]'
    assert prompt_keys([msgspec.Raw(text)], SEED, block_bytes=4) == prompt_keys(
        [text], SEED, block_bytes=4
    )


def test_keys_are_the_same_in_every_process():
    """Gateways agree without talking, whatever their hash seed."""
    code = (
        "from headstart.prompt.fingerprint import *;"
        "print(prompt_keys([b'y' * 3000], namespace('m', 'é')))"
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
    assert printed == {f"{prompt_keys([b'y' * 3000], namespace('m', 'é'))}\n"}
