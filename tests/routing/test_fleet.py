"""`Fleet`: who serves a model and may be used."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


def test_slots_are_the_smallest_that_are_free():
    """Indexes use them as numbers of bits, so they stay small while replicas come and go."""
    replicas = [Replica(name) for name in "abc"]
    fleet = Fleet(replicas)
    assert [replica.slot for replica in replicas] == [0, 1, 2]
    fleet.retire(replicas[1])
    fleet.add(late := Replica("d"))
    assert late.slot == 3
    fleet.remove(replicas[1])
    fleet.add(later := Replica("e"))
    assert later.slot == 1


def test_one_that_leaves_is_no_candidate_and_its_models_are_not_served():
    """Though it may still have requests to end."""
    replicas = [Replica("a", frozenset({"m"})), Replica("b", frozenset({"n"}))]
    fleet = Fleet(replicas)
    assert names(fleet.candidates("m")) == ["a"]
    fleet.retire(replicas[0])
    assert (names(fleet.replicas), fleet.models()) == (["b"], ["n"])
    assert names(fleet.candidates("")) == ["b"]
    with pytest.raises(NotFound, match="Served: n"):
        fleet.candidates("m")


def test_one_that_comes_back_keeps_its_slot():
    """And what was learned under it."""
    replica = Replica("a")
    fleet = Fleet([replica, Replica("b")])
    fleet.retire(replica)
    fleet.add(Replica("c"))
    fleet.restore(replica)
    assert (replica.slot, names(fleet.candidates("m"))) == (0, ["b", "c", "a"])


def test_a_name_can_be_given_away_while_its_owner_leaves():
    """An engine that moved: requests on the old address end while new ones go to the new one."""
    old = Replica("a")
    fleet = Fleet([old])
    fleet.retire(old)
    fleet.add(new := Replica("a"))
    assert fleet.candidates("m") == (new,)
    assert (old.slot, new.slot) == (0, 1)


def test_without_any_replica_no_model_is_unknown():
    """Sources have not listed any yet: 503 and not 404."""
    assert Fleet().candidates("m") == ()


MODELS = st.sampled_from(["", "m", "n"])


class FleetMachine(RuleBasedStateMachine):
    """Replicas come, go and change; a list of everything that was said decides alike."""

    def __init__(self):
        super().__init__()
        self.fleet = Fleet()
        self.there, self.leaving = [], []

    @rule(name=st.sampled_from("abcd"), models=st.sets(st.sampled_from("mn")))
    def add(self, name, models):
        if name not in names(self.there):
            replica = Replica(name, frozenset(models))
            taken = {other.slot for other in self.there + self.leaving}
            self.fleet.add(replica)
            assert replica.slot == min(set(range(len(taken) + 1)) - taken)
            self.there.append(replica)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def retire(self, data):
        replica = data.draw(st.sampled_from(self.there))
        self.fleet.retire(replica)
        self.there.remove(replica)
        self.leaving.append(replica)

    @precondition(lambda self: self.leaving)
    @rule(data=st.data(), is_back=st.booleans())
    def leave_or_stay(self, data, is_back):
        replica = data.draw(st.sampled_from(self.leaving))
        if not is_back:
            self.fleet.remove(replica)
        elif replica.name in names(self.there):
            return
        else:
            self.fleet.restore(replica)
            self.there.append(replica)
        self.leaving.remove(replica)

    @precondition(lambda self: self.there or self.leaving)
    @rule(data=st.data(), standing=st.sampled_from(Standing))
    def judge(self, data, standing):
        replica = data.draw(st.sampled_from(self.there + self.leaving))
        self.fleet.set_standing(replica, standing)

    @precondition(lambda self: self.there or self.leaving)
    @rule(data=st.data(), models=st.sets(st.sampled_from("mn")))
    def tell_models(self, data, models):
        replica = data.draw(st.sampled_from(self.there + self.leaving))
        self.fleet.set_models(replica, frozenset(models))

    @rule(model=MODELS)
    def ask(self, model):
        fitting = [
            each for each in self.there if not model or not each.models or model in each.models
        ]
        try:
            found = self.fleet.candidates(model)
        except NotFound:
            assert self.there
            assert not fitting
            return
        wanted = [each for each in fitting if each.standing in (Standing.USABLE, Standing.TRIAL)]
        wanted = wanted or [each for each in fitting if each.standing is Standing.LAST_RESORT]
        assert list(found) == wanted
        assert found is self.fleet.candidates(model)

    @invariant()
    def holds_together(self):
        self.fleet.check_integrity()
        assert list(self.fleet.replicas) == self.there


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(max_examples=100, stateful_step_count=30)
