"""Who goes next: worked examples, a naive twin, and the promises to those who wait."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.routing.queue import MAX_LOOKED_AT, Line, QueueConfig, WaitQueue
from headstart.routing.queue_orders import (
    MAX_TENANTS,
    DeficitLongestPrefixMatch,
    FirstComeFirstServed,
    LongestPrefixMatch,
    Match,
)


@dataclass(frozen=True)
class One:
    """Waits; matches so many of its tokens."""

    name: str
    matched: int = 0
    total: int = 1000
    group: str = ""
    tenant: str = "t"


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


def test_matches_are_not_compared_across_those_who_do_not_share():
    """Whoever has waited longest chooses the group; a match elsewhere moves nobody ahead."""
    waiting = [
        One("a", group="x"),
        One("b", 900, group="y"),
        One("c", 500, group="x"),
        One("d", 950, group="y"),
    ]
    assert served(LongestPrefixMatch(), waiting) == "cadb"
    hidden = [
        One(one.name, 0 if one.group == "y" else one.matched, group=one.group) for one in waiting
    ]
    turns = [name in "ac" for name in served(LongestPrefixMatch(), hidden)]
    assert turns == [name in "ac" for name in "cadb"]


@given(
    st.lists(st.tuples(st.integers(0, 900), st.sampled_from("xyz")), min_size=1, max_size=12),
    st.lists(st.integers(0, 900), min_size=12, max_size=12),
)
def test_what_another_group_matches_changes_nobodys_turn(ones, others):
    """A tenant cannot see by its own waits what of another's is cached."""
    waiting = [One(str(i), matched, group=group) for i, (matched, group) in enumerate(ones)]
    changed = [
        One(one.name, others[i] if one.group != "x" else one.matched, group=one.group)
        for i, one in enumerate(waiting)
    ]

    def turns_of_x(those):
        left, turns, order = list(those), [], LongestPrefixMatch()
        for turn in range(len(those)):
            one = order.pick(left, match_of)
            left.remove(one)
            if one.group == "x":
                turns.append((turn, one.name))
        return turns

    # Which group goes depends on who is left in the others, so the first turns are compared.
    first, second = turns_of_x(waiting), turns_of_x(changed)
    assert [name for _, name in first] == [name for _, name in second]


def test_deficits_share_what_there_is():
    """Two tenants with as much to do each get the same, though one matches everything."""
    order = DeficitLongestPrefixMatch(1000)
    waiting = [One("a", 0, 1000, tenant="a") for _ in range(40)]
    waiting += [One("b", 500, 1000, tenant="b") for _ in range(80)]
    used = Counter()
    for _ in range(60):
        one = order.pick(waiting, match_of)
        waiting.remove(one)
        used[one.tenant] += one.total - one.matched
        order.check_integrity()
    assert used["a"] == pytest.approx(used["b"], abs=2000)


def test_what_was_generated_is_charged():
    """A tenant whose answers were long waits for the others."""
    order = DeficitLongestPrefixMatch(1000)
    waiting = [One("a", 990, tenant="a"), One("b", 0, tenant="b")]
    order.charge("a", 1500)
    assert served(order, waiting) == "ba"


def test_a_lone_tenant_is_never_held_up():
    """When nobody who waits has anything left, all get a quantum, and as many as it takes."""
    order = DeficitLongestPrefixMatch(10)
    order.charge("t", 1_000_000)
    assert served(order, [One("a"), One("b", 5)]) == "ba"


def test_shares_are_bounded():
    """A million tenants cost no more than a thousand."""
    order = DeficitLongestPrefixMatch(1000)
    for number in range(3 * MAX_TENANTS):
        order.charge(str(number), 1 + number % 7)
    order.check_integrity()


# In the queue.


def queue_of(order, **changes):
    config = QueueConfig(max_in_flight=1, order=order, **changes)
    return WaitQueue(config)


def join(queue, name, matched=0, now=0.0, priority=0, **changes):
    one = One(name, matched, **changes)
    return queue.join(one, Line("m", None, priority), 1, now, one.group, one.tenant)


def pop(queue, now=0.0):
    place = queue.pop_next(lambda _line: True, lambda place: match_of(place.who), now)
    queue.check_integrity()
    return place.who.name


def test_age_beats_matches_and_priorities():
    """Whoever has waited for longer than `age_s` goes first."""
    queue = queue_of("lpm", age_s=5.0)
    join(queue, "a", now=0.0, priority=50)
    join(queue, "b", 900, now=1.0)
    join(queue, "c", 500, now=1.0)
    assert pop(queue, now=2.0) == "b"
    assert pop(queue, now=5.5) == "a"
    assert pop(queue, now=5.5) == "c"


@given(st.lists(st.integers(0, 900), min_size=1, max_size=30), st.sampled_from(["lpm", "k_lpm"]))
def test_nobody_waits_for_ever(matches, order):
    """With one turn a second nobody is overtaken once it has waited for `age_s`."""
    queue = queue_of(order, age_s=3.0, max_waiting=10_000)
    join(queue, "lone", 0)
    for turn, matched in enumerate(matches * 2):
        join(queue, str(turn), matched, now=turn)
        if pop(queue, now=float(turn)) == "lone":
            assert turn <= 4
            return
    assert len(matches) * 2 <= 4


def test_the_least_priority_goes_first():
    """And within it the order decides."""
    queue = queue_of("lpm")
    for name, matched, priority in (("a", 900, 1), ("b", 0, 0), ("c", 5, 0), ("d", 999, 2)):
        join(queue, name, matched, priority=priority)
    assert [pop(queue) for _ in range(4)] == ["c", "b", "a", "d"]
    queue = queue_of("fcfs")
    for name, priority in (("a", 1), ("b", 0), ("c", -5), ("d", 0)):
        join(queue, name, priority=priority)
    assert [pop(queue) for _ in range(4)] == ["c", "b", "d", "a"]


def test_the_oldest_are_compared():
    """A look-up each bounds how many."""
    queue = queue_of("lpm")
    for number in range(MAX_LOOKED_AT):
        join(queue, str(number))
    join(queue, "best", 999)
    assert pop(queue) == "0"
    assert pop(queue) == "best"
