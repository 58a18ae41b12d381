"""Workloads that are drawn have the shapes that they are named after."""

from itertools import pairwise
from math import log
from random import Random
from statistics import mean

import pytest
from msgspec.structs import replace

from headstart.simulator.generators.growing_prompt import GrowingPrompt, draw_length, draw_turns
from headstart.simulator.generators.multi_turn import MultiTurnConfig, multi_turn
from headstart.simulator.generators.semantic_mix import ARENA, LMSYS, SHAREGPT, semantic_mix
from headstart.simulator.generators.shared_prefix import LLM_D, SGLANG, shared_prefix
from headstart.simulator.single_cache import ideal
from headstart.simulator.trace import PrefixTree

SMALL_CHATS = MultiTurnConfig(num_sessions=200)
SMALL_LADDER = replace(LLM_D, stages=LLM_D.stages[:3])


@pytest.mark.parametrize(
    ("generate", "config"),
    [
        (shared_prefix, SMALL_LADDER),
        (shared_prefix, SGLANG),
        (multi_turn, SMALL_CHATS),
        *((semantic_mix, replace(mix, num_sessions=200)) for mix in (SHAREGPT, LMSYS, ARENA)),
    ],
)
def test_a_generator_is_a_function_of_its_seed(generate, config):
    """The same trace twice, another for another seed, and always a whole one."""
    trace = generate(config, 1)
    trace.check_integrity()
    assert trace.is_timed
    assert trace.name == config.name
    assert generate(config, 1) == trace != generate(config, 2)


def test_a_prompt_only_grows():
    """Forks share what was full when they parted."""
    stem = GrowingPrompt(PrefixTree(), 16)
    stem.grow(40)
    left, right = stem.fork(), stem.fork()
    left.grow(24)
    right.grow(8)
    right.grow(16)
    assert (stem.num_tokens, left.num_tokens, right.num_tokens) == (40, 64, 64)
    assert left.blocks[:2] == right.blocks[:2] == stem.blocks
    assert len({*left.blocks, *right.blocks}) == 6


def test_draws_have_their_means():
    """Log-normal lengths and geometric turns."""
    rng = Random(1)
    assert mean(draw_length(rng, 113, 1.0) for _ in range(20_000)) == pytest.approx(113, rel=0.05)
    assert mean(draw_turns(rng, 5.0) for _ in range(20_000)) == pytest.approx(5, rel=0.05)
    assert {draw_turns(rng, 1.0) for _ in range(9)} == {1}


def test_llm_ds_shape():
    """150 groups of 5 prompts, in a ladder of rates, and again when they are through."""
    trace = shared_prefix(LLM_D, 3)
    assert {each.input_tokens for each in trace.requests} == {7200}
    assert {each.output_tokens for each in trace.requests} == {1000}
    prompts = {each.blocks for each in trace.requests}
    assert len(prompts) == 750
    assert len({blocks[:375] for blocks in prompts}) == 150
    assert trace.num_blocks == 150 * 375 + 750 * 75
    first, again = trace.requests[:750], trace.requests[750:1500]
    assert [each.blocks for each in first] == [each.blocks for each in again]
    warm = [each for each in trace.requests if each.arrival_s < 50]
    assert len(warm) == pytest.approx(15 * 50, rel=0.15)
    last_s = sum(seconds for _, seconds in LLM_D.stages[:-1])
    last = [each for each in trace.requests if each.arrival_s >= last_s]
    assert len(last) == pytest.approx(60 * 25, rel=0.15)


def test_sglangs_shape():
    """64 groups of 16 prompts, each once and all together."""
    trace = shared_prefix(SGLANG, 3)
    assert len(trace.requests) == 1024
    assert len({each.blocks for each in trace.requests}) == 1024
    assert len({each.blocks[:128] for each in trace.requests}) == 64
    assert {each.arrival_s for each in trace.requests} == {0.0}
    assert ideal(trace).hit_ratio == pytest.approx(2048 * 15 / (2176 * 16))


def test_chats_grow_by_answer_and_question():
    """A turn's prompt begins with the prompt and the answer before it."""
    trace = multi_turn(SMALL_CHATS, 1)
    by_session = {}
    for each in trace.requests:
        by_session.setdefault(each.session, []).append(each)
    assert len(by_session) == 200
    assert mean(map(len, by_session.values())) == pytest.approx(5, rel=0.2)
    for turns in by_session.values():
        for before, after in pairwise(turns):
            assert before.input_tokens + before.output_tokens < after.input_tokens
            assert after.blocks[: len(before.blocks)] == before.blocks
    gaps = [
        log(after.arrival_s - before.arrival_s)
        for turns in by_session.values()
        for before, after in pairwise(turns)
    ]
    assert mean(gaps) == pytest.approx(4.82, abs=0.2)
    assert len({each.blocks[:62] for each in trace.requests}) == 10


def test_chats_end_at_the_context():
    """No prompt is longer, but one that begins so."""
    trace = multi_turn(replace(SMALL_CHATS, mean_turns=50.0, max_input_tokens=4000), 1)
    assert max(each.input_tokens for each in trace.requests) <= 4000


@pytest.mark.parametrize(
    ("mix", "ratio", "answer"), [(SHAREGPT, 0.74, 305), (LMSYS, 0.33, 179), (ARENA, 0.12, 155)]
)
def test_the_mix_has_its_shares(mix, ratio, answer):
    """Of multi-turn sessions, which geometric turns make somewhat fewer; of answers' lengths."""
    trace = semantic_mix(replace(mix, num_sessions=3000), 1)
    turns = {}
    for each in trace.requests:
        turns[each.session] = turns.get(each.session, 0) + 1
    assert len(turns) == 3000
    several = sum(count > 1 for count in turns.values()) / 3000
    # One turn has 1/4 of chats and 1/8 of agents.
    assert several == pytest.approx(ratio * (1 - (1 / 4 + 1 / 8) / 2), abs=0.03)
    answers = mean(each.output_tokens for each in trace.requests)
    assert answers == pytest.approx(answer + mix.thought_tokens, rel=0.07)


def test_thoughts_are_left_out_of_the_next_prompt():
    """They are generated, and more prompts share less for it."""
    config = replace(SHAREGPT, num_sessions=300, agentic_ratio=0.0, thought_tokens=5000.0)
    trace = semantic_mix(config, 1)
    assert mean(each.output_tokens for each in trace.requests) > 4000
    assert mean(each.input_tokens for each in trace.requests) < 4000


def test_templates_follow_zipfs_law():
    """The first of a hundred is the system prompt of a fifth of those that have one."""
    config = replace(ARENA, multi_turn_ratio=0.0, templated_ratio=1.0, num_sessions=4000)
    trace = semantic_mix(config, 1)
    counts = {}
    for each in trace.requests:
        head = each.blocks[:12]
        counts[head] = counts.get(head, 0) + 1
    most = sorted(counts.values(), reverse=True)
    assert len(most) == 100
    assert most[0] / 4000 == pytest.approx(1 / 5.187, rel=0.1)
    assert most[1] / most[0] == pytest.approx(1 / 2, rel=0.2)
    untemplated = semantic_mix(replace(config, templated_ratio=0.0), 1)
    assert ideal(untemplated).cached_tokens == 0
