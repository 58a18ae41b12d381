"""Sampling: what may be chosen, how often, and that a seed repeats it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.engines.embedded.request import SamplingParams
from headstart.engines.embedded.sampler import Sampler

LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32))


def draw(num, seed=7, logits=LOGITS, **params):
    params = {"temperature": 1.0, **params}
    sampler = Sampler(SamplingParams(seed=seed, **params), default_seed=0)
    return [sampler.sample(logits) for _ in range(num)]


def test_temperature_zero_is_the_most_probable_token():
    """Greedy draws nothing and takes the first of equals."""
    assert draw(3, temperature=0.0) == [0, 0, 0]
    assert draw(1, temperature=0.0, logits=np.array([1, 3, 3], np.float32)) == [1]


def test_tokens_come_as_often_as_their_probability_says():
    """4,000 draws, within four standard deviations."""
    counts = np.bincount(draw(4000), minlength=5) / 4000
    assert np.abs(counts - np.exp(LOGITS)).max() < 4 * (0.25 / 4000) ** 0.5


def test_temperature_sharpens_and_flattens():
    """At a quarter the first token's odds are to the fourth power."""
    assert draw(500, temperature=0.25).count(0) > draw(500).count(0) > 200
    assert draw(500, temperature=50.0).count(0) < 150


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_a_temperature_beyond_float32_is_the_limit_it_tends_to(options):
    """Nearly 0 is greedy and nearly infinite is uniform; neither divides by zero or overflows."""
    assert set(draw(50, temperature=1e-300, **options)) == {0}
    assert set(draw(50, temperature=1e300, **options)) >= {0, 1, 2}


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.01}, {0}),
        ({"top_k": 4, "top_p": 0.9}, {0, 1, 2}),
        ({"top_p": 1.0}, {0, 1, 2, 3, 4}),
    ],
)
def test_only_the_nucleus_is_drawn(params, allowed):
    """top_k and top_p keep the smallest sets that they describe; top_k applies first."""
    assert set(draw(600, **params)) == allowed


def test_a_seed_repeats_the_tokens():
    """The same seed gives the same choices, another one others."""
    assert draw(50) == draw(50)
    assert draw(50) != draw(50, seed=8)


def test_one_number_is_drawn_per_token():
    """What was sampled before does not shift what comes after."""
    sampler = Sampler(SamplingParams(temperature=1.0, seed=7), 0)
    first = sampler.sample(LOGITS[::-1].copy())
    assert 0 <= first < 5
    assert [sampler.sample(LOGITS) for _ in range(9)] == draw(10)[1:]


def test_without_a_seed_the_engine_s_is_used():
    """`default_seed` makes unseeded requests differ, and tests repeatable."""
    params = SamplingParams(temperature=1.0)
    left, right = ([Sampler(params, seed).sample(LOGITS)] for seed in (1, 1))
    assert left == right


def test_a_broken_logit_is_an_error():
    """NaN ends the request instead of choosing nonsense."""
    with pytest.raises(FloatingPointError):
        draw(1, logits=np.array([0, np.nan], np.float32))


@given(
    st.lists(st.integers(-80, 20), min_size=1, max_size=600),
    st.floats(0.01, 1),
    st.integers(0, 9),
)
def test_the_nucleus_is_the_smallest_set_of_likeliest_tokens_that_reaches_top_p(
    values, top_p, top_k
):
    """The search that avoids sorting keeps what the definition keeps, within float32's rounding."""
    logits = np.array(values, np.float32)
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=top_p, top_k=top_k), 0)
    ids, weights = sampler._candidates(logits)
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    shares = np.exp((logits - logits.max())[order].astype(np.float64))
    shares /= shares.sum()
    rounding = 1e-5
    assert len(ids) == len(weights) == len(set(ids.tolist()))
    assert sorted(logits[ids]) == sorted(logits[order[: len(ids)]])
    assert shares[: len(ids)].sum() >= top_p - rounding
    if len(ids) > 1 and top_p < 1:
        assert shares[: len(ids) - 1].sum() < top_p + rounding
