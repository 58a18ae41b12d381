"""The policies: what they promise about load, prefixes and ties."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from math import ceil
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.fingerprint import PromptKeys
from headstart.routing.build import build_policy
from headstart.routing.config import PolicyName, PrefixHashConfig, RoutingConfig
from headstart.routing.least_loaded import LeastLoaded
from headstart.routing.lmetric import LMetric
from headstart.routing.load import Work
from headstart.routing.policy import RoutingRequest
from headstart.routing.prefix_hash import PrefixHash, floor_power_of_two
from headstart.routing.replica import Replica
from headstart.routing.ring import MAX_RINGS, HashRing, RingCache
from headstart.routing.round_robin import RoundRobin
from headstart.routing.session_affinity import SessionAffinity
from headstart.routing.sglang_cache_aware import SglangCacheAware
from headstart.types import PrefixKey

KEYS = st.binary(min_size=16, max_size=16).map(PrefixKey)
POLICIES = get_args(PolicyName)
NAMES = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=8, unique=True)


def begin(replica: Replica, key: object) -> None:
    replica.begin(100)
    replica.load.begin(key, Work(100, 0.0, 100, is_stream=True), 0.0)


def fleet(*in_flight: int) -> tuple[Replica, ...]:
    replicas = []
    for index, count in enumerate(in_flight):
        replica = Replica(f"r{index}", slot=index)
        for request_number in range(count):
            begin(replica, request_number)
        replicas.append(replica)
    return tuple(replicas)


def key_of(number: int) -> PrefixKey:
    return PrefixKey(number.to_bytes(16, "little"))


def request(*keys: int | bytes, session: str = "") -> RoutingRequest:
    """One whose prompt has a block for each key."""
    blocks = [key_of(key) if isinstance(key, int) else PrefixKey(key) for key in keys]
    ends = [1024 * (index + 1) for index in range(len(keys))]
    prompt = PromptKeys(blocks, ends, 1024 * len(keys) + 50)
    return RoutingRequest("m", prompt, prompt_bytes=5000, session=session, input_tokens=1250)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_built_by_name(name):
    """And bears that name in its decisions."""
    policy = build_policy(RoutingConfig(policy=name))
    assert policy.name == name
    decision = policy.choose(request(1), fleet(0, 0))
    assert decision.policy == name
    assert decision.reason


def test_round_robin_takes_turns():
    """Load and prefix make no difference."""
    policy, replicas = RoundRobin(), fleet(5, 0, 9)
    chosen = [policy.choose(request(1), replicas).replica.name for _ in range(6)]
    assert chosen == ["r0", "r1", "r2"] * 2


def test_round_robin_goes_on_when_the_set_changes():
    """A shrinking set is no error."""
    policy = RoundRobin()
    for replicas in (fleet(0, 0, 0), fleet(0), fleet(0, 0)):
        assert policy.choose(request(), replicas).replica in replicas


def test_round_robin_gives_a_small_weight_fewer_turns():
    """Its first at once, then as many as its weight says."""
    policy, replicas = RoundRobin(), fleet(0, 0)
    replicas[1].weight = 0.25
    chosen = [policy.choose(request(1), replicas).replica.name for _ in range(20)]
    assert "r1" in chosen[:2]
    assert chosen.count("r1") == 4
    replicas[1].weight = 1.0
    chosen = [policy.choose(request(1), replicas).replica.name for _ in range(20)]
    assert chosen.count("r1") == 10


def test_round_robin_ends_when_all_weights_are_small():
    """After all of several replicas have returned together."""
    policy, replicas = RoundRobin(), fleet(0, 0, 0)
    for replica in replicas:
        replica.weight = 0.1
    counts = Counter(policy.choose(request(1), replicas).replica.name for _ in range(30))
    assert counts == {"r0": 10, "r1": 10, "r2": 10}


def test_least_loaded_counts_load_by_weight():
    """Half the weight, half the requests."""
    policy, replicas = LeastLoaded(), fleet(0, 0, 0)
    replicas[0].weight = 0.5
    for _ in range(50):
        policy.choose(request(), replicas).replica.begin(10)
    assert [replica.in_flight for replica in replicas] == [10, 20, 20]


def test_a_replica_that_has_just_returned_gets_a_request_at_once():
    """Whatever its weight, because it has nothing to do."""
    replicas = fleet(9, 9, 0)
    replicas[2].weight = 0.1
    policy = LeastLoaded()
    chosen = policy.choose(request(), replicas).replica
    assert chosen.name == "r2"
    chosen.begin(1)
    assert policy.choose(request(), replicas).replica.name != "r2"


def test_least_loaded_takes_the_fewest_requests_then_the_fewest_bytes():
    """In this order."""
    replicas = fleet(2, 1, 1)
    replicas[1].in_flight_bytes = 900
    policy = LeastLoaded()
    assert {policy.choose(request(), replicas).replica.name for _ in range(5)} == {"r2"}


def test_equals_are_taken_in_turn():
    """A lone request after another must not always meet the first replica."""
    policy, replicas = LeastLoaded(), fleet(0, 0, 0, 0)
    chosen = Counter(policy.choose(request(), replicas).replica.name for _ in range(40))
    assert chosen == {"r0": 10, "r1": 10, "r2": 10, "r3": 10}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_nothing_is_less_loaded_than_the_choice(loads):
    """Against the plain minimum."""
    replicas = fleet(*loads)
    assert LeastLoaded().choose(request(), replicas).replica.in_flight == min(loads)


WEIGHTS = st.sampled_from([0.1, 0.25, 0.7, 1.0])


@given(
    st.lists(st.tuples(st.integers(0, 8), WEIGHTS), min_size=1, max_size=6),
    KEYS,
    st.floats(1.01, 3.0),
)
def test_the_bound_is_never_exceeded(loads, key, load_bound):
    """After the choice no replica has more than its share by weight of what is then in flight."""
    replicas = fleet(*(load for load, _ in loads))
    for replica, (_, weight) in zip(replicas, loads, strict=True):
        replica.weight = weight
    policy = PrefixHash(PrefixHashConfig(load_bound=load_bound))
    chosen = policy.choose(request(key), replicas).replica
    chosen.begin(1)
    total = sum(replica.in_flight for replica in replicas)
    share = chosen.weight / sum(replica.weight for replica in replicas)
    assert chosen.in_flight <= ceil(load_bound * total * share + 1e-9)


def test_the_prefixes_of_a_replica_that_has_returned_come_back_with_its_weight():
    """Until then the next on the ring, which stood in for it, has them warm."""
    policy, replicas = PrefixHash(PrefixHashConfig()), fleet(0, 0)
    owner = policy.choose(request(7), replicas).replica
    shares = []
    for weight in (0.1, 1.0):
        owner.weight = weight
        for replica in replicas:
            replica.in_flight = 0
        for _ in range(22):
            policy.choose(request(7), replicas).replica.begin(1)
        shares.append(owner.in_flight)
    assert shares == [3, 14]


def test_prompts_that_begin_alike_go_to_one_replica():
    """One at a time: nothing is over its bound."""
    policy, replicas = PrefixHash(PrefixHashConfig()), fleet(0, 0, 0, 0)
    for key in range(50):
        chosen = {policy.choose(request(key * 2**64 + key), replicas).replica for _ in range(5)}
        assert len(chosen) == 1


def test_a_hot_prefix_spills_to_the_same_next_replica():
    """The ring's order after the owner is the same each time."""
    policy, replicas = PrefixHash(PrefixHashConfig()), fleet(0, 0, 0, 0)
    owner = policy.choose(request(7), replicas).replica
    for _ in range(3):
        owner.begin(1)
    spilled = {policy.choose(request(7), replicas) for _ in range(5)}
    assert len({decision.replica for decision in spilled}) == 1
    (decision,) = spilled
    assert decision.replica is not owner
    assert decision.reason == "ring owner over its bound"


def test_different_prefixes_spread():
    """Not all new prefixes to the first replica."""
    policy, replicas = PrefixHash(PrefixHashConfig()), fleet(0, 0, 0, 0)
    keys = [os.urandom(16) for _ in range(4000)]
    counts = Counter(policy.choose(request(key), replicas).replica.name for key in keys)
    assert max(counts.values()) / 1000 < 1.35


def test_a_short_prompt_goes_where_there_is_least_to_do():
    """It has no full block, so no key."""
    policy = PrefixHash(PrefixHashConfig())
    decision = policy.choose(request(), fleet(3, 0, 3))
    assert decision.replica.name == "r1"
    assert "short" in decision.reason


def test_a_growing_conversation_moves_at_most_three_times():
    """With 8 leading blocks the key changes at 2, 4 and 8 blocks and never again."""
    policy, replicas = PrefixHash(PrefixHashConfig(leading_blocks=8)), fleet(0, 0, 0, 0, 0)
    for conversation in range(30):
        keys = [hash_like(conversation, block) for block in range(40)]
        chosen = [
            policy.choose(request(*keys[:blocks]), replicas).replica for blocks in range(1, 41)
        ]
        moves = [
            blocks
            for blocks, (before, after) in enumerate(pairwise(chosen), start=2)
            if before is not after
        ]
        assert set(moves) <= {2, 4, 8}


def hash_like(*parts: int) -> int:
    return int.from_bytes(repr(parts).encode().rjust(16, b"!")[:16], "big") * 2654435761 % 2**128


@pytest.mark.parametrize(
    ("number", "power"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (9, 8)]
)
def test_floor_power_of_two(number, power):
    """The key of 3 blocks is that of 2."""
    assert floor_power_of_two(number) == power


def test_a_list_of_candidates_that_changes_in_place_is_noticed():
    """Only a tuple's identity may be relied on."""
    policy = PrefixHash(PrefixHashConfig())
    replicas = list(fleet(0, 0, 0))
    policy.choose(request(5), replicas)
    gone = replicas.pop()
    for key in range(200):
        assert policy.choose(request(key << 60), replicas).replica is not gone


def test_rings_are_kept_for_the_last_sets_of_candidates_and_no_more():
    """Two models with replicas of their own take turns, and neither builds its ring again."""
    rings, replicas = RingCache(), fleet(*[0] * (MAX_RINGS + 8))
    pairs = [(one, replicas[0]) for one in replicas[1:]]
    built = [rings.ring_of(pair) for pair in pairs]
    assert len(rings) == MAX_RINGS
    for index in (-1, -2, -1):
        assert rings.ring_of((*pairs[index],)) is built[index]
    assert rings.ring_of(pairs[0]) is not built[0]


@given(NAMES, KEYS, st.data())
def test_removing_a_member_moves_only_its_keys(names, key, data):
    """Consistent hashing's promise."""
    owner = names[next(HashRing(names).walk(key))]
    removed = data.draw(st.sampled_from(names))
    rest = [name for name in names if name != removed]
    if rest:
        new_owner = rest[next(HashRing(rest).walk(key))]
        assert new_owner == owner or owner == removed


@given(NAMES, KEYS, st.randoms())
def test_the_order_of_names_makes_no_difference(names, key, random):
    """Gateways list the same replicas in any order."""
    shuffled = names[:]
    random.shuffle(shuffled)
    walks = [[ring[index] for index in HashRing(ring).walk(key)] for ring in (names, shuffled)]
    assert walks[0] == walks[1]
    assert sorted(walks[0]) == sorted(names)


def test_the_ring_is_the_same_in_every_process():
    """Whatever Python's hash seed."""
    code = (
        "from headstart.routing.ring import HashRing;"
        "keys = [(k << 57).to_bytes(16, 'little') for k in range(50)];"
        "print([list(HashRing(['a','b','c','d']).walk(k)) for k in keys])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    here = [list(HashRing(["a", "b", "c", "d"]).walk(key_of(key << 57))) for key in range(50)]
    assert printed == {f"{here}\n"}


@pytest.mark.parametrize("name", POLICIES)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 5), st.sampled_from([1.0, 0.5, 0.1])),
        min_size=1,
        max_size=6,
    ),
    st.lists(KEYS, max_size=3),
)
def test_a_full_replica_is_not_chosen(name, states, keys):
    """However cold the others are, and wherever the ring or the turn points."""
    replicas = fleet(*(in_flight for in_flight, _, _ in states))
    for replica, (_, max_in_flight, weight) in zip(replicas, states, strict=True):
        replica.max_in_flight, replica.weight = max_in_flight, weight
    policy = build_policy(RoutingConfig(policy=name))
    while any(replica.has_room for replica in replicas):
        chosen = policy.choose(request(*keys), replicas).replica
        assert chosen.has_room
        begin(chosen, object())


def test_a_session_stays_where_it_began():
    """However its prompt grows, and one without a session goes by its prompt."""
    policy, replicas = SessionAffinity(PrefixHashConfig()), fleet(0, 0, 0, 0)
    by_session = {
        policy.choose(request(key << 70, session="chat-1"), replicas).replica for key in range(20)
    }
    assert len(by_session) == 1
    sessions = Counter(
        policy.choose(request(1, session=f"chat-{number}"), replicas).replica.name
        for number in range(400)
    )
    assert len(sessions) == 4
    by_prompt = policy.choose(request(7 << 70), replicas)
    assert (
        by_prompt.replica
        is PrefixHash(PrefixHashConfig()).choose(request(7 << 70), replicas).replica
    )
    assert by_prompt.reason.startswith("no session")


def test_a_busy_session_spills():
    """With the same bound as prompts."""
    policy, replicas = SessionAffinity(PrefixHashConfig()), fleet(0, 0, 0)
    owner = policy.choose(request(session="s"), replicas).replica
    for number in range(3):
        begin(owner, ("s", number))
    decision = policy.choose(request(session="s"), replicas)
    assert decision.replica is not owner
    assert decision.reason == "session, ring owner over its bound"


def with_matches(*matched: int) -> RoutingRequest:
    asked = request(5)
    asked.input_tokens, asked.matched_tokens = 1000, matched
    return asked


def test_lmetric_multiplies_what_is_uncached_with_the_load():
    """1000 x 1 is less than 300 x 4, and 200 x 4 is less than both."""
    policy, replicas = LMetric(), fleet(0, 3)
    assert policy.choose(with_matches(0, 700), replicas).replica is replicas[0]
    decision = policy.choose(with_matches(0, 800), replicas)
    assert decision.replica is replicas[1]
    assert decision.prices == [1000.0, 800.0]


def test_lmetric_takes_equals_in_turn():
    """Its paper leaves ties open, and list order would be the worst."""
    policy, replicas = LMetric(), fleet(0, 0, 0, 0)
    chosen = Counter(policy.choose(with_matches(0, 0, 0, 0), replicas).replica for _ in range(8))
    assert set(chosen.values()) == {2}


def test_sglang_follows_a_long_match_however_busy_it_is():
    """Up to 64 requests of imbalance."""
    policy = build_policy(RoutingConfig(policy="sglang_cache_aware"))
    assert isinstance(policy, SglangCacheAware)
    replicas = fleet(0, 60)
    decision = policy.choose(with_matches(0, 400), replicas)
    assert decision.replica is replicas[1]
    assert decision.reason == "longest match"


def test_sglang_takes_a_short_match_for_none():
    """At most 0.3 of the prompt; equals then go to the first, which is its known fault."""
    policy = build_policy(RoutingConfig(policy="sglang_cache_aware"))
    replicas = fleet(0, 0)
    assert policy.choose(with_matches(0, 300), replicas).replica is replicas[0]
    assert policy.choose(with_matches(0, 301), replicas).replica is replicas[1]


def test_sglang_goes_by_load_once_loads_are_uneven():
    """More than 64 apart, and more than half as much again."""
    policy = build_policy(RoutingConfig(policy="sglang_cache_aware"))
    replicas = fleet(1, 66)
    decision = policy.choose(with_matches(0, 900), replicas)
    assert decision.replica is replicas[0]
    assert decision.reason == "uneven, least loaded"
