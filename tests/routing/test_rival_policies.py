"""The rival policies: each chooses what its published formula says, worked out by hand here."""

from collections import Counter
from dataclasses import dataclass
from math import inf, isfinite
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.fingerprint import PromptKeys
from headstart.routing.build import build_policy
from headstart.routing.config import (
    DynamoCostConfig,
    GorgoConfig,
    LlmDWeightedConfig,
    LMetricConfig,
    MooncakeConductorConfig,
    PolicyName,
    PrebleE2Config,
    RoutingConfig,
)
from headstart.routing.dynamo_cost import DynamoCost
from headstart.routing.gorgo import Gorgo
from headstart.routing.llm_d_weighted import LlmDWeighted
from headstart.routing.lmetric import LMetric
from headstart.routing.load import Work
from headstart.routing.mooncake_conductor import MooncakeConductor
from headstart.routing.policy import Policy, RoutingRequest
from headstart.routing.power_of_two import PowerOfTwo
from headstart.routing.preble_e2 import MAX_PREFIXES, LoadWindow, PrebleE2
from headstart.routing.production_stack_prefixaware import ProductionStackPrefixaware
from headstart.routing.random_choice import RandomChoice
from headstart.routing.rates import Rates
from headstart.routing.replica import Replica
from headstart.routing.ties import FewestAssigned
from headstart.types import PrefixKey

DRAWING: tuple[PolicyName, ...] = (
    *("random", "power_of_two", "production_stack_prefixaware"),
    *("llm_d_weighted", "dynamo_cost"),
)
ASSIGNING: tuple[PolicyName, ...] = ("preble_e2", "gorgo", "mooncake_conductor")
RIVALS = (*DRAWING, *ASSIGNING, "lmetric")
RATES = Rates(base_s=0.02, linear_s=1e-3, attention_s=0.0, interference=0.0, output_s=0.01)
NUM_TOKENS = 1000


@dataclass(frozen=True)
class State:
    """Of one replica, and what it holds of the request."""

    matched: int = 0
    pending: tuple[int, ...] = ()
    decoding: tuple[int, ...] = ()
    has_room: bool = True
    base_s: float = 0.02


def replica_of(state: State, slot: int) -> Replica:
    replica = Replica(f"r{slot}", slot=slot)
    load = replica.load
    load.set_rates(Rates(state.base_s, 1e-3, 0.0, 0.0, 0.01))
    load.set_capacity(10_000)
    for number, tokens in enumerate((*state.decoding, *state.pending)):
        replica.begin(4 * tokens)
        load.begin(number, Work(tokens, 0.0, tokens, is_stream=True), 0.0)
    for number in range(len(state.decoding)):
        load.first_token(number, 0.0)
    if not state.has_room:
        replica.max_in_flight = replica.in_flight
    return replica


def make(*states: State) -> tuple[tuple[Replica, ...], RoutingRequest]:
    replicas = tuple(replica_of(state, slot) for slot, state in enumerate(states))
    keys = [PrefixKey(number.to_bytes(16, "big")) for number in range(10)]
    prompt = PromptKeys(keys, [400 * (number + 1) for number in range(10)], 4000)
    request = RoutingRequest("m", prompt, input_tokens=NUM_TOKENS)
    request.matched_tokens = [state.matched for state in states]
    return replicas, request


def idle(*matched: int) -> tuple[tuple[Replica, ...], RoutingRequest]:
    return make(*map(State, matched))


def llm_d(*weights: float) -> Policy:
    return LlmDWeighted(LlmDWeightedConfig(*weights), Random(1))


def dynamo(*parameters: float) -> Policy:
    return DynamoCost(DynamoCostConfig(*parameters), Random(1))


def conductor(*parameters: float) -> Policy:
    return MooncakeConductor(MooncakeConductorConfig(*parameters))


PENDING = LMetricConfig("pending_and_uncached")
FULL = State(matched=1000, has_room=False)
# Queue scores are 1, 0 and 0.5; a tenth of the KV is 1000 tokens.
QUEUES = (State(0), State(600, (1000, 1000)), State(900, decoding=(), pending=(1000,)))
BUSY = (State(0), State(800, (500,)), State(800, decoding=(300,)))
WAITING = (State(0), State(800, (500,)), State(200))

SITUATIONS = [
    # 0+2+2, 1.8+0+1.6 and 2.7+1+1.8 of 7.
    (llm_d(), QUEUES, 2, [3.0, 3.6, 1.5]),
    # The same of 4: 0+1+1, 1.2+0+0.8 and 1.8+0.5+0.9.
    (llm_d(2, 1, 1), QUEUES, 2, [2.0, 2.0, 0.8]),
    # 0+2+2 against 3+0+0.8, and with 2:1:1 0+1+1 against 2+0+0.4.
    (llm_d(), (State(0), State(1000, (6000,))), 0, [3.0, 3.2]),
    (llm_d(2, 1, 1), (State(0), State(1000, (6000,))), 1, [2.0, 1.6]),
    # More KV than there is counts as all of it.
    (llm_d(), (State(0), State(1000, (), (30_000,))), 1, [3.0, 2.0]),
    # Those that are full have no part in the spread of the queues.
    (
        llm_d(),
        (State(0, (10,) * 9, has_room=False), State(0), State(0, (1,))),
        1,
        [inf, 3.0, 5.0002],
    ),
    # 1000+0, 700+500 and 200+300, and the prompt each time.
    (dynamo(), BUSY, 2, [2000.0, 2200.0, 1500.0]),
    (dynamo(2.0), BUSY, 2, [3000.0, 2900.0, 1700.0]),
    (dynamo(1.0, 0.5), BUSY, 2, [2000.0, 2600.0, 1900.0]),
    # 800 / (1 + 500/1000) are credited where 500 wait.
    (dynamo(1.0, 1.0, 1.0), BUSY, 2, [2000.0, 1500 - 800 / 1.5 + 1500, 1500.0]),
    # Never less than nothing to prefill.
    (dynamo(1.0, 2.0), BUSY, 2, [2000.0, 1500.0, 1300.0]),
    (dynamo(), (FULL, State(0), State(10)), 2, [inf, 2000.0, 1990.0]),
    # 1.0, 0.2+0.5 and 0.8.
    (Gorgo(GorgoConfig()), WAITING, 1, [1.0, 0.7, 0.8]),
    (Gorgo(GorgoConfig(queue_weight=2.0)), WAITING, 2, [1.0, 1.2, 0.8]),
    (Gorgo(GorgoConfig(prefill_weight=0.5)), WAITING, 2, [0.5, 0.6, 0.4]),
    (Gorgo(GorgoConfig(rtt_weight=1.0)), (State(0), State(900, base_s=1.0)), 0, [1.02, 1.1]),
    # The last token is always computed.
    (Gorgo(GorgoConfig()), (FULL, State(0), State(1000)), 2, [inf, 1.0, 0.001]),
    # 1.0, 0.5+0.2 and 0.8, and the base.
    (conductor(), WAITING, 1, [1.02, 0.72, 0.82]),
    # 800 tokens are fetched in 0.2 s, and 600 in 0.15 s.
    (conductor(4000.0), WAITING, 2, [0.42, 0.72, 0.37]),
    # 800 is four times 200.
    (conductor(4000.0, 3.9), WAITING, 2, [0.42, 0.72, 0.37]),
    (conductor(4000.0, 4.1), WAITING, 0, [0.42, 0.72, 0.82]),
    # What is full can still be fetched from.
    (conductor(4000.0), (FULL, State(0), State(600)), 1, [inf, 0.271, 0.42]),
    (LMetric(), (State(0), State(900, (1000,))), 1, [1000.0, 200.0]),
    (LMetric(PENDING), (State(0), State(900, (1000,))), 0, [1000.0, 2200.0]),
    (LMetric(PENDING), (State(0), State(900, (200,))), 1, [1000.0, 600.0]),
    (LMetric(PENDING), (State(0), State(900, (), (1000,))), 1, [1000.0, 200.0]),
]


@pytest.mark.parametrize(("policy", "states", "chosen", "prices"), SITUATIONS)
def test_a_choice_is_the_published_one(policy, states, chosen, prices):
    """With the prices that the formula gives."""
    replicas, request = make(*states)
    decision = policy.choose(request, replicas)
    assert decision.replica is replicas[chosen]
    assert decision.prices == pytest.approx(prices)


def test_the_conductor_counts_the_time_since_a_prefill_began():
    """Four of five tenths of a second are over."""
    replicas, request = make(*WAITING)
    request.now = 0.4
    assert conductor().choose(request, replicas).prices == pytest.approx([1.02, 0.32, 0.82])


def chosen_by(policy: Policy, num: int, *states: State) -> Counter[int]:
    replicas, request = make(*states)
    return Counter(policy.choose(request, replicas).replica.slot for _ in range(num))


def test_random_takes_everybody_alike():
    """Whatever they hold and have to do."""
    counts = chosen_by(RandomChoice(Random(1)), 3000, State(900), State(0, (10,) * 5), State(0))
    assert all(900 < counts[slot] < 1100 for slot in range(3))


def test_random_takes_one_of_a_small_weight_less_often():
    """A quarter as often here."""
    replicas, request = idle(0, 0)
    replicas[1].weight = 0.25
    policy = RandomChoice(Random(1))
    counts = Counter(policy.choose(request, replicas).replica.slot for _ in range(5000))
    assert 850 < counts[1] < 1150


def test_power_of_two_never_takes_the_most_loaded():
    """It is less loaded than whoever is drawn with it in no case."""
    counts = chosen_by(PowerOfTwo(Random(1)), 3000, State(900, (1,) * 3), State(0, (1,)), State(0))
    assert counts[0] == 0
    assert 900 < counts[1] < 1100  # drawn with the first one
    assert 1900 < counts[2] < 2100


def test_power_of_two_counts_load_by_weight():
    """Two requests at a quarter of the weight are eight."""
    replicas, request = make(State(0, (1,) * 2), State(0, (1,) * 7))
    replicas[0].weight = 0.25
    assert PowerOfTwo(Random(1)).choose(request, replicas).replica is replicas[1]


def test_power_of_two_takes_the_only_one_with_room():
    """There is nothing to draw."""
    assert chosen_by(PowerOfTwo(Random(1)), 5, FULL, State(0, (9,))) == {1: 5}


def test_production_stack_takes_any_of_the_longest_match():
    """However much they have to do."""
    states = (State(400), State(500, (9,) * 50), State(500), State(0))
    counts = chosen_by(ProductionStackPrefixaware(Random(1)), 1000, *states)
    assert counts.keys() == {1, 2}
    assert 400 < counts[1] < 600


def test_production_stack_takes_anybody_where_nobody_holds_something():
    """And the next best where the longest match has no room."""
    policy = ProductionStackPrefixaware(Random(1))
    assert chosen_by(policy, 200, State(0), State(0), State(0)).keys() == {0, 1, 2}
    assert chosen_by(policy, 20, FULL, State(7), State(3)) == {1: 20}


# Preble.


def preble(**parameters: float) -> PrebleE2:
    return PrebleE2(PrebleE2Config(**parameters))


def give(policy: PrebleE2, replica: Replica, num: int = 1, now: float = 0.0) -> None:
    """Send requests of 1.02 s of prefill and 0.45 s of decoding."""
    _, request = idle(0)
    request.now = now
    for _ in range(num):
        policy.choose(request, (replica,))


def test_preble_exploits_where_more_is_matched_than_missing():
    """One token over the half is enough, and load plays no part."""
    policy = preble()
    replicas, request = idle(501, 0)
    give(policy, replicas[0], 10)
    decision = policy.choose(request, replicas)
    assert (decision.replica, decision.reason) == (replicas[0], "exploit")
    replicas, request = idle(500, 0)
    decision = policy.choose(request, replicas)
    assert (decision.replica, decision.reason) == (replicas[1], "explore")


def test_preble_exploits_the_least_loaded_of_the_longest_match():
    """A shorter one is no alternative."""
    policy = preble()
    replicas, request = idle(900, 900, 899)
    give(policy, replicas[0], 2)
    give(policy, replicas[1], 1)
    assert policy.choose(request, replicas).replica is replicas[1]


def test_preble_explores_for_load_eviction_and_prefill():
    """1.47 + 0.62 against 1.02; then 2 ms for each of a thousand tokens that push others out."""
    policy = preble()
    replicas, request = idle(400, 0)
    give(policy, replicas[0])
    decision = policy.choose(request, replicas)
    assert decision.replica is replicas[1]
    assert decision.prices == pytest.approx([2.09, 1.02])
    replicas[1].load.evict_s = 2e-3
    decision = policy.choose(request, replicas)
    assert decision.replica is replicas[0]
    assert decision.prices == pytest.approx([2.09, 1.47 + 1.02 + 2.0])


def test_preble_forgets_load_after_the_window():
    """Of three minutes."""
    policy = preble()
    replicas, request = idle(400, 0)
    give(policy, replicas[0], 5, now=1000.0)
    for now, prices in ((1170.0, [5 * 1.47 + 0.62, 1.02]), (1181.0, [0.62, 1.02 + 1.47])):
        request.now = now
        assert policy.choose(request, replicas).prices == pytest.approx(prices)
        policy.check_integrity()


def test_preble_rebalances_from_the_heaviest_to_the_lightest():
    """From the fiftieth request on, where the one has more than half as much again."""
    pair, request_of_two = idle(900, 0)
    for num, reason in ((30, "exploit"), (31, "rebalance")):
        policy = preble(output_tokens=0)
        give(policy, pair[1], 20)
        give(policy, pair[0], num)
        decision = policy.choose(request_of_two, pair)
        assert decision.reason == reason
        assert decision.replica is pair[reason == "rebalance"]
    three, request_of_three = idle(900, 0, 0)
    give(policy, three[2], 100)
    assert policy.choose(request_of_three, three).reason == "exploit"  # not the heaviest
    few = preble()
    give(few, pair[0], 49)
    reasons = [few.choose(request_of_two, pair).reason for _ in range(2)]
    assert reasons == ["exploit", "rebalance"]


def hot_prefix(policy: PrebleE2, *matched: int) -> tuple[tuple[Replica, ...], RoutingRequest]:
    """Known in one half of the window, with a TTFT of 0.12 s, and waited for in the next."""
    replicas, request = idle(*matched)
    request.now = 10.0
    assert policy.choose(request, replicas).reason == "exploit"
    request.now = 100.0
    load = replicas[0].load
    load.begin("other", Work(500, 0.0, 500, is_stream=True), 100.0)
    return replicas, request


def test_preble_replicates_a_prefix_whose_ttft_has_doubled():
    """On the lightest replica that does not have it; once, and then the count begins anew."""
    policy = preble(balance_ratio=1e9)
    replicas, request = hot_prefix(policy, 900, 0, 0)
    give(policy, replicas[1], now=100.0)
    decision = policy.choose(request, replicas)
    assert (decision.replica, decision.reason) == (replicas[2], "replicate")
    assert policy.choose(request, replicas).reason == "exploit"


def test_preble_replicates_nothing_that_everybody_has():
    """Nor what has not become that much slower."""
    policy = preble(balance_ratio=1e9)
    replicas, request = hot_prefix(policy, 900)
    assert policy.choose(request, replicas).reason == "exploit"
    policy = preble(balance_ratio=1e9, replicate_ratio=6.0)
    replicas, request = hot_prefix(policy, 900, 0)
    assert policy.choose(request, replicas).reason == "exploit"


def test_preble_knows_a_bounded_number_of_prefixes():
    """The least recently used are forgotten."""
    policy = preble()
    replicas, request = idle(900)
    for number in range(MAX_PREFIXES + 5):
        request.prompt = PromptKeys([PrefixKey(number.to_bytes(16, "big"))], [3600], 4000)
        policy.choose(request, replicas)
    policy.check_integrity()
    assert len(policy._prefixes) == MAX_PREFIXES


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0.001, 9.0), st.floats(0.0, 40.0)), max_size=40
    )
)
def test_the_window_holds_what_was_given_in_it(gifts):
    """Against a list of everything; in sixtieths of a minute here."""
    window, everything, now = LoadWindow(60.0), [], 0.0
    for name, seconds, passed in gifts:
        now += passed
        window.advance(now)
        window.add(name, seconds)
        everything.append((name, seconds, int(now)))
        window.check_integrity()
        recent = [one for one in everything if one[2] > int(now) - 60]
        assert window.totals == {
            other: pytest.approx(sum(one[1] for one in recent if one[0] == other))
            for other in {one[0] for one in recent}
        }


# What all have in common.


@pytest.mark.parametrize("name", ASSIGNING)
def test_equals_go_to_the_fewest_assigned_tokens_and_then_in_turn(name):
    """Never by list order."""
    replicas, request = idle(0, 0, 0, 0)
    ties = FewestAssigned()
    for assigned, turns in (((10, 5, 7, 5), [1, 3, 1]), ((0, 0, 0, 0), [3, 0, 1, 2])):
        for replica, tokens in zip(replicas, assigned, strict=True):
            replica.load.assigned_tokens = tokens
        first = build_policy(RoutingConfig(policy=name)).choose(request, replicas).replica
        assert first is replicas[turns[0] if any(assigned) else 0]
        assert [ties.pick((1.0,) * 4, replicas) for _ in turns] == turns


@pytest.mark.parametrize("name", DRAWING)
def test_equals_are_drawn_and_the_seed_says_how(name):
    """As the sources do; a different seed draws differently."""
    drawn = []
    for seed in (1, 1, 2):
        policy = build_policy(RoutingConfig(policy=name, seed=seed))
        replicas, request = idle(0, 0, 0, 0)
        drawn.append([policy.choose(request, replicas).replica.slot for _ in range(400)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(70 < count < 130 for count in Counter(drawn[0]).values())
    assert set(drawn[0]) == {0, 1, 2, 3}


STATES = st.builds(
    State,
    matched=st.integers(0, NUM_TOKENS),
    pending=st.lists(st.integers(0, 3000), max_size=3).map(tuple),
    decoding=st.lists(st.integers(0, 3000), max_size=3).map(tuple),
    has_room=st.booleans(),
    base_s=st.sampled_from([0.0, 0.02, 0.5]),
)
FLEETS = st.lists(STATES, min_size=1, max_size=6).filter(
    lambda states: any(state.has_room for state in states)
)


@pytest.mark.parametrize("name", RIVALS)
@given(FLEETS, st.lists(st.floats(0.0, 120.0), min_size=1, max_size=8), st.booleans())
def test_every_choice_has_room_and_the_least_price(name, states, gaps, is_matched):
    """And two of the same seed choose alike, with an index or without one."""
    policies = [build_policy(RoutingConfig(policy=name, seed=7)) for _ in range(2)]
    replicas, request = make(*states)
    if not is_matched:
        request.matched_tokens = ()
    for gap in gaps:
        request.now += gap
        decision, other = (policy.choose(request, replicas) for policy in policies)
        assert decision == other
        assert decision.replica.has_room
        assert decision.policy == name
        if decision.prices:
            price = decision.prices[replicas.index(decision.replica)]
            assert price == min(decision.prices) >= 0.0
            finite = [isfinite(each) for each in decision.prices]
            assert finite == [state.has_room for state in states]


@pytest.mark.parametrize("name", RIVALS)
def test_a_prompt_without_tokens_is_routed(name):
    """One that is empty, or whose tokens could not be estimated."""
    policy = build_policy(RoutingConfig(policy=name))
    replicas, _ = idle(0, 0)
    for matched in ((), (0, 0), (0, 5)):
        request = RoutingRequest("m", matched_tokens=matched)
        assert policy.choose(request, replicas).replica in replicas


def test_all_rivals_are_tested_here():
    """Or with the policies that were there before them."""
    before = {"expected_ttft", "prefix_hash", "session_affinity", "least_loaded", "round_robin"}
    assert set(get_args(PolicyName)) == {*RIVALS, *before, "sglang_cache_aware"}
