"""`priority_of`: how early a client wants its request to go."""

import pytest

from headstart.errors import BadRequest
from headstart.wire.priority import priority_of


@pytest.mark.parametrize(
    ("value", "least", "priority"),
    [
        (None, 0, 0),
        (None, 5, 5),
        (None, -5, 0),
        (b"7", 0, 7),
        (b"+7", 0, 7),
        (b" -3 ", -10, -3),
        (b"-100", -10, -10),
        (b"-3", 0, 0),
        (b"2", 5, 5),
        (b"007", 0, 7),
        (b"100", 0, 100),
    ],
)
def test_nobody_has_less_than_its_tenant_may(value, least, priority):
    """Without the field it is 0, or what the tenant has at least."""
    fields = {} if value is None else {b"x-headstart-priority": value}
    assert priority_of(fields, least) == priority


@pytest.mark.parametrize(
    "value", [b"", b"x", b"1.5", b"101", b"-101", b"1_0", b"\xb2", b"--1", b"1 2", b"9" * 5000]
)
def test_what_is_no_whole_number_in_range_is_refused(value):
    """With what was sent, cut, and what would do."""
    with pytest.raises(BadRequest, match="from -100 to 100") as caught:
        priority_of({b"x-headstart-priority": value}, 0)
    assert caught.value.param == "x-headstart-priority"
    assert len(caught.value.message) < 200
