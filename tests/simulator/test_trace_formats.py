"""Files become traces, whichever format they have, or an error says which line is wrong."""

import gzip
import json

import pytest
from drawn_traces import timed_traces, untimed_traces
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from headstart.simulator.formats import bailian, lines, mooncake
from headstart.simulator.formats.lines import TraceError
from headstart.simulator.formats.numbering import Numbering
from headstart.simulator.formats.recognise import read_trace
from headstart.simulator.trace import Trace

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 1024, "output_length": 0, "hash_ids": [0, 3]},
    {"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [4, 3]},
]
BAILIAN = [
    {"chat_id": 55, "parent_chat_id": -1, "timestamp": 60.5, "input_length": 33, "turn": 1}
    | {"output_length": 4, "type": "text", "hash_ids": [8, 9, 10]},
    {"chat_id": 60, "parent_chat_id": -1, "timestamp": 61.0, "input_length": 16, "turn": 1}
    | {"output_length": 4, "type": "search", "hash_ids": [8]},
    {"chat_id": 61, "parent_chat_id": 55, "timestamp": 62.0, "input_length": 64, "turn": 2}
    | {"output_length": 4, "type": "text", "hash_ids": [8, 9, 11, 12]},
]
AGENT = {
    "id": "trace_0001",
    "block_size": 64,
    "hash_id_scope": "global",
    "requests": [
        {"t": 0.0, "type": "n", "in": 200, "out": 10, "hash_runs": [[1, 2], [70, 1]]},
        {
            "t": 4.0,
            "type": "subagent",
            "requests": [
                {"t": 0.0, "in": 64, "out": 0, "hash_runs": [[1, 1]]},
                {"t": 3.0, "in": 130, "out": 3, "hash_runs": [[1, 1], [9, 1]]},
            ],
        },
        {"t": 6.0, "type": "s", "in": 330, "out": 10, "hash_runs": [[1, 2], [70, 3]]},
    ],
}
ERRORS_OF_READING = [
    ([], "is empty"),
    (["[1, 2]"], "line 1: no JSON object"),
    (["{"], "line 1: no JSON object"),
    (['{"a": 1}'], "line 1: no known format has just 'a'; headstart reads"),
    ([MOONCAKE[0], '{"timestamp": 1'], "line 2: not a request of a Mooncake trace"),
    ([MOONCAKE[0], {}], "line 2: .* missing required field `timestamp`"),
    ([MOONCAKE[0], MOONCAKE[1] | {"input_length": 0}], "line 2: .*input_length"),
    ([MOONCAKE[0], MOONCAKE[1] | {"input_length": 10**12}], "line 2: .*input_length"),
    ([MOONCAKE[0], MOONCAKE[1] | {"input_length": "9"}], "line 2: .*input_length"),
    ([MOONCAKE[0], MOONCAKE[1] | {"output_length": -1}], "line 2: .*output_length"),
    ([MOONCAKE[0], MOONCAKE[1] | {"timestamp": -1}], "line 2: .*timestamp"),
    ([MOONCAKE[0], MOONCAKE[1] | {"hash_ids": [1.5]}], "line 2: .*hash_ids"),
    ([MOONCAKE[0], "", MOONCAKE[1] | {"hash_ids": [0] * 9}], "line 3: 9 hash_ids do not fit"),
    ([MOONCAKE[0], MOONCAKE[1] | {"block_size": 512}], "line 2: block_size .* not said"),
    ([MOONCAKE[0] | {"block_size": 1024}], "line 1: 3 hash_ids do not fit .* 1024"),
    ([BAILIAN[0], BAILIAN[1] | {"hash_ids": [8, 9]}], "line 2: 2 hash_ids are too many"),
    ([BAILIAN[0], BAILIAN[1] | {"block_size": 32}], "line 2: block_size is 32, and 16 before"),
    ([BAILIAN[0], BAILIAN[1] | {"chat_id": None}], "line 2: not a turn of a Bailian trace"),
    ([AGENT, AGENT | {"hash_id_scope": "here"}], "line 2: hash_id_scope is 'here'"),
    ([AGENT, AGENT | {"block_size": 16}], "line 2: block_size is 16, and 64 before"),
    ([AGENT | {"requests": [{"t": 1.0, "in": 0}]}], "line 1: the request at t = 1 has no `in`"),
    (
        [AGENT | {"requests": [{"t": 1.0, "in": 64, "hash_runs": [[1, 2]]}]}],
        "line 1: the request at t = 1 has 2 blocks of 64",
    ),
    (
        [AGENT | {"requests": [{"t": 1.0, "in": 64, "hash_runs": [[1, 10**9]]}]}],
        "line 1: not a session",
    ),
    ([AGENT | {"requests": []}], "holds no request"),
]


def jsonl(rows):
    texts = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    return b"".join(text.encode() + b"\n" for text in texts)


def nested(depth):
    entry = {"t": 1.0, "in": 64}
    for _ in range(depth):
        entry = {"t": 1.0, "type": "subagent", "requests": [entry]}
    return AGENT | {"requests": [entry]}


def test_mooncake():
    """Milliseconds, 512 tokens, a last block that is not full, and a block with two parents."""
    trace = read_trace(jsonl(MOONCAKE), name="m")
    trace.check_integrity()
    assert (trace.name, trace.block_tokens, trace.is_timed) == ("m", 512, True)
    assert [each.arrival_s for each in trace.requests] == [0.0, 0.0, 3.0]
    assert [each.blocks for each in trace.requests] == [(0, 1, 2), (0, 3), (4, 5)]
    assert [each.output_tokens for each in trace.requests] == [50, 1, 7]
    assert {each.session for each in trace.requests} == {-1}


@pytest.mark.parametrize(
    ("tokens", "counts", "block_tokens"),
    [
        ((3724, 1281), (232, 80), 16),  # the last block only if it is full, as in tau's file
        ((3724, 1281), (233, 81), 16),  # always
        ((100,), (1,), 512),  # 128 would fit, but is not what Mooncake has
        ((700, 513), (2, 2), 512),
        ((700, 500), (1, 0), 512),
    ],
)
def test_the_block_size_follows_from_the_number_of_ids(tokens, counts, block_tokens):
    """Where no line says it."""
    rows = [
        {"timestamp": 0, "input_length": size, "output_length": 1, "hash_ids": [*range(count)]}
        for size, count in zip(tokens, counts, strict=True)
    ]
    assert read_trace(jsonl(rows)).block_tokens == block_tokens


def test_mooncake_with_sessions():
    """The members that are not Mooncake's own."""
    rows = [row | {"session_id": "b", "tenant": "acme"} for row in MOONCAKE]
    rows[1]["session_id"] = "a"
    trace = read_trace(jsonl(rows))
    assert [each.session for each in trace.requests] == [0, 1, 0]
    assert {each.tenant for each in trace.requests} == {"acme"}


def test_bailian():
    """Seconds, 16 tokens, chats that continue each other; times from the first."""
    trace = read_trace(jsonl(BAILIAN))
    trace.check_integrity()
    assert (trace.block_tokens, trace.is_timed) == (16, True)
    assert [each.arrival_s for each in trace.requests] == [0.0, 0.5, 1.5]
    assert [each.blocks for each in trace.requests] == [(0, 1, 2), (0,), (0, 1, 3, 4)]
    assert [each.session for each in trace.requests] == [0, 1, 0]


def test_bailian_with_gaps():
    """A parent that was cut off, lines out of order, and no ids."""
    rows = [BAILIAN[2], BAILIAN[2] | {"chat_id": 62, "timestamp": 61.0}]
    del rows[0]["hash_ids"]
    trace = read_trace(jsonl(rows))
    assert [each.session for each in trace.requests] == [0, 0]
    assert [len(each.blocks) for each in trace.requests] == [4, 0]


def test_run_length():
    """Runs of ids, and a subagent's requests at their place in time."""
    trace = read_trace(jsonl([AGENT, AGENT]))
    trace.check_integrity()
    assert (trace.block_tokens, trace.is_timed, trace.num_sessions) == (64, False, 2)
    first, second = trace.requests[:4], trace.requests[4:]
    assert [each.arrival_s for each in first] == [0.0, 4.0, 6.0, 7.0]
    assert [each.session for each in trace.requests] == [0] * 4 + [1] * 4
    assert [each.input_tokens for each in first] == [200, 64, 330, 130]
    assert first[0].blocks + first[2].blocks[3:] == first[2].blocks
    assert first[1].blocks == first[0].blocks[:1] == first[3].blocks[:1]
    assert first[3].blocks[1] not in first[2].blocks
    assert [each.blocks for each in first] == [each.blocks for each in second]
    assert first[1].output_tokens == 1


def test_local_ids_mean_nothing_elsewhere():
    """Within a session they are shared, with its subagents too; between sessions not."""
    trace = read_trace(jsonl([AGENT | {"hash_id_scope": "local"}] * 2))
    first, second = trace.requests[:4], trace.requests[4:]
    assert first[1].blocks == first[0].blocks[:1]
    assert not {b for each in first for b in each.blocks} & {
        b for each in second for b in each.blocks
    }


def test_runs_may_be_cut_anywhere():
    """The same ids in other runs are the same blocks."""
    whole = {"t": 0.0, "in": 640, "out": 1, "hash_runs": [[1, 4], [9, 6]]}
    cut = whole | {"hash_runs": [[1, 2], [3, 2], [9, 1], [10, 5]]}
    other = whole | {"hash_runs": [[1, 4], [9, 3], [50, 3]]}
    trace = read_trace(jsonl([AGENT | {"requests": [whole, cut, whole, other]}]))
    blocks = [each.blocks for each in trace.requests]
    assert blocks[0] == blocks[1] == blocks[2]
    assert blocks[3][:7] == blocks[0][:7]
    assert not set(blocks[3][7:]) & set(blocks[0])


def test_subagents_are_nested_only_so_deep():
    """A file cannot take the reader's stack."""
    assert read_trace(jsonl([nested(3)])).requests[0].arrival_s == 4.0
    for depth in (17, 100_000):
        with pytest.raises(TraceError, match="line 1: "):
            read_trace(jsonl([nested_text(depth)]))


def nested_text(depth):
    head, tail = json.dumps(nested(1)).split('{"t": 1.0, "in": 64}')
    agent = '{"t": 1.0, "requests": ['
    return head + agent * (depth - 1) + '{"t": 1.0, "in": 64}' + "]}" * (depth - 1) + tail


@pytest.mark.parametrize(("rows", "message"), ERRORS_OF_READING)
def test_an_error_names_the_line(rows, message):
    """And what to do about it; nothing is skipped."""
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(jsonl(rows), name="file.jsonl")
    assert caught.value.message.startswith("file.jsonl")
    assert "; " in caught.value.message


def test_files_plain_and_compressed(tmp_path):
    """The suffix says nothing; the name of the trace is the file's."""
    plain, packed = tmp_path / "some.trace.jsonl.gz", tmp_path / "other.jsonl"
    plain.write_bytes(b"\xef\xbb\xbf\r\n" + jsonl(MOONCAKE).replace(b"\n", b"\r\n"))
    packed.write_bytes(gzip.compress(jsonl(MOONCAKE)))
    assert read_trace(plain).name == "some.trace"
    assert read_trace(str(packed)).name == "other"
    assert read_trace(plain).requests == read_trace(packed).requests


def test_a_cut_file_is_an_error(tmp_path):
    """The trace would be shorter than it was, and nobody would know."""
    packed = gzip.compress(jsonl(MOONCAKE * 1000))
    with pytest.raises(TraceError, match=r"line \d+: the file cannot be read on"):
        read_trace(packed[:-20])
    with pytest.raises(TraceError, match="copy the file again"):
        read_trace(packed[:5])
    with pytest.raises(TraceError, match="copy the file again"):
        read_trace(b"\x1f\x8bnothing of the kind")
    with pytest.raises(TraceError, match=r"absent\.jsonl"):
        read_trace(tmp_path / "absent.jsonl")
    with pytest.raises(TraceError, match="give the path"):
        read_trace(tmp_path)


def test_a_line_has_an_end(monkeypatch):
    """Memory is not the file's to take."""
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    assert read_trace(jsonl(MOONCAKE)).requests
    with pytest.raises(TraceError, match="line 2: longer than"):
        read_trace(jsonl(MOONCAKE[:1]) + b"[" * 1001)


@given(timed_traces())
def test_what_is_written_as_mooncake_is_read_again(trace):
    """Everything: blocks of any size, sessions, tenants."""
    assert read_trace(mooncake.write(trace), name="drawn") == trace


@given(timed_traces())
def test_what_is_written_as_bailian_is_read_again(trace):
    """Everything, but that requests without a session become sessions."""
    sessions = Numbering()
    requests = [
        replace(each, session=sessions.number(each.session if each.session >= 0 else -1 - index))
        for index, each in enumerate(trace.requests)
    ]
    expected = replace(trace, requests=tuple(requests))
    assert read_trace(bailian.write(trace), name="drawn") == expected


def test_mooncakes_own_form_needs_no_block_size():
    """Other programs read what is written."""
    written = mooncake.write(read_trace(jsonl(MOONCAKE)))
    assert [set(json.loads(line)) for line in written.splitlines()] == [set(MOONCAKE[0])] * 3


@given(untimed_traces())
def test_a_trace_without_times_is_not_written(trace):
    """Its arrival times would mean something else."""
    for write in (mooncake.write, bailian.write):
        with pytest.raises(TraceError, match="with_times"):
            write(trace)


GOOD = [jsonl(MOONCAKE), jsonl(BAILIAN), jsonl([AGENT, AGENT])]


@given(st.sampled_from(GOOD), st.data())
def test_damage_is_an_error_or_harmless(good, data):
    """Whatever happens to a file, what is read is a whole trace, or the error is a `TraceError`."""
    at = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(at, min(at + 40, len(good))))
    damaged = good[:at] + data.draw(st.binary(max_size=20)) + good[end:]
    check(damaged)


@given(st.binary(max_size=200))
@example(b"\x1f\x8b")
@example(b"SQLite format 3\0")
@example(b'{"timestamp":1e999,"input_length":1,"hash_ids":[]}')
@example(b'{"messages":' + b"[" * 100_000)
def test_anything_is_an_error_or_a_trace(source):
    """Nothing else is ever raised."""
    check(source)


def check(source):
    try:
        trace = read_trace(source)
    except TraceError:
        return
    assert isinstance(trace, Trace)
    trace.check_integrity()
