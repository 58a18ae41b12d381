"""The simulated engine does what a plain one does step by step, in fewer steps."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.simulator.cost import CostModel
from headstart.simulator.engine import EngineModel, SimulatedEngine
from headstart.simulator.job import Job
from headstart.simulator.sight import block_key
from tests.simulator.naive_engine import NaiveEngine

COST = CostModel(
    name="test",
    source="none",
    base_s=0.010,
    token_s=0.0001,
    floors=((8, 0.005),),
    request_s=0.0005,
    own_s=-1e-6,
    context_s=1e-6,
    pair_s=1e-8,
    decode_context_s=1e-7,
)


def engine_model(num_blocks: int = 64, **changes: float) -> EngineModel:
    """Return an engine with blocks of 4 tokens and a budget of 16."""
    return EngineModel(COST, num_blocks, 4, token_budget=16, max_num_seqs=4, **changes)


def job(number: int, ids: list[int], rest: int, output_tokens: int) -> Job:
    """Return a request whose prompt is `ids` blocks and `rest` >= 1 tokens more."""
    input_tokens = 4 * len(ids) + rest
    usable = ids[: (input_tokens - 1) // 4]
    return Job(number, [block_key(i) for i in usable], usable, input_tokens, output_tokens)


def play(
    model: EngineModel, submissions: list[tuple[float, Job]]
) -> dict[int, tuple[float, float, int]]:
    """Return first token, end and cached tokens of each request."""
    engine, firsts, done = SimulatedEngine(model), {}, {}
    pending = list(submissions)
    while pending or engine.next_at < inf:
        # An arrival at the very end of a span is in time for the next.
        if pending and pending[0][0] <= engine.next_at:
            at, one = pending.pop(0)
            engine.submit(one, at)
            continue
        now = engine.next_at
        engine.advance()
        for one in engine.firsts:
            firsts[one.number] = now
        for one in engine.finished:
            done[one.number] = (firsts[one.number], now, one.cached_tokens)
        engine.pool.check_integrity()
    return done


@st.composite
def submission_lists(draw: st.DrawFn) -> list[tuple[float, Job]]:
    """Requests that share prefixes, some at the same time and some long after."""
    submissions, now = [], 0.0
    for number in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0.0, 0.0, 0.003, 0.02, 0.11, 1.0]))
        family, shared = draw(st.integers(0, 2)), draw(st.integers(0, 20))
        own = draw(st.integers(0, 4))
        ids = [1000 * family + index for index in range(shared)]
        ids += [100_000 + 1000 * number + index for index in range(own)]
        submissions.append(
            (now, job(number, ids, draw(st.integers(1, 4)), draw(st.integers(1, 30))))
        )
    return submissions


@settings(max_examples=150)
@given(submission_lists(), st.sampled_from([33, 40, 64]))
def test_spans_are_sums_of_steps(submissions: list[tuple[float, Job]], num_blocks: int) -> None:
    """Every first token, end and hit is where single steps put it."""
    model = engine_model(num_blocks)
    expected = NaiveEngine(model).run(submissions)
    assert play(model, submissions) == {
        number: (pytest.approx(first), pytest.approx(end), cached)
        for number, (first, end, cached) in expected.items()
    }


def test_a_lone_prompt_takes_its_chunks() -> None:
    """TTFT of a prompt on an idle engine is what the cost model says of its chunks."""
    model = engine_model()
    (first, end, cached) = play(model, [(2.0, job(0, list(range(10)), 2, 1))])[0]
    assert first == end == pytest.approx(2.0 + COST.prefill_s(42, 0, 16))
    assert cached == 0


def test_the_second_hits_what_the_first_computes() -> None:
    """A sibling in the same step reuses full blocks, and computes its last tokens."""
    ids = list(range(3))
    done = play(engine_model(), [(0.0, job(0, ids, 1, 2)), (0.0, job(1, ids, 1, 2))])
    assert done[0][2] == 0
    assert done[1][2] == 12


def test_what_does_not_fit_waits() -> None:
    """With room for one request the second begins when the first has ended."""
    model = engine_model(10)
    one, two = job(0, list(range(5)), 1, 12), job(1, list(range(50, 55)), 1, 12)
    done = play(model, [(0.0, one), (0.0, two)])
    assert done[1][0] > done[0][1]


def test_a_slow_replica_is_slow() -> None:
    """`slowness` multiplies all times."""
    submissions = [(0.0, job(0, list(range(10)), 2, 9))]
    quick, slow = engine_model(), engine_model(slowness=3.0)
    assert play(slow, submissions)[0][1] == pytest.approx(3.0 * play(quick, submissions)[0][1])


def test_a_failed_engine_gives_its_requests_back() -> None:
    """They are those that were not finished, and the cache is empty."""
    engine = SimulatedEngine(engine_model())
    engine.submit(job(0, list(range(10)), 2, 9), 0.0)
    engine.submit(job(1, list(range(10)), 2, 9), 0.0)
    engine.advance()
    assert {one.number for one in engine.fail()} == {0, 1}
    assert engine.next_at == inf
    assert engine.pool.num_cached_blocks == 0
    engine.pool.check_integrity()
