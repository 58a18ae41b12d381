"""Every target holds on its corpus, on some thousand new cases, and on what Hypothesis makes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.growth import check_growth
from fuzz.piece import Finds, corpus_of
from fuzz.run import CORPUS
from fuzz.targets import TARGETS
from fuzz.worker import run_piece

PURE = [name for name, target in TARGETS.items() if not target.is_live]


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_holds(name):
    """Seeds and former finds."""
    for data in corpus_of(CORPUS, name):
        TARGETS[name].check(data)


@pytest.mark.parametrize("name", TARGETS)
def test_new_cases_hold(name, tmp_path):
    """The same in every run, so that a change is judged by what it changed."""
    cases = 300 if TARGETS[name].is_live else 3000
    finds = Finds(tmp_path, name)
    result = run_piece(TARGETS[name], cases, 1, CORPUS, finds)
    reports = [(tmp_path / name / f"{find}.txt").read_text() for find in finds.names]
    assert not reports, reports[0]
    assert result.num_cases == cases


@pytest.mark.parametrize("name", PURE)
def test_what_hypothesis_makes_holds(name):
    """Tokens of the target's language and bytes between them, shrunk if they break something."""
    target = TARGETS[name]
    text = st.lists(st.sampled_from(target.tokens) | st.binary(max_size=8), max_size=16)

    @settings(max_examples=150)
    @given(text.map(b"".join))
    def check(data):
        target.check(data)

    check()


@pytest.mark.parametrize("name", [name for name in PURE if TARGETS[name].drive])
def test_time_and_memory_grow_with_the_input(name):
    """On each seed, blown up at one place."""
    rng = random.Random(2)
    for data in corpus_of(CORPUS, name):
        check_growth(TARGETS[name], data, rng)
