"""`SseScanner`: what passes, what is hidden, and what is seen on the way."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.wire.sse import (
    _EVENT_END,
    _LINE_END,
    MAX_HELD_BYTES,
    SseScanner,
    _split,
    event_data,
)

USAGE = {"prompt_tokens": 100, "completion_tokens": 2}
CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"tok"}}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE_EVENT = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = b": hello\n\n" + ROLE + CONTENT + CONTENT + FINISH + USAGE_EVENT + DONE


def scan(raw: bytes, *, step: int | None = None, hides: bool = False) -> tuple[bytes, SseScanner]:
    scanner = SseScanner(hides_usage=hides)
    size = step or len(raw)
    out = b"".join(scanner.feed(raw[at : at + size]) for at in range(0, len(raw), size))
    return out + scanner.end(), scanner


@pytest.mark.parametrize("step", [None, 1, 7, 64])
def test_a_stream_passes_byte_for_byte(step):
    """Comments, unknown events and line ends included."""
    raw = STREAM + b'event: x\r\nid: 1\r\ndata: {"a":1}\r\n\r\ndata: odd\r\r'
    out, scanner = scan(raw, step=step)
    assert out == raw
    assert scanner.usage == USAGE


def test_a_piece_that_ends_in_form_passes_without_a_copy():
    """The bytes object that came in goes out."""
    scanner = SseScanner()
    assert scanner.feed(CONTENT) is CONTENT
    hiding = SseScanner(hides_usage=True)
    assert hiding.feed(CONTENT) is CONTENT


@pytest.mark.parametrize("step", [None, 1, 7, 64])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_the_usage_event_is_hidden_and_nothing_else(step, newline):
    """Exactly the event that the gateway's own request for usage brought."""
    raw = STREAM.replace(b"\n", newline)
    out, scanner = scan(raw, step=step, hides=True)
    assert out == raw.replace(USAGE_EVENT.replace(b"\n", newline), b"")
    assert scanner.usage == USAGE


def test_usage_beside_choices_stays():
    """Such an event carries text or the finish reason too."""
    event = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":5}}\n\n'
    out, scanner = scan(event, hides=True)
    assert out == event
    assert scanner.usage == {"prompt_tokens": 5}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'data: {"choices":[{"a":1}],"usage":null}\n\n', b'data: {"choices":[{"a":1}]}\n\n'),
        (
            b'data: {"choices":[{}], "usage" : null, "x":1}\n\n',
            b'data: {"choices":[{}], "x":1}\n\n',
        ),
        (b'data: {"usage":null,"choices":[{}]}\n\n', b'data: {"choices":[{}]}\n\n'),
        (
            b'data: {"choices":[{"text":"\\"usage\\":null"}],"usage":null}\n\n',
            b'data: {"choices":[{"text":"\\"usage\\":null"}]}\n\n',
        ),
        (
            b'data: {"choices":[{"delta":{"content":"usage"}}],"usage":null}\n\n',
            b'data: {"choices":[{"delta":{"content":"usage"}}]}\n\n',
        ),
    ],
)
def test_a_null_usage_that_we_asked_for_is_removed(event, expected):
    """OpenAI adds it to each chunk once usage is asked for."""
    assert scan(event, hides=True)[0] == expected
    assert scan(event, hides=False)[0] == event


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[{"usage":null}],"usage":null}\n\n',
        b'data: {"choices":[{"usage":null}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\"usage\\":null"}}]}\n\n',
        b'data: {"choices":[{}],"usage":null\n\n',
        b'data: {"usage"\ndata: :null,"a":{"usage":null,"b":1}}\n\n',
    ],
)
def test_an_ambiguous_or_broken_event_is_left_alone(event):
    """Nothing is removed unless it is certainly ours."""
    assert scan(event, hides=True)[0] == event


@pytest.mark.parametrize(
    ("event", "is_content"),
    [
        (CONTENT, True),
        (ROLE, False),
        (FINISH, False),
        (USAGE_EVENT, False),
        (DONE, False),
        (b": comment\n\n", False),
        (b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n', True),
        (b'data: {"choices": [{"delta": {"content": ""}}]}\n\n', False),
        (b'data: {"choices": [{"delta": {"content": null}}]}\n\n', False),
        (b'data: {"choices":[{"text":"x"}]}\n\n', True),
        (b'data: {"choices":[{"delta":{"reasoning_content":"x"}}]}\n\n', True),
        (b'data: {"choices":[{"delta":{"refusal":"x"}}]}\n\n', True),
        (b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"f"}}]}}]}\n\n', True),
        (b'data: {"type":"response.output_text.delta","delta":"x"}\n\n', True),
        (b'data: {"x":"\\"content\\":\\"y\\""}\n\n', False),
    ],
)
def test_generated_text_is_recognised(event, is_content):
    """TTFT counts to the first text, not to the event with the role."""
    scanner = SseScanner()
    scanner.feed(event)
    assert scanner.is_content is is_content


def test_content_is_told_of_the_last_piece_only():
    """So that the time of the last content can be taken."""
    scanner = SseScanner()
    scanner.feed(CONTENT)
    scanner.feed(DONE)
    assert not scanner.is_content
    scanner.feed(b"data: {")
    assert not scanner.is_content


def test_usage_of_several_events_is_put_together():
    """Anthropic gives the input figures first and the output figure last."""
    scanner = SseScanner()
    scanner.feed(
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
        b'{"input_tokens":3,"cache_read_input_tokens":9,"output_tokens":1}}}\n\n'
    )
    scanner.feed(b'event: message_delta\ndata: {"usage":{"output_tokens":7}}\n\n')
    assert scanner.usage == {"input_tokens": 3, "cache_read_input_tokens": 9, "output_tokens": 7}


def test_an_error_event_is_noticed_and_kept():
    """vLLM reports a dead worker inside a stream with status 200."""
    event = b'data: {"error":{"message":"boom","code":500}}\n\n'
    out, scanner = scan(event)
    assert out == event
    assert scanner.has_error
    assert scanner.error_status == 500
    assert not scan(b'data: {"choices":[],"error":null}\n\n')[1].has_error
    assert scan(b'data: {"error":{"code":"gone"}}\n\n')[1].error_status == 0


@pytest.mark.parametrize(
    ("raw", "passed", "after"),
    [
        (CONTENT, CONTENT, b""),
        (CONTENT + b'data: {"choi', CONTENT, b""),
        (CONTENT + b"data: x\n", CONTENT + b"data: x\n", b"\n"),
        (CONTENT + b"data: x\r\n", CONTENT + b"data: x\r\n", b"\n"),
        (b"data: x\r\n\r\n", b"data: x\r\n\r\n", b""),
        (b"", b"", b""),
        (b"\n", b"\n", b"\n"),
        (b"data: x\r", b"data: x\r", b"\n\n"),  # one LF would only make it CRLF
        (b"data: x\r\r", b"data: x\r\r", b""),
    ],
)
@pytest.mark.parametrize("step", [None, 1])
def test_after_a_broken_stream_an_event_of_ours_can_follow(raw, passed, after, step):
    """Half a line is dropped and an open event closed."""
    scanner = SseScanner()
    size = step or len(raw) or 1
    out = b"".join(scanner.feed(raw[at : at + size]) for at in range(0, len(raw), size))
    assert out == passed
    assert scanner.abandon() == after
    assert scanner.end() == b""


@pytest.mark.parametrize("step", [None, 1, 7])
@pytest.mark.parametrize("hides", [False, True])
def test_what_data_in_several_lines_says_is_read(step, hides):
    """However it is cut: an event is looked at when it is whole."""
    usage = b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":4}}\n\n'
    error = b'data: {"error":\ndata: {"message":"x","code":500}}\n\n'
    out, scanner = scan(CONTENT + usage + error, step=step, hides=hides)
    assert out == CONTENT + (b"" if hides else usage) + error
    assert scanner.usage == {"prompt_tokens": 4}
    assert scanner.has_error


@pytest.mark.parametrize("step", [None, 1, 2, 3])
def test_line_ends_of_several_kinds_are_cut_alike(step):
    """What precedes the hidden event stays, to the byte."""
    before = CONTENT.replace(b"\n", b"\r\n") + b"\r\r\r\n"
    assert scan(before + USAGE_EVENT + DONE, step=step, hides=True)[0] == before + DONE


def test_an_endless_line_is_passed_on_and_not_kept():
    """Memory is bounded whatever the engine sends."""
    scanner = SseScanner(hides_usage=True)
    total = 0
    piece = b"x" * 10_000
    for _ in range(100):
        total += len(scanner.feed(piece))
    assert total > 100 * len(piece) - MAX_HELD_BYTES - len(piece)
    assert scanner.abandon() == b"\n\n"


def test_data_lines_are_joined():
    """HTML Living Standard §9.2.6: one space after the colon is not data."""
    assert event_data(b"event: a\ndata: x\r\ndata:y\rdata:  z\n\n") == b"x\ny\n z"


EVENTS = st.lists(
    st.sampled_from(
        [CONTENT, ROLE, FINISH, USAGE_EVENT, DONE, b": c\n\n", b"event: p\ndata: 1\n\n"]
    )
    | st.binary(max_size=20).map(lambda text: b"data: " + text.replace(b"\x00", b"") + b"\n\n"),
    max_size=12,
)


@given(EVENTS, st.data())
def test_any_cutting_passes_the_same_bytes(events, data):
    """Hidden or not, usage found or not: how the stream arrives changes nothing."""
    raw = b"".join(events)
    for hides in (False, True):
        whole, expected = scan(raw, hides=hides) if raw else (b"", SseScanner())
        scanner = SseScanner(hides_usage=hides)
        out = b""
        at = 0
        while at < len(raw):
            size = data.draw(st.integers(1, 60))
            out += scanner.feed(raw[at : at + size])
            at += size
        out += scanner.end()
        assert out == whole
        assert scanner.usage == expected.usage
        if not hides:
            assert out == raw


TEXTS = st.one_of(
    st.sampled_from(["", "usage", "error", '"usage":{"prompt_tokens":1}', "a\\", "\n\n", "tok "]),
    st.text(max_size=8),
)


def text_event(text: str, rest: str) -> bytes:
    delta = json.dumps({"delta": {"content": text}})
    return f'data: {{"id":"c","choices":[{delta}]{rest}}}\n\n'.encode()


EVENTS = st.one_of(
    st.builds(
        text_event,
        TEXTS,
        st.sampled_from(["", ',"n":1', ',"usage":null', ',"error":{"code":500}']),
    ),
    st.sampled_from([ROLE, FINISH, USAGE_EVENT, DONE, b": comment\n\n"]),
)


@given(st.lists(EVENTS, min_size=1, max_size=8), st.booleans())
def test_what_is_told_of_an_event_does_not_depend_on_those_before(events, hides):
    """An event that differs from a former one in its text alone is not searched again."""
    scanner = SseScanner(hides_usage=hides)
    had_error = False
    for event in events:
        fresh = SseScanner(hides_usage=hides)
        assert scanner.feed(event) == fresh.feed(event)
        assert scanner.is_content is fresh.is_content
        had_error = had_error or fresh.has_error
        assert scanner.has_error is had_error


@given(st.lists(st.sampled_from([b"\n", b"\r", b"a", b"data: x"]), max_size=12))
def test_events_end_where_the_pattern_says(parts):
    """The short way, for text without CR, is the same way."""
    text = b"".join(parts)
    ends = [match.end() for match in _EVENT_END.finditer(text)]
    cuts = [0, *ends, *([len(text)] if not ends or ends[-1] < len(text) else [])]
    expected = [text[start:end] for start, end in pairwise(cuts) if end > start]
    assert _split(text) == expected
    lines = [line for line in _LINE_END.split(text) if line.startswith(b"data:")]
    assert event_data(text) == b"\n".join(line[6:] for line in lines)


@given(TEXTS, TEXTS, st.integers(0, 200))
def test_half_an_event_after_a_known_one_is_held(first, second, cut):
    """As it would be without the one before."""
    event = text_event(second, "")
    scanner = SseScanner(hides_usage=True)
    scanner.feed(text_event(first, ""))
    out = scanner.feed(event[:cut]) if event[:cut] else b""
    assert out == (event if cut >= len(event) else b"")
    assert out + (scanner.feed(event[cut:]) if event[cut:] else b"") == event
