"""Logs become traces: request bodies, and headstart's own records."""

import json
from datetime import UTC, datetime

import pytest

from headstart.accounting.log import log_line
from headstart.accounting.record import RequestRecord
from headstart.accounting.store import RequestStore
from headstart.simulator.formats.lines import TraceError
from headstart.simulator.formats.recognise import read_trace
from headstart.simulator.single_cache import ideal
from headstart.wire.usage import Usage

SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 40}


def body(*texts, **others):
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"model": "m", "messages": [SYSTEM, *turns], **others}


def jsonl(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def shared(trace, one, other):
    pairs = zip(trace.requests[one].blocks, trace.requests[other].blocks, strict=False)
    return sum(a == b for a, b in pairs)


def test_bodies_alone():
    """Blocks of 64 bytes of the prompt, at 4 bytes a token; not timed."""
    trace = read_trace(jsonl([body("Hello?"), body("Good evening.")]))
    trace.check_integrity()
    assert (trace.block_tokens, trace.is_timed) == (16, False)
    assert 15 < shared(trace, 0, 1) < 22
    assert trace.requests[0].input_tokens == pytest.approx(310, abs=20)
    assert {each.output_tokens for each in trace.requests} == {256}


def test_usage_says_how_long_a_token_is():
    """Of the lines that have it, in whichever place."""
    usage = {"prompt_tokens": 200, "completion_tokens": 30}
    anthropic = {"input_tokens": 150, "cache_read_input_tokens": 50, "output_tokens": 30}
    for line in (
        body("Hello?", usage=usage),
        {"body": body("Hello?"), "usage": usage},
        {"request": body("Hello?"), "response": {"usage": anthropic}},
        {"body": body("Hello?"), "response": {"status_code": 200, "body": {"usage": usage}}},
    ):
        trace = read_trace(jsonl([line, body("Well?")]))
        assert trace.requests[0].input_tokens == 200
        assert trace.requests[1].input_tokens == pytest.approx(200, abs=1)
        assert trace.requests[0].output_tokens == 30
        assert trace.block_tokens in (10, 11)


def test_times_in_any_unit():
    """ISO 8601 or a number; the trace starts with the first."""
    start = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    for write in (
        lambda s: datetime.fromtimestamp(start.timestamp() + s, UTC).isoformat(),
        lambda s: datetime.fromtimestamp(start.timestamp() + s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        lambda s: start.timestamp() + s,
        lambda s: int(start.timestamp() + s) * 1000,
        lambda s: int(start.timestamp() + s) * 10**6,
        lambda s: int(start.timestamp() + s) * 10**9,
        lambda s: s,
    ):
        rows = [{"timestamp": write(s), "body": body("Hi")} for s in (0, 90, 30)]
        trace = read_trace(jsonl(rows))
        assert trace.is_timed
        assert [each.arrival_s for each in trace.requests] == pytest.approx([0, 30, 90])


def test_a_conversation_is_one_session():
    """Named, or told by how its prompts grow; untimed sessions are put together."""
    rows = [
        body("One?"),
        body("Other?"),
        body("One?", "Yes.", "And two?"),
        body("One?", "Yes.", "And two?", "No.", "Three?"),
        body("One?"),
    ]
    trace = read_trace(jsonl(rows))
    trace.check_integrity()
    assert [each.session for each in trace.requests] == [0, 0, 0, 1, 2]
    for name in ("session_id", "conversation_id", "thread_id"):
        named = [{name: "abab"[i], "body": row} for i, row in enumerate(rows[:4])]
        assert [each.session for each in read_trace(jsonl(named)).requests] == [0, 0, 1, 1]
    metadata = [row | {"metadata": {"session_id": "x"}} for row in rows[:2]]
    assert [each.session for each in read_trace(jsonl(metadata)).requests] == [0, 0]


def test_models_and_salts_share_nothing():
    """As in an engine."""
    rows = [body("Hi"), body("Hi") | {"model": "other"}, body("Hi") | {"cache_salt": "s"}]
    trace = read_trace(jsonl(rows))
    assert shared(trace, 0, 1) == shared(trace, 0, 2) == shared(trace, 1, 2) == 0


def test_the_tenant_is_kept():
    """From the log, else the body's user."""
    rows = [{"tenant": "acme", "body": body("Hi", user="u")}, {"body": body("Hi", user="u")}]
    assert [each.tenant for each in read_trace(jsonl(rows)).requests] == ["acme", "u"]


def test_an_answer_is_no_longer_than_allowed():
    """Where usage does not say."""
    trace = read_trace(jsonl([body("Hi", max_tokens=7), body("Hi", max_tokens=9999)]))
    assert [each.output_tokens for each in trace.requests] == [7, 256]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([body("Hi"), {"model": "m"}], "line 2: no prompt"),
        ([body("Hi"), {"body": "text"}], "line 2: no prompt"),
        ([{"timestamp": 1, "body": body("Hi")}, body("Hi")], "line 2: has no time"),
        ([body("Hi"), {"timestamp": 0, "body": body("Hi")}], "line 2: has a time"),
        ([{"timestamp": "noon", "body": body("Hi")}], "line 1: timestamp is no ISO 8601 time"),
        ([{"timestamp": -5, "body": body("Hi")}], "line 1: timestamp is no time"),
        ([{"timestamp": [], "body": body("Hi")}], "line 1: timestamp is no time"),
    ],
)
def test_a_log_that_cannot_be_used(rows, message):
    """The line is named, its text is not quoted."""
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(jsonl(rows))
    assert "Hi" not in caught.value.message


def record(at_s, input_tokens, cached_tokens, **others):
    usage = Usage(input_tokens, cached_tokens, None, 20)
    return RequestRecord(
        request_id=f"r{at_s}", time_s=1.8e9 + at_s, path="/", model="m", usage=usage, **others
    )


RECORDS = [
    record(0, 1000, 0, tenant="acme"),
    record(1, 1600, 992, tenant="acme"),
    record(2, 1200, 992, tenant="acme"),
    record(3, 1600, 0, tenant="other"),
    record(4, 1700, None, tenant="acme", matched_tokens=1600),
    record(5, None, None, tenant="acme", status=502),
]


def as_log(records):
    return b"".join(json.dumps(_members(log_line(each))).encode() + b"\n" for each in records)


def _members(line):
    return {name: getattr(line, name) for name in line.__struct_fields__}


def test_records_share_what_was_cached():
    """The latest prompt that is long enough stands in for the hashes that a record has not."""
    trace = read_trace(as_log(reversed(RECORDS)))
    trace.check_integrity()
    assert (trace.block_tokens, trace.is_timed) == (16, True)
    assert [each.arrival_s for each in trace.requests] == pytest.approx([0, 1, 2, 3, 4])
    assert [each.tenant for each in trace.requests] == ["acme"] * 3 + ["other", "acme"]
    assert [len(each.blocks) for each in trace.requests] == [62, 100, 75, 100, 106]
    assert shared(trace, 0, 1) == shared(trace, 1, 2) == 62
    assert shared(trace, 1, 4) == 100
    assert not any(shared(trace, 3, other) for other in (0, 1, 2, 4))
    assert ideal(trace).cached_tokens == 992 + 992 + 1600


def test_a_store_reads_like_its_log(tmp_path):
    """The same records, the same trace."""
    path = tmp_path / "headstart.db"
    store = RequestStore(path)
    store.write(RECORDS)
    store.close()
    from_store, from_log = read_trace(path), read_trace(as_log(RECORDS))
    assert from_store.name == "headstart"
    assert [each.blocks for each in from_store.requests] == [
        each.blocks for each in from_log.requests
    ]
    with pytest.raises(TraceError, match="give the path"):
        read_trace(path.read_bytes())


def test_what_was_cached_before_the_log_began_is_new():
    """No earlier prompt is long enough."""
    trace = read_trace(as_log([record(0, 160, 96), record(1, 320, 288)]))
    assert [len(each.blocks) for each in trace.requests] == [10, 20]
    assert shared(trace, 0, 1) == 10


def test_records_without_counts_only():
    """There is nothing to replay."""
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(as_log(RECORDS[-1:]))


def test_a_line_of_a_request_log_that_is_damaged():
    """Named like any other."""
    good = as_log(RECORDS[:1])
    with pytest.raises(TraceError, match="line 2: time is not ISO 8601"):
        read_trace(good + good.replace(b'"time": "2', b'"time": "x'))
    with pytest.raises(TraceError, match="line 2: not a line of a request log"):
        read_trace(good + b'{"request_id": "x"}\n')


def test_another_programs_database(tmp_path):
    """It is no store."""
    path = tmp_path / "other.db"
    path.write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(TraceError, match=r"other\.db"):
        read_trace(path)
