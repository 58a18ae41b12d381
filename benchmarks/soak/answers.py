"""Judges an answer: the whole answer to this request, or a failure in form, or neither.

Pure. Every request carries a token, and the mock engine builds it into whatever it answers, so an
answer that belongs to another request shows. A stream numbers its events, so a gap shows too.
"""

import json
from dataclasses import dataclass
from enum import StrEnum

NUM_EVENTS = 8
"""Content events of one of the mock engine's streams."""


class Outcome(StrEnum):
    """What became of a request, as its client sees it."""

    WHOLE = "whole"
    ERROR = "error"  # a status and an error object
    ERROR_EVENT = "error event"  # a stream that ends in form and says why
    CUT = "cut"  # a connection that ends before the answer does: honest
    VIOLATION = "violation"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        status: 0 if no head came.
        body: without its framing.
        is_whole: the body ended where its framing said.
    """

    status: int
    body: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome and, for a violation, what is wrong."""

    outcome: Outcome
    reason: str = ""


def judge(answer: Answer, token: str, *, is_stream: bool) -> Verdict:
    """Judge the answer to a request with `token`.

    Args:
        answer: what its client received.
        token: of the request.
        is_stream: the request asked for a stream.
    """
    if answer.status >= 400 and answer.is_whole:
        return _judge_error(answer, token)
    if answer.status not in (0, 200):
        return Verdict(Outcome.VIOLATION, f"status {answer.status}")
    return _judge_stream(answer, token) if is_stream else _judge_plain(answer, token)


def _judge_error(answer: Answer, token: str) -> Verdict:
    try:
        error = json.loads(answer.body)["error"]
        is_in_form = bool(error["message"]) and "type" in error and "code" in error
    except (ValueError, KeyError, TypeError):
        is_in_form = False
    if not is_in_form:
        return Verdict(Outcome.VIOLATION, f"status {answer.status} without an error object")
    if error["type"] == "mock" and token not in error["message"]:
        return Verdict(Outcome.VIOLATION, "another request's error")
    return Verdict(Outcome.ERROR)


def _judge_plain(answer: Answer, token: str) -> Verdict:
    if not answer.is_whole:
        return Verdict(Outcome.CUT)
    try:
        value = json.loads(answer.body)
        text = value["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return Verdict(Outcome.VIOLATION, "an answer that looks whole and is not")
    if text != token or "usage" not in value:
        return Verdict(Outcome.VIOLATION, "another request's answer")
    return Verdict(Outcome.WHOLE)


def _judge_stream(answer: Answer, token: str) -> Verdict:
    events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n")]
    rest = events.pop()  # what follows the last event's end
    is_done = bool(events) and events[-1] == b"[DONE]"
    if is_done:
        events.pop()
    num_content = 0
    for position, event in enumerate(events):
        try:
            value = json.loads(event)
        except ValueError:
            return Verdict(Outcome.VIOLATION, "an event that is no JSON")
        if "error" in value:
            is_last = position == len(events) - 1 and not rest
            if is_done or not is_last or not answer.is_whole:
                return Verdict(Outcome.VIOLATION, "an error event that does not end the stream")
            return Verdict(Outcome.ERROR_EVENT)
        if not value.get("choices"):
            return Verdict(Outcome.VIOLATION, "usage that the client did not ask for")
        content = value["choices"][0]["delta"].get("content")
        if content is None:
            continue
        if content != f"{token}:{num_content}":
            return Verdict(Outcome.VIOLATION, "a gap, or another request's event")
        num_content += 1
    return _end_of_stream(answer, is_done=is_done, num_content=num_content)


def _end_of_stream(answer: Answer, *, is_done: bool, num_content: int) -> Verdict:
    if is_done:
        if num_content != NUM_EVENTS:
            return Verdict(Outcome.VIOLATION, "[DONE] before the end")
        return Verdict(Outcome.WHOLE if answer.is_whole else Outcome.CUT)
    if answer.is_whole:
        return Verdict(Outcome.VIOLATION, "a stream that ends without [DONE] or error")
    return Verdict(Outcome.CUT)
