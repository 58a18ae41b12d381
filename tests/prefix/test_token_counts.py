"""From bytes to tokens: guessed, scaled, measured, exact."""

from approximate_prompts import block_bytes, key_of, prompt_of

from headstart.prefix.approximate import ApproximateIndex
from headstart.prefix.config import PrefixConfig
from headstart.prefix.token_counts import EXACT, MEASURED, TokenScale, is_text, measure, settle

PATH = (3, 6, 9, 12)  # four blocks of 128 bytes


def index_with(*paths):
    index = ApproximateIndex(PrefixConfig())
    index.add_replica(0, 1 << 20)
    for path in paths:
        index.confirm(0, prompt_of(*path), 0.0, 0.25)
    return index


def tokens(index, *path):
    return index.entries[key_of(path)].tokens >> 2


def test_what_the_engine_counts_is_exact_where_the_prompt_ends_with_a_block():
    """And in proportion before."""
    index = index_with(PATH)
    assert settle(index.entries, prompt_of(*PATH), 200, 0.25) == 0
    assert [tokens(index, *PATH[:depth]) for depth in (1, 2, 3, 4)] == [50, 100, 150, 200]
    assert index.entries[key_of(PATH)].tokens & 3 == EXACT
    assert settle(index.entries, prompt_of(*PATH), 200, 0.25) is None


def test_a_count_that_changes_replaces_the_old_one():
    """The engine may have come back with another template."""
    index = index_with(PATH)
    settle(index.entries, prompt_of(*PATH), 200, 0.25)
    settle(index.entries, prompt_of(*PATH), 220, 0.25)
    assert tokens(index, *PATH) == 220


def test_what_follows_the_last_block_is_taken_off_by_its_bytes():
    """Known to a few tokens, and no better than a measurement."""
    index = index_with(PATH)
    assert settle(index.entries, prompt_of(*PATH, tail_bytes=40), 210, 0.25) == 10
    assert index.entries[key_of(PATH)].tokens == 200 << 2 | MEASURED
    assert settle(index.entries, prompt_of(*PATH), 198, 0.25) == 0
    assert index.entries[key_of(PATH)].tokens == 198 << 2 | EXACT
    assert settle(index.entries, prompt_of(*PATH, tail_bytes=40), 205, 0.25) == 7


def test_new_blocks_are_scaled_after_what_is_known_of_those_before():
    """The first turn's count stays as it is."""
    index = index_with(PATH[:2], PATH)
    settle(index.entries, prompt_of(*PATH[:2]), 90, 0.25)
    settle(index.entries, prompt_of(*PATH), 210, 0.25)
    assert [tokens(index, *PATH[:depth]) for depth in (1, 2, 3, 4)] == [45, 90, 150, 210]


def test_a_count_less_than_what_was_known_before_is_scaled_from_the_start():
    """One of them is wrong; nothing becomes negative."""
    index = index_with(PATH[:2], PATH)
    settle(index.entries, prompt_of(*PATH[:2]), 900, 0.25)
    settle(index.entries, prompt_of(*PATH), 200, 0.25)
    assert [tokens(index, *PATH[:depth]) for depth in (1, 2, 3, 4)] == [50, 100, 150, 200]


def test_a_measurement_rises_at_once_and_sinks_by_halves():
    """What was cached is there; what was not may have been evicted."""
    entry = index_with(PATH).entries[key_of(PATH)]
    for cached, expected in ((320, 328), (400, 408), (384, 400), (384, 396), (416, 424)):
        measure(entry, cached, 16)
        assert entry.tokens == expected << 2 | MEASURED
    entry.tokens = 500 << 2 | EXACT
    measure(entry, 320, 16)
    assert entry.tokens == 500 << 2 | EXACT


def test_tokens_per_byte_follow_recent_prompts():
    """From a prior that gives way at once; no prompt counts for more than 32 KB."""
    scale = TokenScale()
    assert scale.tokens_per_byte == 0.25
    scale.learn(20_000, 4_000)
    assert abs(scale.tokens_per_byte - 0.2) < 0.01
    scale.learn(10_000_000, 4_000_000)
    assert scale.tokens_per_byte < 0.35
    for _ in range(500):
        scale.learn(1000, 300)
    assert abs(scale.tokens_per_byte - 0.3) < 0.001


def test_images_are_no_text():
    """Their bytes say nothing of tokens, and must not push text out of the index."""
    assert is_text(4000, 1000)
    assert not is_text(1_000_000, 1200)
    assert not is_text(0, 0)
    index = index_with(PATH)
    settle(index.entries, prompt_of(*PATH), 4, 0.25)
    index.resize(prompt_of(*PATH), 0.25)
    assert index.statistics(0).num_bytes == 0
    index.check_integrity()
    assert index.match(prompt_of(*PATH).keys, (0,), 0.0) == [4]


def test_blocks_are_never_made_larger():
    """A prompt of many tokens per byte has its bytes, no more."""
    index = index_with(PATH)
    settle(index.entries, prompt_of(*PATH), 5000, 0.25)
    index.resize(prompt_of(*PATH), 0.25)
    assert index.statistics(0).num_bytes == sum(block_bytes(PATH[:n]) for n in (1, 2, 3, 4))
