"""Errors in the form of Anthropic's API."""

import json

from headstart.errors import Overloaded, UpstreamError
from headstart.wire.anthropic import messages_error_body, messages_error_event


def test_errors_have_anthropics_form():
    """`type: error` outside, and inside one of its own types."""
    assert json.loads(messages_error_body(Overloaded("Too much."))) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "Too much.", "code": "overloaded"},
    }


def test_an_event_has_a_name_and_an_engines_failure_a_type_of_theirs():
    """Their client passes over an event without a name."""
    event = messages_error_event(UpstreamError("It died."))
    name, data, *rest = event.split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["error"]["type"] == "api_error"
    assert rest == [b"", b""]
