"""Rates: they converge on what a replica is, and nothing fools them for long."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headstart.routing.rates import PRIOR, RateBook, RateFit, Rates, Sample

SLOW = Rates(0.06, 2e-4, 6e-9, 4 / 2048, 0.02)
CPU = Rates(0.2, 2e-3, 4e-8, 0.05, 0.05)
MOCK = Rates(0.015, 25e-6, 0.0, 0.0, 0.0)


def sample_of(truth: Rates, rng: Random, noise: float = 0.1, *, streamed: bool = True) -> Sample:
    """One request to a replica that is as `truth` says, give or take."""
    tokens = int(10 ** rng.uniform(1.5, 4.5))
    context = tokens / 2 + rng.choice((0, 0, 5000, 20000))
    num_decoding = rng.randrange(8)
    output_tokens = 0 if streamed else rng.randrange(1, 400)
    seconds = expected(truth, tokens, context, num_decoding, output_tokens)
    return Sample(
        seconds * rng.lognormvariate(0.0, noise),
        tokens,
        tokens * context,
        num_decoding,
        output_tokens,
    )


def expected(rates: Rates, tokens: float, context: float, decoding: int, output: int = 0) -> float:
    return (
        rates.base_s
        + tokens * rates.linear_s * (1 + decoding * rates.interference)
        + tokens * context * rates.attention_s
        + output * rates.output_s
    )


def error(fitted: Rates, truth: Rates, tokens: float, context: float, decoding: int = 0) -> float:
    """Of a prediction, as a ratio."""
    return abs(
        expected(fitted, tokens, context, decoding) / expected(truth, tokens, context, decoding) - 1
    )


PROMPTS = [(100, 50), (1000, 500), (1000, 15000), (8000, 4000), (20000, 10000)]


@pytest.mark.parametrize("truth", [PRIOR, SLOW, CPU, MOCK], ids=["prior", "slow", "cpu", "mock"])
def test_a_fit_converges(truth):
    """Within a fifth for prompts of any length, after 150 requests with a tenth of noise."""
    rng, fit = Random(1), RateFit()
    for _ in range(150):
        fit.observe(sample_of(truth, rng))
    for tokens, context in PROMPTS:
        assert error(fit.rates, truth, tokens, context) < 0.2


@pytest.mark.parametrize("truth", [PRIOR, SLOW, CPU], ids=["prior", "slow", "cpu"])
def test_answers_in_one_piece_teach_too(truth):
    """Most of their time is output; of prompts from 1,000 tokens on it gets the rest right."""
    rng, fit = Random(1), RateFit()
    for _ in range(150):
        fit.observe(sample_of(truth, rng, streamed=False))
    for tokens, context in PROMPTS[1:]:
        assert error(fit.rates, truth, tokens, context) < 0.3


def test_a_few_requests_give_the_order_of_magnitude():
    """A CPU is forty times as slow as the prior, and three requests show it."""
    rng, fit = Random(2), RateFit()
    for _ in range(3):
        fit.observe(sample_of(CPU, rng))
    assert error(fit.rates, CPU, 1000, 500) < 0.5


def test_outliers_do_not_fool_it():
    """One in ten takes fifty times as long, for a reason that the sample does not know."""
    rng, fit = Random(3), RateFit()
    for number in range(300):
        sample = sample_of(SLOW, rng)
        if number % 10 == 5:
            sample = Sample(sample.seconds * 50, sample.tokens, sample.attention)
        fit.observe(sample)
    for tokens, context in PROMPTS:
        assert error(fit.rates, SLOW, tokens, context) < 0.25


def test_a_replica_that_becomes_slower_is_found_out():
    """Four times as slow from one request to the next, e.g. because it shares its GPU now."""
    rng, fit = Random(4), RateFit()
    slower = Rates(*(4 * rate for rate in (MOCK.base_s, MOCK.linear_s, 0, 0, 0)))
    for truth in (MOCK, slower):
        for _ in range(150):
            fit.observe(sample_of(truth, rng))
    assert error(fit.rates, slower, 4000, 2000) < 0.2


def test_what_always_occurs_together_is_shared_out_and_predicts_well():
    """All prompts alike: base and token rate cannot be told apart, their sum can."""
    fit = RateFit()
    for _ in range(60):
        fit.observe(Sample(0.3, 1000, 500_000))
    assert expected(fit.rates, 1000, 500, 0) == pytest.approx(0.3, rel=0.05)


def test_nonsense_is_not_learned():
    """A clock that went back, and evidence of no weight."""
    fit = RateFit()
    fit.observe(Sample(-1.0, 100, 0.0))
    fit.observe(Sample(1.0, 100, 0.0, weight=0.0))
    assert fit.rates == PRIOR


class FitMachine(RuleBasedStateMachine):
    """Whatever is observed, everything stays bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.fit = RateFit()

    @rule(
        seconds=st.floats(1e-9, 1e6),
        tokens=st.floats(1, 1e6),
        context=st.floats(0, 1e6),
        num_decoding=st.integers(0, 1000),
        output_tokens=st.integers(0, 100_000),
        weight=st.floats(1e-3, 1.0),
        times=st.integers(1, 30),
    )
    def observe(self, seconds, tokens, context, num_decoding, output_tokens, weight, times):
        for _ in range(times):
            self.fit.observe(
                Sample(seconds, tokens, tokens * context, num_decoding, output_tokens, weight)
            )

    @invariant()
    def is_sound(self):
        self.fit.check_integrity()


TestFitMachine = FitMachine.TestCase


def filled_book(truths: list[Rates], num_samples: int = 200) -> RateBook:
    rng, book, now = Random(5), RateBook(), 0.0
    for _ in range(num_samples):
        for slot, truth in enumerate(truths):
            now += 0.01
            book.observe(slot, sample_of(truth, rng), now)
    return book


def test_replicas_that_are_alike_have_the_same_rates():
    """Or the one that seems a percent quicker would get every new prefix."""
    book = filled_book([MOCK] * 4)
    assert len({id(book.rates(slot)) for slot in range(4)}) == 1


def test_a_slow_replica_has_rates_of_its_own():
    """Four times as slow as the others."""
    slow = Rates(*(4 * rate for rate in (MOCK.base_s, MOCK.linear_s, 0, 0, 0)))
    book = filled_book([MOCK, MOCK, slow, MOCK])
    assert book.rates(0) is book.rates(1) is book.rates(3)
    assert error(book.rates(0), MOCK, 4000, 2000) < 0.2
    assert error(book.rates(2), slow, 4000, 2000) < 0.25


def test_a_new_replica_is_expected_to_be_like_the_others():
    """And one that was replaced is new."""
    book = filled_book([CPU, CPU])
    assert book.rates(2) is book.rates(0) is book.common
    book.forget(0)
    assert book.fit(0) is None


@settings(max_examples=30)
@given(st.floats(0.01, 100.0), st.integers(0, 1000))
def test_any_speed_is_found(factor, seed):
    """A hundred times as quick as the prior, or as slow."""
    truth = Rates(
        PRIOR.base_s * factor,
        PRIOR.linear_s * factor,
        PRIOR.attention_s * factor,
        PRIOR.interference,
        PRIOR.output_s * factor,
    )
    rng, fit = Random(seed), RateFit()
    for _ in range(80):
        fit.observe(sample_of(truth, rng))
    assert error(fit.rates, truth, 2000, 1000) < 0.2


def test_one_slow_answer_makes_no_slow_replica():
    """A first request waits for a connection; that must not be the last one."""
    book = filled_book([MOCK, MOCK, MOCK], 20)
    for now in (1000.0, 1001.0):
        book.observe(3, Sample(0.2, 1000, 500_000), now)
    assert book.rates(3) is book.common


def test_a_replica_that_was_slow_gets_another_chance():
    """A quarter of an hour later it is taken to be like the others, until it shows otherwise."""
    slow = Rates(*(4 * rate for rate in (MOCK.base_s, MOCK.linear_s, 0, 0, 0)))
    book = filled_book([MOCK, MOCK, slow])
    assert book.rates(2) is not book.common
    rng = Random(6)
    for second in range(1000):
        book.observe(0, sample_of(MOCK, rng), 1000.0 + second)
    assert book.rates(2) is book.common
    for second in range(20):
        book.observe(2, sample_of(slow, rng), 2000.0 + second)
    assert error(book.rates(2), slow, 4000, 2000) < 0.3
