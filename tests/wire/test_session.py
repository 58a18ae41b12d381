"""`session_of`: what the client calls its conversation."""

import pytest

from headstart.wire.session import SESSION_FIELDS, session_of


@pytest.mark.parametrize("name", SESSION_FIELDS)
def test_each_clients_own_field_is_read(name):
    """Whatever a client calls the field, its value is the session."""
    assert session_of({b"host": b"x", name: b" s-1 "}) == "s-1"


def test_a_request_without_such_a_field_has_no_session():
    """Nor has one whose field is empty."""
    assert session_of({b"host": b"x"}) == ""
    assert session_of({b"session-id": b" "}) == ""


def test_the_first_field_of_the_list_counts():
    """A client and a proxy before it may both name one: the order is ours, not the header's."""
    fields = {b"thread-id": b"t", b"session-id": b"s"}
    assert session_of(fields) == "s"
    assert session_of(dict(reversed(fields.items()))) == "s"


def test_a_long_value_is_cut():
    """What clients send does not decide how much is kept."""
    assert session_of({b"x-session-id": b"a" * 10_000}) == "a" * 256
