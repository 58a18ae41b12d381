"""`Fleet`: who serves a model and may be used."""

import pytest

from headstart.errors import NotFound
from headstart.routing.fleet import Fleet
from headstart.routing.replica import Replica, Standing


def names(replicas) -> list[str]:
    return [replica.name for replica in replicas]


def test_candidates_serve_the_model_and_are_available():
    """Others are left out."""
    replicas = [Replica("a", frozenset({"m"})), Replica("b", frozenset({"m", "n"})), Replica("c")]
    fleet = Fleet(replicas)
    fleet.set_models(replicas[2], frozenset({"n"}))
    assert names(fleet.candidates("m")) == ["a", "b"]
    assert names(fleet.candidates("n")) == ["b", "c"]
    assert names(fleet.candidates("")) == ["a", "b", "c"]
    fleet.set_standing(replicas[1], Standing.OUT)
    assert names(fleet.candidates("m")) == ["a"]
    fleet.set_standing(replicas[1], Standing.USABLE)
    assert names(fleet.candidates("m")) == ["a", "b"]
    assert fleet.models() == ["m", "n"]


def test_an_unknown_model_is_not_found_and_the_message_says_what_is_served():
    """Known only once every engine has said what it serves."""
    fleet = Fleet([Replica("a", frozenset({"m"})), Replica("b", frozenset({"n"}))])
    with pytest.raises(NotFound, match="Served: m, n"):
        fleet.candidates("x")


def test_a_replica_that_has_not_said_may_serve_anything():
    """Better try it than refuse what it might serve."""
    fleet = Fleet([Replica("a", frozenset({"m"})), Replica("b")])
    assert names(fleet.candidates("x")) == ["b"]


def test_a_model_whose_replicas_are_all_down_is_not_unknown():
    """It has no candidates now, which is a 503 and not a 404."""
    replica = Replica("a", frozenset({"m"}))
    fleet = Fleet([replica])
    fleet.set_standing(replica, Standing.OUT)
    assert fleet.candidates("m") == ()


def test_a_replica_on_trial_is_a_candidate_among_others():
    """It is chosen when the policy would choose it."""
    replicas = [Replica("a"), Replica("b")]
    fleet = Fleet(replicas)
    fleet.set_standing(replicas[0], Standing.TRIAL)
    assert names(fleet.candidates("m")) == ["a", "b"]
    assert not replicas[0].is_available


def test_the_last_resort_is_used_only_if_there_is_nothing_else():
    """Refusing would be worse; a replica that is out is not used even then."""
    replicas = [Replica("a"), Replica("b"), Replica("c")]
    fleet = Fleet(replicas)
    fleet.set_standing(replicas[0], Standing.LAST_RESORT)
    fleet.set_standing(replicas[1], Standing.OUT)
    assert names(fleet.candidates("m")) == ["c"]
    fleet.set_standing(replicas[2], Standing.LAST_RESORT)
    assert names(fleet.candidates("m")) == ["a", "c"]


def test_the_same_tuple_is_given_until_something_changes():
    """Policies keep what they derive from it."""
    replica = Replica("a", frozenset({"m"}))
    fleet = Fleet([replica, Replica("b", frozenset({"m"}))])
    first = fleet.candidates("m")
    assert fleet.candidates("m") is first
    fleet.set_standing(replica, Standing.USABLE)
    assert fleet.candidates("m") is first
    fleet.set_standing(replica, Standing.OUT)
    assert fleet.candidates("m") is not first


def test_a_flood_of_model_names_is_not_remembered():
    """Clients choose them."""
    fleet = Fleet([Replica("a")])
    for number in range(2000):
        fleet.candidates(f"m{number}")
    assert len(fleet._candidates) <= 256


def test_a_long_model_name_is_cut_in_the_message():
    """A message is no place for a megabyte."""
    fleet = Fleet([Replica("a", frozenset({"m"}))])
    with pytest.raises(NotFound) as caught:
        fleet.candidates("x" * 100_000)
    assert len(caught.value.message) < 400
