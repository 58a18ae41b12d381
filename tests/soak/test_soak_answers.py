"""The soak's judge: what counts as whole, as failed in form, and as neither."""

import json

import pytest

from benchmarks.soak.answers import NUM_EVENTS, Answer, Outcome, judge
from benchmarks.soak.engine import (
    beginning,
    content_event,
    error_response,
    json_response,
    plain_body,
)
from benchmarks.soak.wire import broken_response, read_response
from headstart.errors import UpstreamError
from headstart.wire.openai import error_body, error_event

TOKEN = "tok-0000000000aa"
OTHER = "tok-0000000000bb"
DONE = b"data: [DONE]\n\n"
ERROR = error_event(UpstreamError("The engine r0 died."))


def stream(token: str = TOKEN, num: int = NUM_EVENTS) -> bytes:
    return b"".join(content_event(token.encode(), position) for position in range(num))


def judged(
    body: bytes, *, status: int = 200, whole: bool = True, is_stream: bool = True
) -> Outcome:
    return judge(Answer(status, body, whole), TOKEN, is_stream=is_stream).outcome


def test_a_whole_stream_has_every_event_and_its_end():
    """In order, with the request's own token."""
    assert judged(stream() + DONE) is Outcome.WHOLE


def test_a_stream_that_fails_in_form_ends_with_an_error_event():
    """And with nothing after it."""
    assert judged(stream(num=3) + ERROR) is Outcome.ERROR_EVENT
    assert judged(ERROR) is Outcome.ERROR_EVENT


@pytest.mark.parametrize(
    "body",
    [
        stream(num=3) + DONE,
        stream(num=3) + ERROR + DONE,
        stream(num=3),
        stream(OTHER) + DONE,
        stream(num=2) + content_event(TOKEN.encode(), 3),
        stream(num=3) + ERROR + stream(num=1),
        stream(num=3) + b'data: {"choi\n\n' + DONE,
        stream() + b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n' + DONE,
        b"",
    ],
)
def test_what_looks_whole_and_is_not_is_a_violation(body):
    """A forged end, another's event, a gap, half an event, usage nobody asked for."""
    assert judged(body) is Outcome.VIOLATION


@pytest.mark.parametrize("body", [b"", stream(num=3), stream(num=3) + b'data: {"cho'])
def test_a_cut_is_honest(body):
    """The client sees that the stream has not ended."""
    assert judged(body, whole=False) is Outcome.CUT


def test_a_plain_answer_is_whole_cut_or_anothers():
    """By its token and its length."""
    body = plain_body(TOKEN.encode(), 10)
    assert judged(body, is_stream=False) is Outcome.WHOLE
    assert judged(body[:-1], whole=False, is_stream=False) is Outcome.CUT
    assert judged(body[:-1], is_stream=False) is Outcome.VIOLATION
    assert judged(plain_body(OTHER.encode(), 0), is_stream=False) is Outcome.VIOLATION


def test_an_error_has_a_status_and_an_error_object():
    """The gateway's or the engine's, and not another request's."""
    ours = error_body(UpstreamError("No."))
    assert judged(ours, status=502) is Outcome.ERROR
    assert judged(b"oops", status=502) is Outcome.VIOLATION
    assert judged(json.dumps({"error": {}}).encode(), status=502) is Outcome.VIOLATION
    mine = read_response(error_response(500, TOKEN.encode()))
    others = read_response(error_response(500, OTHER.encode()))
    assert mine is not None
    assert others is not None
    assert judge(mine.answer, TOKEN, is_stream=False).outcome is Outcome.ERROR
    assert judge(others.answer, TOKEN, is_stream=False).outcome is Outcome.VIOLATION


def test_responses_are_read_off_the_wire():
    """By length and by chunks, cut anywhere."""
    raw = json_response(200, b"{}")
    for end in range(len(raw)):
        assert read_response(raw[:end]) is None
    found = read_response(raw + b"more")
    assert found is not None
    assert (found.answer.body, found.size) == (b"{}", len(raw))


def test_a_broken_response_keeps_what_came():
    """Three whole events and half a fourth."""
    found = broken_response(beginning(TOKEN.encode(), is_stream=True))
    assert found.answer.status == 200
    assert found.answer.body.startswith(stream(num=3))
    assert judge(found.answer, TOKEN, is_stream=True).outcome is Outcome.CUT
    assert broken_response(b"HTTP/1.1 2").answer.status == 0
