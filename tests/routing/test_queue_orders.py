"""Who goes next: worked examples, a naive twin, and the promises to those who wait."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headstart.routing.queue import MAX_LOOKED_AT, Line, QueueConfig, WaitQueue
from headstart.routing.queue_orders import (
    MAX_DEBT_QUANTA,
    MAX_GROUPS,
    MAX_TENANTS,
    DeficitLongestPrefixMatch,
    FirstComeFirstServed,
    LongestPrefixMatch,
    Match,
)
from headstart.routing.replica import Replica


@dataclass(frozen=True)
class One:
    """Waits; matches so many of its tokens."""

    name: str
    matched: int = 0
    total: int = 1000
    group: str = ""
    tenant: str = "t"
    priority: int = 0


def match_of(one):
    return Match(one.matched, one.total)


def served(order, waiting):
    """Return the names in the order in which all go."""
    waiting, names = list(waiting), []
    while waiting:
        one = order.pick(waiting, match_of)
        waiting.remove(one)
        names.append(one.name)
    return "".join(names)


def test_first_come_first_served():
    """Whatever matches."""
    assert served(FirstComeFirstServed(), [One("a"), One("b", 900), One("c", 500)]) == "abc"


def test_the_longest_match_goes_first_and_of_equals_the_oldest():
    """As published, with the tie rule that keeps P99 low."""
    waiting = [One("a", 100), One("b", 500), One("c", 500), One("d", 900), One("e", 100)]
    assert served(LongestPrefixMatch(), waiting) == "dbcae"


def test_every_kth_turn_is_the_oldests():
    """k = 3: the oldest, two longest matches, and again."""
    waiting = [One("a"), One("b", 100), One("c", 200), One("d", 300), One("e", 400), One("f", 5)]
    assert served(LongestPrefixMatch(3), waiting) == "aedbcf"
    assert served(LongestPrefixMatch(1), waiting) == "abcdef"


def test_a_lone_request_is_not_looked_up():
    """There is nothing to compare."""
    for order in (LongestPrefixMatch(), LongestPrefixMatch(2), DeficitLongestPrefixMatch(5)):
        assert order.pick([One("a")], None).name == "a"


def test_what_the_orders_remember_is_bounded():
    """A million groups or tenants cost no more than a thousand."""
    k_lpm, dlpm = LongestPrefixMatch(3), DeficitLongestPrefixMatch(1000)
    for number in range(3 * MAX_GROUPS):
        k_lpm.pick([One("a", group=str(number)), One("b", group=str(number))], match_of)
        dlpm.charge(str(number), 1 + number % 7)
    k_lpm.check_integrity()
    dlpm.check_integrity()
    dlpm.charge("x", 10_000)
    assert dlpm.entitled({str(number) for number in range(3 * MAX_TENANTS)} | {"x"})
    dlpm.check_integrity()


# Deficits.


def test_whoever_has_used_up_its_share_stands_back():
    """And when all have, all get a quantum."""
    order = DeficitLongestPrefixMatch(1000)
    order.charge("a", 1500)
    assert order.entitled({"a", "b"}) == {"b"}
    order.charge("b", 1200)
    assert order.entitled({"a", "b"}) == {"a", "b"}
    assert (order.deficit("a"), order.deficit("b")) == (500, 800)


def test_a_lone_tenant_is_never_held_up():
    """It gets as many quanta as it takes."""
    order = DeficitLongestPrefixMatch(10)
    order.charge("t", 1_000_000)
    assert order.entitled({"t"}) == {"t"}
    assert 0 < order.deficit("t") <= 10


@given(st.lists(st.integers(1, 10_000), max_size=50), st.integers(1, 1000))
def test_a_debt_is_bounded(charges, quantum):
    """By so many quanta and one charge; and a small charge forgives no large one."""
    order, least = DeficitLongestPrefixMatch(quantum), 0
    for tokens in charges:
        before = order.deficit("t")
        order.charge("t", tokens)
        assert order.deficit("t") <= before
        least = max(least, tokens)
    assert order.deficit("t") >= -MAX_DEBT_QUANTA * quantum - least


# In the queue.


def queue_of(order, **changes):
    return WaitQueue(QueueConfig(max_in_flight=1, max_waiting=10_000, order=order, **changes))


def join(queue, one, now=0.0):
    return queue.join(one, Line("m", None, one.priority), 1, now, one.group, one.tenant)


def pop(queue, now=0.0, charges=False):
    place = queue.pop_next(lambda _line: True, lambda place: match_of(place.who), now)
    queue.check_integrity()
    one = place.who
    if charges:
        queue.charge(one.tenant, max(one.total - one.matched, 1))
    return one


def all_of(order, waiting, *, now=0.0, **changes):
    """Return the names in the order in which all go, of a queue that was there at once."""
    queue = queue_of(order, **changes)
    for one in waiting:
        join(queue, one)
    return "".join(pop(queue, now).name for _ in waiting)


def test_matches_move_nobody_who_does_not_share():
    """Groups go by arrival, one request for one; who goes in a group's turn is its own affair."""
    x, y = {"group": "x"}, {"group": "y"}
    cold = [One("a", **x), One("b", **y), One("c", 0, **x), One("d", **y)]
    warm = [One("a", **x), One("b", **y), One("c", 500, **x), One("d", 900, **y)]
    assert all_of("lpm", cold) == "abcd"
    assert all_of("lpm", warm) == "cdab"
    # k_lpm gives each group's oldest every k-th turn of that group.
    assert all_of("k_lpm", warm, k=2) == "abcd"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("xyz"), st.integers(0, 900), st.integers(0, 900)), st.none()
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from(["lpm", "k_lpm"]))
def test_nobody_learns_from_its_turns_what_of_anothers_is_cached(steps, order):
    """When which of x's requests goes is the same, whatever the others' requests match."""

    def turns_of_x(use):
        queue, turns = queue_of(order, k=3), []
        for number, step in enumerate(steps):
            if step is not None:
                group, *matches = step
                join(queue, One(str(number), matches[0 if group == "x" else use], group=group))
            elif queue.num_waiting:
                one = pop(queue)
                turns.append(one.name if one.group == "x" else "")
        while queue.num_waiting:
            one = pop(queue)
            turns.append(one.name if one.group == "x" else "")
        return turns

    assert turns_of_x(0) == turns_of_x(1)


def test_models_are_not_compared():
    """They share no cache."""
    queue = queue_of("lpm")
    for name, model, matched in (("a", "m", 0), ("b", "n", 900), ("c", "m", 5)):
        queue.join(One(name, matched), Line(model), 1, 0.0)
    assert [pop(queue).name for _ in range(3)] == ["c", "b", "a"]


@pytest.mark.parametrize("order", ["fcfs", "lpm", "k_lpm", "dlpm"])
def test_age_beats_matches_and_priorities(order):
    """Whoever has waited for longer than `age_s` goes first."""
    queue = queue_of(order, age_s=5.0)
    join(queue, One("a", priority=50))
    join(queue, One("b", 900), now=1.0)
    join(queue, One("c", 500), now=1.0)
    assert [pop(queue, now).name for now in (2.0, 5.5, 5.5)] == ["b", "a", "c"]


@given(
    st.lists(st.integers(0, 900), min_size=8, max_size=30),
    st.sampled_from(["lpm", "k_lpm", "dlpm"]),
)
def test_nobody_waits_for_ever(matches, order):
    """With one turn a second nobody is overtaken once it has waited for `age_s`."""
    queue = queue_of(order, age_s=3.0, quantum_tokens=10)
    join(queue, One("lone"))
    for turn, matched in enumerate(matches):
        join(queue, One(str(turn), matched), now=turn)
        if pop(queue, float(turn), charges=True).name == "lone":
            assert turn <= 4
            return
    pytest.fail("it still waits")


def test_the_least_priority_goes_first():
    """And within it the order decides."""
    waiting = [("a", 900, 1), ("b", 0, 0), ("c", 5, 0), ("d", 999, 2)]
    ones = [One(name, matched, priority=priority) for name, matched, priority in waiting]
    assert all_of("lpm", ones) == "cbad"
    ones = [
        One(name, priority=priority) for name, priority in [("a", 1), ("b", 0), ("c", -5), ("d", 0)]
    ]
    assert all_of("fcfs", ones) == "cbda"


def test_the_oldest_are_compared():
    """A look-up each bounds how many."""
    queue = queue_of("lpm")
    for number in range(MAX_LOOKED_AT):
        join(queue, One(str(number)))
    join(queue, One("best", 999))
    assert [pop(queue).name for _ in range(2)] == ["0", "best"]


def test_tenants_share_what_there_is():
    """Two with as much to do each get the same, though one matches half of everything."""
    queue, used = queue_of("dlpm", quantum_tokens=1000), Counter()
    for tenant, matched in [("a", 0)] * 60 + [("b", 500)] * 120:
        join(queue, One(tenant, matched, tenant=tenant))
    for _ in range(60):
        one = pop(queue, charges=True)
        used[one.tenant] += one.total - one.matched
        assert abs(used["a"] - used["b"]) <= 2000
    assert min(used.values()) >= 19_000


@pytest.mark.parametrize("now", [0.0, 11.0], ids=["fresh", "old"])
def test_a_flood_holds_up_its_own_tenant(now):
    """However many of its requests are older, looked at or beyond the age bound."""
    queue = queue_of("dlpm", quantum_tokens=1000, age_s=10.0)
    for _ in range(500):
        join(queue, One("flood", 900, tenant="f"), now=0.0)
    join(queue, One("light", tenant="l"), now=now)
    turns = [pop(queue, now, charges=True).name for _ in range(20)]
    assert turns.index("light") <= 11


def test_what_was_used_while_nobody_waited_is_not_owed():
    """And what is owed is bounded: nobody is locked out for what it did before."""
    queue = queue_of("dlpm", quantum_tokens=1000, age_s=1e6)
    queue.charge("f", 10**9)
    join(queue, One("f", tenant="f"))
    queue.charge("f", 10**6)
    queue.charge("f", 10**6)
    for _ in range(2000):
        join(queue, One("l", tenant="l"))
    turns = [pop(queue, charges=True).name for _ in range(1100)]
    assert "f" in turns
    queue = queue_of("dlpm", quantum_tokens=1000)
    queue.charge("f", 10**9)
    for name in "fl":
        join(queue, One(name, tenant=name))
    assert pop(queue).name == "f"


class Twin(RuleBasedStateMachine):
    """A queue beside a list: rows own the numbers of their requests as turns, the least first."""

    ORDERS = ("fcfs", "lpm", "k_lpm", "dlpm")
    K, QUANTUM, AGE_S = 3, 700, 10.0

    def __init__(self):
        super().__init__()
        self.order = None
        self.now, self.count = 0.0, 0

    @rule(order=st.sampled_from(ORDERS))
    @precondition(lambda self: self.order is None)
    def begin(self, order):
        self.order = order
        self.queue = queue_of(order, k=self.K, quantum_tokens=self.QUANTUM, age_s=self.AGE_S)
        self.places, self.turns, self.picks, self.deficits = [], {}, {}, {}

    def row(self, place):
        group = place.group if self.order != "fcfs" else ""
        return place.line, group, place.tenant if self.order == "dlpm" else ""

    def row_of(self, place):
        return [each for each in self.places if self.row(each) == self.row(place)]

    def turn(self, place):
        return sorted(self.turns[self.row(place)])[self.row_of(place).index(place)]

    @rule(
        model=st.sampled_from("mn"),
        priority=st.sampled_from([0, 0, 0, 3]),
        group=st.sampled_from("xy"),
        tenant=st.sampled_from("tuv"),
        matched=st.sampled_from([0, 100, 100, 500, 900]),
        was_failed=st.integers(0, 9),
    )
    @precondition(lambda self: self.order is not None)
    def join(self, model, priority, group, tenant, matched, was_failed):
        self.count += 1
        one = One(str(self.count), matched, group=group, tenant=tenant)
        line = Line(model, REPLICA if was_failed == 0 else None, priority)
        place = self.queue.join(one, line, 1, self.now, group, tenant)
        self.places.append(place)
        number = 0 if was_failed == 0 else place.number
        assert place.number == number
        self.turns.setdefault(self.row(place), []).append(number)

    @rule(data=st.data())
    @precondition(lambda self: self.order is not None and self.places)
    def leave(self, data):
        place = data.draw(st.sampled_from(self.places))
        self.queue.leave(place)
        self.turns[self.row(place)].remove(self.turn(place))
        self.places.remove(place)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def let_time_pass(self, seconds):
        self.now += seconds

    @rule(tenant=st.sampled_from("tuv"), tokens=st.integers(1, 5000))
    @precondition(lambda self: self.order is not None)
    def charge(self, tenant, tokens):
        self.queue.charge(tenant, tokens)
        if self.places:
            had = self.deficits.get(tenant, self.QUANTUM)
            least = -MAX_DEBT_QUANTA * self.QUANTUM
            self.deficits[tenant] = had - tokens if had >= least else min(had, least - tokens)

    @rule(models=st.sampled_from([{"m"}, {"n"}, {"m", "n"}]))
    @precondition(lambda self: self.order is not None)
    def serve(self, models):
        able = [place for place in self.places if place.line.model in models]
        place = self.queue.pop_next(
            lambda line: line.model in models, lambda place: match_of(place.who), self.now
        )
        if not able:
            assert place is None
            return
        assert place in self.expected(able)
        turns = self.turns[self.row(place)]
        turns.remove(min(turns))
        self.places.remove(place)

    def expected(self, able):
        """Return who may go: one, or of those that were failed the first of any line."""
        failed = [place for place in able if place.line.failed is not None]
        if failed:
            return [place for place in failed if self.row_of(place)[0] is place]
        if self.order == "dlpm":
            able = self.entitled(able)
        if self.now - able[0].since > self.AGE_S:
            return able[:1]
        least = min(place.line.priority for place in able)
        able = [place for place in able if place.line.priority == least]
        first = min(able, key=self.turn)
        if self.order == "fcfs":
            return [first]
        able = [p for p in able if (p.line, p.group) == (first.line, first.group)]
        if self.order == "k_lpm":
            turn = self.picks.get(first.group, 0)
            self.picks[first.group] = (turn + 1) % self.K if len(able) > 1 else 0
            if turn == 0:
                return able[:1]
        return [max(able, key=lambda place: place.who.matched)]  # the first of equals

    def entitled(self, able):
        tenants = {place.tenant for place in able}
        while all(self.deficits.get(tenant, self.QUANTUM) <= 0 for tenant in tenants):
            for tenant in tenants:
                self.deficits[tenant] += self.QUANTUM
        return [p for p in able if self.deficits.get(p.tenant, self.QUANTUM) > 0]

    @invariant()
    def check(self):
        if self.order is not None:
            self.queue.check_integrity()
            assert self.queue.num_waiting == len(self.places)
            for model, priority in (("m", 0), ("m", 3), ("n", 2)):
                ahead = [p for p in self.places if p.line.model == model]
                ahead = [p for p in ahead if p.line.priority <= priority]
                assert self.queue.num_ahead(model, priority) == len(ahead)
            for place in self.places:
                assert place.turn == self.turn(place)


REPLICA = Replica("failed")
TestOrders = Twin.TestCase
TestOrders.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
