"""The reuse model: of what has been idle for so long, which share comes back."""

from random import Random

import pytest

from headstart.prompt.fingerprint import PromptKeys
from headstart.routing.reuse import MAX_PROMPTS, ReuseModel
from headstart.types import PrefixKey


def prompt(*blocks: int) -> PromptKeys:
    keys = [PrefixKey(block.to_bytes(16, "big")) for block in blocks]
    return PromptKeys(keys, [1024 * (at + 1) for at in range(len(keys))], 1024 * len(keys))


def test_nothing_known_is_an_even_chance():
    """Evictions have a price from the start."""
    assert ReuseModel().probability(10.0) == 0.5


def test_conversations_that_go_on_are_worth_keeping():
    """Each is continued after ten seconds, and what was idle for a minute is not continued."""
    model, now = ReuseModel(), 0.0
    for number in range(500):
        base = 100 * number
        for turns in range(1, 6):
            model.observe(prompt(*range(base, base + turns)), now)
            now += 10.0
        model.check_integrity()
    assert model.probability(1.0) == pytest.approx(0.8, abs=0.03)
    assert model.probability(60.0) < 0.05


def test_prompts_that_never_return_are_not():
    """Nothing of them will be missed."""
    model, rng = ReuseModel(), Random(1)
    for number in range(1000):
        model.observe(prompt(rng.getrandbits(100), rng.getrandbits(100)), float(number))
    assert model.probability(1.0) < 0.02


def test_it_follows_the_traffic():
    """What was learned a hundred thousand prompts ago does not count."""
    model, now = ReuseModel(), 0.0
    for number in range(5000):
        model.observe(prompt(number), now)
        model.observe(prompt(number, 10**6 + number), now + 100.0)
    assert model.probability(1.0) == pytest.approx(0.5, abs=0.05)
    for number in range(100_000):
        model.observe(prompt(10**9 + number), now)
    model.check_integrity()
    assert model.probability(1.0) < 0.02


def test_it_is_bounded():
    """However many prompts there are."""
    model = ReuseModel()
    for number in range(MAX_PROMPTS + 100):
        model.observe(prompt(number), 0.0)
    model.check_integrity()
