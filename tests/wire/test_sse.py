"""`SseScanner`: what passes, what is hidden, and what is seen on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.wire.sse import MAX_HELD_BYTES, SseScanner, event_data

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
    assert not scan(b'data: {"choices":[],"error":null}\n\n')[1].has_error


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
