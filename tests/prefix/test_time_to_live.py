"""`TimeToLive`: found from resets after idle times, given up when it proves too short."""

from hypothesis import given
from hypothesis import strategies as st

from headstart.prefix.time_to_live import TimeToLive


def test_three_losses_after_long_idle_times_set_it_to_the_shortest():
    """One may be a restart; less than a minute is none."""
    ttl = TimeToLive(None)
    for idle_s in (400.0, 30.0, 310.0):
        ttl.missed(idle_s)
        assert ttl.ttl_s is None
    ttl.missed(900.0)
    assert ttl.ttl_s == 310.0


def test_what_survived_longer_speaks_against_it():
    """Then those losses had another reason."""
    ttl = TimeToLive(None)
    ttl.missed(400.0)
    ttl.missed(310.0)
    ttl.hit(500.0)
    ttl.missed(450.0)
    ttl.missed(600.0)
    ttl.missed(600.0)
    assert ttl.ttl_s is None
    ttl.missed(620.0)
    assert ttl.ttl_s == 600.0


def test_finding_what_was_given_up_doubles_it_until_there_is_none():
    """Wrong evidence costs hits for a while and not for ever."""
    ttl = TimeToLive(None)
    for _ in range(3):
        ttl.missed(300.0)
    ttl.unexpected()
    assert ttl.ttl_s == 600.0
    for _ in range(9):
        ttl.unexpected()
    assert ttl.ttl_s is None
    ttl.unexpected()
    assert ttl.ttl_s is None


def test_a_configured_one_holds_until_evidence_shortens_it():
    """It is not lengthened by what merely was not known."""
    ttl = TimeToLive(600.0)
    ttl.unexpected()
    assert ttl.ttl_s == 600.0
    for _ in range(3):
        ttl.missed(200.0)
    assert ttl.ttl_s == 200.0


@given(st.lists(st.tuples(st.sampled_from(["hit", "missed"]), st.floats(0, 1e6))))
def test_it_is_never_less_than_a_minute(evidence):
    """Whatever happens."""
    ttl = TimeToLive(None)
    for kind, idle_s in evidence:
        getattr(ttl, kind)(idle_s)
        if idle_s > 5e5:
            ttl.unexpected()
        assert ttl.ttl_s is None or 60.0 <= ttl.ttl_s <= 86_400.0
