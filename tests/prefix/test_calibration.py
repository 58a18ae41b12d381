"""`Calibration`: what an answer is evidence of, and what it corrects; on real sessions too."""

from itertools import islice

import pytest
from approximate_prompts import prompt_of
from cache_engine import BLOCK_SIZE, CacheEngine, interleaved
from hypothesis import given
from hypothesis import strategies as st

from headstart.prefix.approximate import ApproximateIndex
from headstart.prefix.calibration import Calibration, Verdict
from headstart.prefix.config import PrefixConfig
from headstart.prefix.entries import LastUse, Standing
from headstart.prefix.token_counts import is_text
from headstart.prefix.view import PrefixView

NEW = {"depth": 0, "warm_depth": 0, "tokens": 0, "warm_tokens": 0, "root": None}
"""Of a prompt that nobody has seen."""


def standing(**what):
    """Of a prompt of 1,000 warm tokens, used a moment before."""
    values = {
        "depth": 4,
        "warm_depth": 4,
        "tokens": 1000,
        "warm_tokens": 1000,
        "root": LastUse(9.0, 50_000),
    }
    return Standing(prompt_of(1, 2, 3, 4, 5), 10.0, 50_100, **(values | what))


def calibration(capacity=100_000, **config):
    made = Calibration(PrefixConfig(**config))
    made.know_capacity(capacity)
    return made


def test_errors_are_counted_with_their_sign_and_without():
    """Bias, absolute error, share off by more than a block."""
    made = calibration()
    for predicted, cached in ((160, 160), (160, 144), (160, 0), (0, 96)):
        made.compare(predicted, cached)
    figures = made.statistics()
    assert figures.num_answers == 4
    assert figures.error_tokens == 16 + 160 - 96
    assert figures.absolute_error_tokens == 16 + 160 + 96
    assert figures.num_off == 2
    assert figures.off_ratio == 0.5
    made.check_integrity()


def test_an_unknown_figure_is_no_error():
    """`None` is not zero."""
    made = calibration()
    made.compare(160, None)
    figures = made.statistics()
    assert (figures.num_answers, figures.num_unknown, figures.num_off) == (0, 1, 0)
    assert figures.off_ratio == 0.0


@pytest.mark.parametrize(
    ("what", "cached", "verdict"),
    [
        ({}, 992, Verdict.KEPT),
        ({}, 880, Verdict.KEPT),
        ({}, 800, Verdict.EVICTED),
        ({}, 0, Verdict.RESET),
        ({}, 2000, Verdict.MORE),
        ({"root": LastUse(9.0, 0)}, 0, Verdict.GONE),
        ({"extra_tokens": 500}, 1500, Verdict.KEPT),
        ({"warm_depth": 0, "warm_tokens": 0}, 0, Verdict.NOTHING),
        ({"warm_depth": 1, "warm_tokens": 400}, 400, Verdict.KEPT),
        (NEW, 0, Verdict.NOTHING),
        (NEW, 96, Verdict.MORE),
    ],
)
def test_what_an_answer_is_evidence_of(what, cached, verdict):
    """Promises are none; a first block that was used a moment ago is not evicted."""
    assert calibration().judge(standing(**what), cached, 1500) is verdict


def test_the_whole_prompt_is_never_expected():
    """The last token is always computed: 992 of 1,000 is all there is."""
    assert calibration().judge(standing(tokens=1040, warm_tokens=1040), 992, 1000) is Verdict.KEPT


def test_one_reset_is_counted_once():
    """Requests in flight when it was found out tell of the same one."""
    made = calibration()
    assert made.judge(standing(), 0, 1500) is Verdict.RESET
    made.failure_seen(11.0)
    assert made.judge(standing(), 0, 1500) is Verdict.NOTHING
    assert made.statistics().num_resets == 1


def test_nothing_there_twice_in_a_row_is_a_reset_too():
    """Once may be eviction, where the first block was unused for long."""
    made = calibration()
    old = standing(root=LastUse(9.0, 0))
    assert made.judge(old, 0, 1500) is Verdict.GONE
    assert made.judge(old, 0, 1500) is Verdict.RESET


def test_capacity_sinks_half_way_and_stays_within_what_is_known():
    """Rather too high than too low."""
    made = calibration(100_000)
    made.lower_capacity(64_000)
    assert made.capacity_tokens == 90_000
    for _ in range(50):
        made.lower_capacity(10)
    assert made.capacity_tokens >= 70_000
    for _ in range(50):
        made.raise_capacity()
    assert made.capacity_tokens == 200_000
    made.check_integrity()


def test_an_assumed_capacity_sinks_as_far_as_evidence_goes():
    """To a quarter more than was there; an assumption is no bound below."""
    made = Calibration(PrefixConfig())
    for _ in range(50):
        made.lower_capacity(40_000)
    assert 50_000 <= made.capacity_tokens <= 50_001
    made.check_integrity()


def test_whether_answers_are_found_again_is_learned():
    """Templates may render them otherwise, and clients may leave thoughts out."""
    made = calibration()
    assert made.reuses_output
    for _ in range(3):
        made.learn_output(standing(extra_tokens=200), 1000)
    assert not made.reuses_output
    for _ in range(5):
        made.learn_output(standing(extra_tokens=200), 1184)
    assert made.reuses_output


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))))
def test_corrections_stay_within_their_bounds(answers):
    """Whatever an engine reports."""
    made = calibration(3000)
    for tokens, cached, size in answers:
        made.compare(tokens, cached)
        made.judge(standing(tokens=tokens, warm_tokens=tokens), cached, None)
        made.learn_output(standing(tokens=tokens, extra_tokens=size), cached)
        made.lower_capacity(size)
        if is_text(size, tokens):
            made.scale.learn(size, tokens)
        if cached % 2:
            made.raise_capacity()
        made.check_integrity()
        assert 0.05 <= made.scale.tokens_per_byte <= 1.5


class Uncalibrated:
    """The same index, never told what came of it: assumed capacity, 0.25 tokens a byte."""

    def __init__(self, capacity_tokens):
        self.index = ApproximateIndex(PrefixConfig())
        self.index.add_replica(0, capacity_tokens * 4)

    def predict(self, turn, now):
        depth = self.index.match(turn.prompt.keys, (0,), now)[0]
        self.index.promise(0, turn.prompt, now, 0.25)
        self.index.confirm(0, turn.prompt, now, 0.25)
        self.index.holdings(0).make_room()
        tokens = turn.prompt.ends[depth - 1] // 4 if depth else 0
        return tokens // BLOCK_SIZE * BLOCK_SIZE


def answer(view, engine, turn, now):
    """One request through the view; returns prediction and truth."""
    predicted = view.match(turn.prompt, None, (0,), now)[0]
    view.dispatched(0, turn.prompt, None, now)
    cached = engine.serve(turn)
    num_input, num_output = len(turn.token_ids), len(turn.output_ids)
    view.answered(0, turn.prompt, None, predicted, num_input, cached, num_output, now + 0.5)
    return predicted, cached


@pytest.mark.parametrize("is_capacity_known", [True, False])
@pytest.mark.parametrize("num_at_once", [4, 24])
def test_calibration_halves_the_error_on_real_sessions(
    airline_sessions, is_capacity_known, num_at_once
):
    """After 200 requests, while a small cache evicts all the time."""
    engine = CacheEngine(num_blocks=1500)
    view = PrefixView()
    view.add_replica(0, "a")
    capacity = 1500 * BLOCK_SIZE if is_capacity_known else None
    view.set_capacity(0, capacity, BLOCK_SIZE)
    other = Uncalibrated(capacity or PrefixConfig().default_capacity_tokens)
    errors, other_errors = [], []
    turns = interleaved(airline_sessions, num_at_once)
    for now, turn in enumerate(islice(turns, 700)):
        other_error = other.predict(turn, float(now))
        predicted, cached = answer(view, engine, turn, float(now))
        errors.append(abs(predicted - cached))
        other_errors.append(abs(other_error - cached))
    view.check_integrity()
    assert engine.pool.num_evicted_blocks > 1000
    assert sum(errors[200:]) <= sum(other_errors[200:]) / 2
    figures = view.statistics(0).calibration
    assert figures.num_answers == 700
    assert figures.absolute_error_tokens == sum(errors)
