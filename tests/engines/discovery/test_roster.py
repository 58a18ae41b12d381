"""`Roster`: who should be there, by configuration, sources and the operator's word."""

import logging
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headstart.clock import VirtualClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.roster import _EMPTY_GRACE_S, MAX_REPLICAS, Roster, SourceStatus
from headstart.errors import BadRequest, Conflict


def replica(name, host=None, **more) -> ReplicaConfig:
    return ReplicaConfig(name, f"http://{host or name}:8000", **more)


A, B, C = (replica(name) for name in "abc")


@dataclass
class Place:
    """A source as the roster sees it."""

    label: str = "place"
    grace_s: float = 0.0

    async def watch(self, listener):
        raise NotImplementedError


class Told:
    """A roster and what it told those who front the replicas."""

    def __init__(self, *static):
        self.clock = VirtualClock()
        self.applied = []
        self.roster = Roster(static, self.apply, self.clock)

    def apply(self, replicas, /, *, cut=frozenset()):
        assert replicas == self.roster.replicas
        self.applied.append((tuple(each.name for each in replicas), set(cut)))

    @property
    def names(self):
        return sorted(each.name for each in self.roster.replicas)

    def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.roster.sweep()


# Sources.


def test_each_change_is_told_once_and_whole():
    """What is listed again is no change."""
    told = Told(A)
    listing = told.roster.listing(Place())
    listing.found([B])
    listing.found([B])
    listing.found([C, B])
    listing.found([B, C])
    assert told.applied == [(("a", "b"), set()), (("a", "c", "b"), set())]


def test_a_source_that_fails_keeps_what_it_listed_last(caplog):
    """For as long as it fails; it is said once, and its end as well."""
    caplog.set_level(logging.INFO)
    told = Told()
    listing = told.roster.listing(Place())
    listing.found([A, B])
    for _ in range(3):
        listing.failed("no answer")
        told.pass_time(1000.0)
    assert told.names == ["a", "b"]
    assert told.roster.sources() == [SourceStatus("place", 2, "no answer")]
    listing.found([A])
    assert told.names == ["a"]
    assert told.roster.sources() == [SourceStatus("place", 1, "")]
    assert [record.getMessage() for record in caplog.records] == [
        "source place: no answer; 2 of its replicas are kept",
        "source place lists 1 replicas",
    ]


def test_a_source_that_lists_none_is_believed_after_half_a_minute():
    """An empty answer is more often a mistake than the end of a service."""
    told = Told()
    listing = told.roster.listing(Place())
    listing.found([A])
    listing.found([])
    assert told.names == ["a"]
    told.pass_time(_EMPTY_GRACE_S / 2)
    listing.found([])
    listing.failed("and now nothing at all")
    assert told.names == ["a"]
    told.pass_time(_EMPTY_GRACE_S / 2)
    assert told.names == []


def test_one_that_is_listed_again_in_time_was_never_gone():
    """Its grace begins anew the next time."""
    told = Told()
    listing = told.roster.listing(Place())
    listing.found([A])
    listing.found([])
    told.pass_time(_EMPTY_GRACE_S - 1)
    listing.found([A])
    told.pass_time(_EMPTY_GRACE_S)
    listing.found([])
    told.pass_time(_EMPTY_GRACE_S - 1)
    assert told.names == ["a"]
    assert len(told.applied) == 1


def test_one_that_is_left_out_goes_after_the_sources_own_grace():
    """At once, or after a few answers of a DNS server."""
    told = Told()
    quick, slow = (told.roster.listing(Place(f"{grace}", grace)) for grace in (0.0, 20.0))
    quick.found([A, B])
    slow.found([C, replica("d")])
    quick.found([A])
    slow.found([C])
    assert told.names == ["a", "c", "d"]
    told.pass_time(19.0)
    slow.found([C])
    assert told.names == ["a", "c", "d"]
    told.pass_time(1.0)
    assert told.names == ["a", "c"]


def test_a_source_that_has_listed_nothing_yet_is_said_to(caplog):
    """A name with a slip of the pen has no addresses."""
    told = Told(A)
    told.roster.listing(Place()).found([])
    assert told.roster.sources() == [SourceStatus("place", 0, "it lists no replica")]
    assert told.applied == []
    assert "source place: it lists no replica" in caplog.text


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (replica("a", "elsewhere"), "another replica has that name"),
        (replica("b", "a"), "another replica is at that address"),
        (ReplicaConfig("b", "http://a:8000/v1/"), "another replica is at that address"),
        (ReplicaConfig("b", "ftp://b"), "must look like http"),
        (replica("b c", "b"), "cannot be called 'b c'"),
    ],
)
def test_the_first_of_two_counts_and_the_other_is_said_once(second, why, caplog):
    """One engine under two names would get twice its load."""
    told = Told()
    listings = [told.roster.listing(Place(label)) for label in ("one", "two")]
    listings[0].found([A])
    for _ in range(2):
        listings[1].found([second, C])
    assert told.names == ["a", "c"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"two: {second.name} is not used: ")
    assert why in line


def test_the_configuration_goes_before_sources_and_may_name_an_address_twice():
    """It was checked when it was read."""
    told = Told(A, replica("a2", "a"))
    told.roster.listing(Place()).found([replica("found", "a"), B])
    assert told.names == ["a", "a2", "b"]


def test_a_source_gone_wild_is_bounded():
    """It must not fill the memory."""
    told = Told(A)
    told.roster.listing(Place()).found([replica(f"r{i}") for i in range(3 * MAX_REPLICAS)])
    assert len(told.names) == MAX_REPLICAS
    with pytest.raises(Conflict, match="There are 1024 replicas"):
        told.roster.add(replica("one-more"))


# The operator.


def test_one_that_is_added_stays_until_it_is_removed():
    """Whatever sources list."""
    told = Told(A)
    listing = told.roster.listing(Place())
    told.roster.add(B)
    listing.found([C])
    listing.found([replica("d")])
    assert told.names == ["a", "b", "d"]
    told.roster.remove("b")
    assert told.names == ["a", "d"]


@pytest.mark.parametrize(
    ("config", "error", "param"),
    [
        (replica("a", "elsewhere"), Conflict, "name"),
        (replica("b", "a"), Conflict, "url"),
        (replica("b c", "b"), BadRequest, "name"),
        (replica("", "b"), BadRequest, "name"),
        (ReplicaConfig("b", "ftp://b"), BadRequest, "url"),
    ],
)
def test_what_cannot_be_added_is_refused(config, error, param):
    """With what is in the way."""
    told = Told(A)
    with pytest.raises(error) as caught:
        told.roster.add(config)
    assert caught.value.param == param
    assert told.applied == []


def test_one_of_the_configuration_can_be_removed():
    """Until the gateway starts again, or it is added again."""
    told = Told(A, B)
    told.roster.remove("a")
    assert told.names == ["b"]
    moved = replica("a", "elsewhere")
    told.roster.add(moved)
    assert moved in told.roster.replicas
    told.roster.remove("a")
    assert told.names == ["b"]
    told.roster.add(A)
    assert told.names == ["a", "b"]


def test_one_that_a_source_lists_stays_away_until_it_was_not_listed_once():
    """Its next life is another one."""
    told = Told()
    listing = told.roster.listing(Place())
    listing.found([A, B])
    told.roster.remove("a")
    listing.found([A, B, C])
    assert told.names == ["b", "c"]
    listing.found([B, C])
    listing.found([A, B, C])
    assert told.names == ["a", "b", "c"]


def test_what_is_removed_now_is_told_so_even_if_it_had_been_removed_before():
    """It may be finishing what it was sent."""
    told = Told(A, B)
    told.roster.remove("a")
    told.roster.remove("a", is_now=True)
    told.roster.remove("b", is_now=True)
    assert told.applied == [(("b",), set()), (("b",), {"a"}), ((), {"b"})]


# Anything in any order.

NAMES = st.sampled_from("abcd")


class RosterMachine(RuleBasedStateMachine):
    """One source, a configuration of one, and an operator; the twin keeps all that was said."""

    def __init__(self):
        super().__init__()
        self.told = Told(replica("s"))
        self.listing = self.told.roster.listing(Place(grace_s=5.0))
        self.until = {}
        self.added, self.removed = set(), set()

    @property
    def now(self):
        return self.told.clock.monotonic()

    @rule(names=st.sets(NAMES))
    def list_them(self, names):
        self.listing.found([replica(name) for name in sorted(names)])
        grace_s = 5.0 if names else _EMPTY_GRACE_S
        for name, until in self.until.items():
            if name not in names:
                self.until[name] = min(until, self.now + grace_s)
        self.until |= dict.fromkeys(names, float("inf"))

    @rule()
    def fail(self):
        self.listing.failed("no answer")

    @rule(seconds=st.sampled_from([1.0, 5.0, 31.0]))
    def pass_time(self, seconds):
        self.told.pass_time(seconds)

    @rule(name=st.sampled_from("abcds"))
    def add(self, name):
        try:
            self.told.roster.add(replica(name))
        except Conflict:
            assert name in self.wanted()
        else:
            self.added.add(name)

    @rule(name=st.sampled_from("abcds"))
    def remove(self, name):
        self.told.roster.remove(name)
        self.added.discard(name)
        self.removed.add(name)

    def wanted(self):
        self.until = {name: until for name, until in self.until.items() if until > self.now}
        listed = {"s"} | self.until.keys()
        self.removed &= listed
        return self.added | (listed - self.removed)

    @invariant()
    def the_twin_agrees(self):
        self.told.roster.sweep()
        assert set(self.told.names) == self.wanted()
        assert self.listing.trouble in ("", "no answer", "it lists no replica")


TestRosterMachine = RosterMachine.TestCase
TestRosterMachine.settings = settings(max_examples=100, stateful_step_count=30)
