"""`PrefixView`: predictions by mode, learning from answers, and what a reset costs."""

from itertools import islice

import pytest
from approximate_prompts import prompt_of
from cache_engine import (
    BLOCK_SIZE,
    CacheEngine,
    Turn,
    interleaved,
    token_prompt,
    tokenize,
)

from headstart.errors import ConfigError
from headstart.prefix.config import PrefixConfig
from headstart.prefix.stream_step import StreamFault, StreamStanding
from headstart.prefix.trust import TrustConfig, TrustMode
from headstart.prefix.view import PrefixView
from headstart.prompt.fingerprint import NO_KEYS, namespace, prompt_keys
from headstart.prompt.token_keys import TokenPrompt

CAPACITY = 100_000


def view_of(num_replicas=1, capacity=CAPACITY, config=None, trust=None):
    view = PrefixView(config, trust)
    for slot in range(num_replicas):
        view.add_replica(slot, f"replica-{slot}")
        view.set_capacity(slot, capacity, BLOCK_SIZE)
    return view


def conversation(name, num_turns=4, num_words=400):
    """A growing prompt with a text of its own from the first word on."""
    made = []
    parts = []
    for number in range(num_turns):
        parts.append(" ".join(f"{name}{number}x{word % 97}" for word in range(num_words)))
        keys = prompt_keys([part.encode() for part in parts], namespace("m"))
        made.append(Turn(keys, tokenize("".join(parts)), tokenize(" ok yes")))
    return made


def ask(view, engine, turn, now, slot=0, tokens=None):
    """One request; returns prediction and truth."""
    predicted = view.match(turn.prompt, tokens, (slot,), now)[0]
    view.dispatched(slot, turn.prompt, tokens, now)
    cached = engine.serve(turn)
    view.answered(
        slot,
        turn.prompt,
        tokens,
        predicted,
        len(turn.token_ids),
        cached,
        len(turn.output_ids),
        now + 0.5,
    )
    view.check_integrity()
    return predicted, cached


def test_a_prompt_that_was_answered_is_known_to_the_token():
    """Its count came from the engine; the last token is always computed."""
    view, engine = view_of(), CacheEngine(1000)
    (turn,) = conversation("a", 1)
    assert ask(view, engine, turn, 0.0) == (0, 0)
    predicted, cached = ask(view, engine, turn, 1.0)
    assert predicted == cached == (len(turn.token_ids) - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_a_conversation_is_known_to_the_block_from_its_second_turn_on():
    """What one turn was counted as is where the next one leaves the cache."""
    view, engine = view_of(), CacheEngine(1000)
    for now, turn in enumerate(conversation("a", 6)):
        predicted, cached = ask(view, engine, turn, float(now))
        assert abs(predicted - cached) <= BLOCK_SIZE


def test_only_who_served_it_holds_it():
    """Aligned with the slots asked for, in their order."""
    view = view_of(3)
    (turn,) = conversation("a", 1)
    ask(view, CacheEngine(1000), turn, 0.0, slot=1)
    matched = view.match(turn.prompt, None, (2, 1, 0), 1.0)
    assert matched[1] > 0
    assert [matched[0], matched[2]] == [0, 0]


def test_a_dispatch_counts_at_once_and_a_failure_takes_it_back():
    """Or the end of the promise, if nothing is heard."""
    view = view_of(config=PrefixConfig(speculative_s=2.0))
    prompt = prompt_of(1, 2, 3, 4)
    view.dispatched(0, prompt, None, 0.0)
    assert view.match(prompt, None, (0,), 0.1)[0] > 0
    view.failed(0, prompt, 0.2)
    assert view.match(prompt, None, (0,), 0.3) == [0]
    view.dispatched(0, prompt, None, 1.0)
    view.tick(3.0)
    assert view.match(prompt, None, (0,), 3.0) == [0]
    assert view.num_open == 1


def test_the_first_token_makes_it_stay_however_long_the_answer_takes():
    """The prompt is computed by then."""
    view = view_of(config=PrefixConfig(speculative_s=2.0))
    prompt = prompt_of(1, 2, 3, 4)
    view.dispatched(0, prompt, None, 0.0)
    view.first_token(0, prompt, 1.0)
    assert view.match(prompt, None, (0,), 60.0)[0] > 0
    view.answered(0, prompt, None, 0, None, None, None, 61.0)
    assert view.match(prompt, None, (0,), 62.0)[0] > 0


def test_an_engine_that_reports_nothing_is_believed_to_have_cached():
    """Unknown is not zero: no error is counted and nothing corrected."""
    view = view_of()
    (turn,) = conversation("a", 1)
    for now in range(3):
        view.dispatched(0, turn.prompt, None, float(now))
        view.answered(0, turn.prompt, None, 0, None, None, None, now + 0.5)
    figures = view.statistics(0).calibration
    assert (figures.num_answers, figures.num_unknown, figures.num_resets) == (0, 3, 0)
    assert view.match(turn.prompt, None, (0,), 9.0)[0] > 0


def test_what_is_told_of_an_unknown_dispatch_is_ignored():
    """It went to a replica that has left; its slot may be another's by now."""
    view = view_of()
    (turn,) = conversation("a", 1)
    view.dispatched(0, turn.prompt, None, 0.0)
    view.remove_replica(0)
    view.add_replica(0, "other")
    view.answered(0, turn.prompt, None, 0, 500, 0, 5, 1.0)
    view.failed(0, turn.prompt, 1.0)
    assert view.match(turn.prompt, None, (0,), 2.0) == [0]
    assert view.num_open == 0
    view.check_integrity()


def test_open_dispatches_are_bounded():
    """If nobody ever says what became of them."""
    view = view_of(config=PrefixConfig(max_open=4))
    prompts = [prompt_of(step) for step in range(9)]
    for prompt in prompts:
        view.dispatched(0, prompt, None, 0.0)
    assert view.num_open == 4
    view.check_integrity()


def test_a_request_without_a_prompt_changes_nothing():
    """Such as one whose body cannot be read."""
    view = view_of()
    assert view.match(NO_KEYS, None, (0,), 0.0) == [0]
    view.dispatched(0, NO_KEYS, None, 0.0)
    view.answered(0, NO_KEYS, None, 0, 10, 0, 5, 1.0)
    view.failed(0, NO_KEYS, 1.0)
    assert view.num_open == 0


@pytest.mark.parametrize("num_prefixes", [1, 5])
def test_a_replica_that_was_reset_while_idle_costs_one_wrong_request(num_prefixes):
    """Whichever prefix finds out, those used before and after it are void as well."""
    view, engine = view_of(), CacheEngine(CAPACITY // BLOCK_SIZE)
    talks = [conversation(name, 8) for name in "abcde"[:num_prefixes]]
    now = 0.0
    for number in range(5):
        for talk in talks:
            ask(view, engine, talk[number], now)
            now += 1.0
    engine.reset()
    num_wrong = 0
    for number in range(5, 8):
        for talk in talks[::2] + talks[1::2]:
            predicted, cached = ask(view, engine, talk[number], now)
            num_wrong += abs(predicted - cached) > 2 * BLOCK_SIZE
            now += 1.0
    assert num_wrong == 1
    assert view.statistics(0).calibration.num_resets == 1


def test_requests_in_flight_during_a_reset_count_it_once():
    """What was learned after it is not wiped out by those that were sent before."""
    view, engine = view_of(), CacheEngine(CAPACITY // BLOCK_SIZE)
    talks = [conversation(name, 3) for name in "abcd"]
    for now, talk in enumerate(talks):
        ask(view, engine, talk[0], float(now))
    engine.reset()
    for talk in talks:
        view.dispatched(0, talk[1].prompt, None, 10.0)
    for now, talk in enumerate(talks, 11):
        cached = engine.serve(talk[1])
        num_input = len(talk[1].token_ids)
        view.answered(0, talk[1].prompt, None, 400, num_input, cached, 3, float(now))
    assert view.statistics(0).calibration.num_resets == 1
    for now, talk in enumerate(talks, 20):
        predicted, cached = ask(view, engine, talk[2], float(now))
        assert abs(predicted - cached) <= 2 * BLOCK_SIZE


def test_a_burst_that_misses_is_no_evidence():
    """Siblings are sent while the first is being computed; engines may compute them all."""
    view = view_of()
    talk = conversation("a", 1)[0]
    other = conversation("b", 1)[0]
    ask(view, CacheEngine(1000), other, 0.0)
    copies = [prompt_keys([b"s" * 3000, bytes(500)], namespace("m")) for _ in range(4)]
    for prompt in copies:
        view.dispatched(0, prompt, None, 1.0)
    for prompt in copies:
        view.answered(0, prompt, None, 700, 900, 0, 5, 2.0)
    figures = view.statistics(0).calibration
    assert (figures.num_resets, figures.num_evictions) == (0, 0)
    assert view.match(other.prompt, None, (0,), 3.0)[0] > 0
    assert view.match(talk.prompt, None, (0,), 3.0) == [0]


def test_an_eviction_takes_what_is_older_and_leaves_what_is_younger():
    """Least recently used goes first; one answer corrects all of it, and the capacity."""
    view, engine = view_of(capacity=200 * BLOCK_SIZE), CacheEngine(100)
    talks = [conversation(name, 2, 300) for name in "abcdefgh"]
    assert sum(len(talk[0].token_ids) for talk in talks) > 1.4 * 100 * BLOCK_SIZE
    for now, talk in enumerate(talks):
        ask(view, engine, talk[0], float(now))
    second_held = view.match(talks[1][1].prompt, None, (0,), 40.0)
    predicted, cached = ask(view, engine, talks[0][1], 50.0)
    assert (predicted > 100, cached) == (True, 0)
    assert view.match(talks[1][1].prompt, None, (0,), 60.0) == second_held > [0]
    predicted, cached = ask(view, engine, talks[-1][1], 70.0)
    assert predicted > 100
    assert abs(predicted - cached) <= BLOCK_SIZE
    figures = view.statistics(0).calibration
    assert (figures.num_evictions, figures.num_resets) == (1, 0)


def test_an_assumed_capacity_is_found_out_by_evictions():
    """From two million tokens to about what there is, in ten answers or so."""
    view, engine = view_of(capacity=None), CacheEngine(2000)
    talks = [conversation(name, 1, 1500)[0] for name in "abcdefghijklmnopqrstuvwxyz"]
    assert sum(len(talk.token_ids) for talk in talks) > 1.2 * 2000 * BLOCK_SIZE
    now = 0.0
    for _ in range(12):
        for talk in talks:
            ask(view, engine, talk, now)
            now += 1.0
    figures = view.statistics(0).calibration
    assert 2000 * BLOCK_SIZE / 2 < figures.capacity_tokens < 4000 * BLOCK_SIZE


def test_tokens_of_a_prompt_are_estimated_from_what_is_known():
    """Exactly, once the engine has counted it; by bytes where nobody has."""
    view, engine = view_of(), CacheEngine(1000)
    first, second = conversation("a", 2)
    assert view.estimate_tokens(first.prompt, 0) == first.prompt.num_bytes // 4
    ask(view, engine, first, 0.0)
    assert view.estimate_tokens(first.prompt, 0) == len(first.token_ids)
    estimate = view.estimate_tokens(second.prompt, 0)
    assert abs(estimate - len(second.token_ids)) < 0.2 * len(second.token_ids)
    assert view.estimate_tokens(NO_KEYS, 0) == 0


def test_a_replica_is_under_pressure_once_it_is_full():
    """Then what goes next is what was not used for longest."""
    view, engine = view_of(capacity=100 * BLOCK_SIZE), CacheEngine(100)
    talks = [conversation(name, 1, 300)[0] for name in "abcdefgh"]
    found = []
    for now, talk in enumerate(talks):
        ask(view, engine, talk, float(now))
        found.append(view.pressure(0, 10.0))
    assert {capacity for capacity, _ in found} == {100 * BLOCK_SIZE}
    assert [idle_s is None for _, idle_s in found[:3]] == [True] * 3
    assert 2.0 < found[-1][1] <= 9.0


def precise_view(trust=None, num_blocks=1200):
    """A replica whose events are followed from the start, and its engine."""
    view, engine = view_of(capacity=num_blocks * BLOCK_SIZE, trust=trust), CacheEngine(num_blocks)
    view.tokens_agree(0, True, 0.0)
    view.stream_standing(0, 0, StreamStanding.COMPLETE, None, 0.0)
    return view, engine


def feed(view, engine, now):
    view.stream_batches(0, 0, engine.batches, now)
    engine.batches.clear()


def test_with_events_predictions_are_right_while_a_small_cache_evicts(airline_sessions):
    """Real sessions; to the block on at least 99 % of 300 requests."""
    view, engine = precise_view()
    assert view.mode(0) is TrustMode.PRECISE
    num_off = 0
    for now, turn in enumerate(islice(interleaved(airline_sessions, 8), 300)):
        predicted, cached = ask(view, engine, turn, float(now), tokens=token_prompt(turn.token_ids))
        feed(view, engine, now + 0.6)
        num_off += abs(predicted - cached) > BLOCK_SIZE
    assert engine.pool.num_evicted_blocks > 600
    assert num_off <= 3
    assert view.mode(0) is TrustMode.PRECISE
    assert view.block_sizes() == {BLOCK_SIZE}


def test_what_goes_for_those_that_wait_before_it_is_not_predicted():
    """An engine keeps nothing for a request that waits; if they fail it is there after all."""
    view, engine = precise_view(num_blocks=120)
    for now, name in enumerate("abcd"):
        (turn,) = conversation(name, 1)
        ask(view, engine, turn, float(now), tokens=token_prompt(turn.token_ids))
        feed(view, engine, now + 0.6)
    (oldest,) = conversation("a", 1)
    tokens = token_prompt(oldest.token_ids)
    (before,) = view.match(oldest.prompt, tokens, (0,), 9.0)
    assert before > 300
    waiting = [conversation(name, 1)[0] for name in "ef"]
    for turn in waiting:
        view.dispatched(0, turn.prompt, token_prompt(turn.token_ids), 10.0)
        view.check_integrity()
    assert view.match(oldest.prompt, tokens, (0,), 10.0)[0] < before
    for turn in waiting:
        view.failed(0, turn.prompt, 11.0)
        view.check_integrity()
    assert view.match(oldest.prompt, tokens, (0,), 11.0) == [before]


def test_a_huge_prompt_that_is_refused_costs_the_others_nothing():
    """Room is made for it once it was computed, not before."""
    view, engine = view_of(capacity=2000), CacheEngine(125)
    (turn,) = conversation("a", 1)
    ask(view, engine, turn, 0.0)
    (before,) = view.match(turn.prompt, None, (0,), 1.0)
    (huge,) = conversation("h", 1, num_words=5000)
    view.dispatched(0, huge.prompt, None, 2.0)
    view.failed(0, huge.prompt, 3.0)
    view.check_integrity()
    assert view.match(turn.prompt, None, (0,), 4.0) == [before]
    assert before > 300


def test_a_cut_stream_falls_back_to_what_was_learned_all_along():
    """The approximate index has seen every request; recovery is automatic."""
    view, engine = precise_view()
    talk = conversation("a", 5)
    for now, turn in enumerate(talk[:3]):
        ask(view, engine, turn, float(now), tokens=token_prompt(turn.token_ids))
        feed(view, engine, now + 0.6)
    view.stream_standing(0, 0, StreamStanding.LOST, StreamFault.DISCONNECTED, 5.0)
    assert view.mode(0) is TrustMode.APPROXIMATE
    predicted, cached = ask(view, engine, talk[3], 6.0, tokens=token_prompt(talk[3].token_ids))
    assert abs(predicted - cached) <= 2 * BLOCK_SIZE
    feed(view, engine, 6.6)
    view.stream_standing(0, 0, StreamStanding.COMPLETE, None, 7.0)
    assert view.mode(0) is TrustMode.PRECISE
    predicted, cached = ask(view, engine, talk[4], 8.0, tokens=token_prompt(talk[4].token_ids))
    assert predicted == cached
    assert [made.change.after for made in view.take_changes()][-2:] == [
        TrustMode.APPROXIMATE,
        TrustMode.PRECISE,
    ]
    assert view.take_changes() == []


def test_a_prompt_without_tokens_is_looked_up_approximately_in_precise_mode():
    """Its tokenizer may be busy, or it may not be text."""
    view, engine = precise_view()
    first, second = conversation("a", 2)
    ask(view, engine, first, 0.0, tokens=token_prompt(first.token_ids))
    predicted, cached = ask(view, engine, second, 1.0)
    assert abs(predicted - cached) <= 2 * BLOCK_SIZE


def test_tokens_without_keys_are_enough_in_precise_mode():
    """A prompt shorter than a block of bytes may be longer than a block of tokens."""
    view, engine = precise_view()
    text = tokenize(" ".join("abcdefghijklmnopqrstuvwxyzabcdefghijklmnop"))
    turn = Turn(prompt_keys([b"x" * 100], namespace("m")), text, tokenize(" ok"))
    assert turn.prompt.keys == []
    tokens = token_prompt(text)
    ask(view, engine, turn, 0.0, tokens=tokens)
    feed(view, engine, 1.0)
    predicted, cached = ask(view, engine, turn, 2.0, tokens=tokens)
    assert predicted == cached > 0


def test_silence_and_streams_that_begin_anew_are_passed_on_to_trust():
    """The feed's words in, modes out."""
    view, engine = precise_view()
    (turn,) = conversation("a", 1)
    tokens = token_prompt(turn.token_ids)
    ask(view, engine, turn, 0.0, tokens=tokens)
    view.tick(1.0)
    assert view.mode(0) is TrustMode.PRECISE
    view.tick(1.6)
    assert view.mode(0) is TrustMode.APPROXIMATE
    feed(view, engine, 2.0)
    assert view.mode(0) is TrustMode.PRECISE
    view.stream_reset(0, 0, 3.0)
    assert view.match(turn.prompt, tokens, (0,), 3.0) == [0]
    view.stream_removed(0, 0)
    assert view.mode(0) is TrustMode.APPROXIMATE
    view.check_integrity()


def test_load_only_predicts_nothing():
    """Where the approximate index is worse than none, until it is better again."""
    view = view_of(trust=TrustConfig(window=10, min_answers=5))
    (turn,) = conversation("a", 1)
    for now in range(24):  # an engine without a cache
        view.dispatched(0, turn.prompt, None, float(now))
        view.answered(0, turn.prompt, None, 0, len(turn.token_ids), 0, 5, now + 0.5)
    assert view.mode(0) is TrustMode.LOAD_ONLY
    assert view.match(turn.prompt, None, (0,), 25.0) == [0]
    engine = CacheEngine(1000)
    for now in range(30, 45):
        ask(view, engine, turn, float(now))
    assert view.mode(0) is TrustMode.APPROXIMATE


def test_tokens_for_a_replica_without_events_change_nothing():
    """They were made for another one."""
    view = view_of()
    prompt = prompt_of(1, 2)
    view.dispatched(0, prompt, TokenPrompt(100, {16: []}), 0.0)
    view.answered(0, prompt, TokenPrompt(100, {16: []}), 0, 100, 0, 1, 1.0)
    view.check_integrity()


@pytest.mark.parametrize(
    "values",
    [
        {"speculative_s": -1.0},
        {"ttl_s": 0.0},
        {"default_capacity_tokens": 0},
        {"default_block_size": 0},
        {"max_entries": 0},
        {"max_open": 0},
    ],
)
def test_a_parameter_that_cannot_be_meant_is_refused(values):
    """With its name, its value and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        PrefixConfig(**values)
    assert next(iter(values)) in caught.value.message
