"""The request log has one complete JSON line per request, whatever happens to the disk."""

import errno
import json
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from headstart.accounting.log import RequestLog
from headstart.accounting.record import RequestRecord
from headstart.errors import StoreUnavailable
from headstart.wire.usage import Usage

RECORD = RequestRecord(
    request_id="r-1",
    time_s=1_700_000_000.25,
    path="/v1/chat/completions",
    model="m",
    tenant="acme",
    business_line="support",
    template="support-agent@7",
    replica="a100-1",
    is_stream=True,
    status=200,
    usage=Usage(1200, 1024, None, 50),
    ttft_s=0.1,
    tpot_s=0.0204,
    total_s=1.1,
    queue_s=0.25,
    policy="prefix_hash",
    reason="ring owner",
    body_changes=("stream_options",),
    matched_tokens=1008,
)


def test_a_line_has_the_documented_keys(tmp_path):
    """Golden: tools read these names."""
    path = tmp_path / "new" / "requests.jsonl"
    with closing(RequestLog.to_file(path)) as log:
        log.write([RECORD])
    assert json.loads(path.read_text()) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "request_id": "r-1",
        "status": 200,
        "model": "m",
        "prompt_tokens": 1200,
        "cached_tokens": 1024,
        "written_tokens": None,
        "output_tokens": 50,
        "ttft_ms": 100.0,
        "tpot_ms": 20.4,
        "total_latency_ms": 1100.0,
        "queue_ms": 250.0,
        "prompt_template_version": "support-agent@7",
        "tenant": "acme",
        "business_line": "support",
        "replica": "a100-1",
        "path": "/v1/chat/completions",
        "stream": True,
        "error_code": None,
        "retries": 0,
        "policy": "prefix_hash",
        "reason": "ring owner",
        "body_changes": ["stream_options"],
        "matched_tokens": 1008,
    }


def test_unknown_is_null_and_every_key_is_there(tmp_path):
    """A pipeline may rely on the keys, and must not read unknown as zero."""
    path = tmp_path / "requests.jsonl"
    with closing(RequestLog.to_file(path)) as log:
        log.write([RequestRecord(request_id="r", time_s=0.0, path="/"), RECORD])
    empty, full = (json.loads(line) for line in path.read_text().splitlines())
    assert empty.keys() == full.keys()
    assert empty["cached_tokens"] is None
    assert empty["ttft_ms"] is None


def test_a_file_is_appended_to(tmp_path):
    """A restart does not lose the log."""
    path = tmp_path / "requests.jsonl"
    for _ in range(2):
        with closing(RequestLog.to_file(path)) as log:
            log.write([RECORD])
    assert len(path.read_text().splitlines()) == 2


def test_a_line_break_or_half_a_character_of_a_client_stays_inside_its_line(tmp_path):
    """Nobody can forge a second line."""
    path = tmp_path / "requests.jsonl"
    model = 'x"}\n{"status": 200}\ud800'
    with closing(RequestLog.to_file(path)) as log:
        log.write([RequestRecord(request_id="r", time_s=0.0, path="/", model=model)])
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["model"] == model.replace("\ud800", "?")


def test_a_batch_that_failed_midway_goes_on_where_it_stopped():
    """A pipe that takes a part, then nothing, then the rest, has each line once."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    log = RequestLog(writing, "a pipe", is_owned=True)
    records = [RECORD] * 1000  # more than a pipe holds
    with pytest.raises(StoreUnavailable):
        log.write(records)
    chunks = []
    reader = threading.Thread(target=lambda: chunks.extend(_read_all(reading)))
    reader.start()
    os.set_blocking(writing, True)
    log.write(records)
    log.close()
    reader.join()
    lines = b"".join(chunks).splitlines()
    assert len(lines) == 1000
    assert {json.loads(line)["request_id"] for line in lines} == {"r-1"}


def test_a_reader_that_has_gone_is_named():
    """`headstart serve | head` must not end in a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    log = RequestLog(writing, "the standard output", is_owned=True)
    with closing(log), pytest.raises(StoreUnavailable, match="its reader has gone"):
        log.write([RECORD])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_named():
    """The message says what to do."""
    log = RequestLog(os.open("/dev/full", os.O_WRONLY), "the log", is_owned=True)
    with closing(log), pytest.raises(StoreUnavailable, match=os.strerror(errno.ENOSPC)):
        log.write([RECORD])


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    """At the start, before any request is taken."""
    with pytest.raises(StoreUnavailable, match="--request-log"):
        RequestLog.to_file(tmp_path)


def _read_all(descriptor):
    with os.fdopen(descriptor, "rb") as stream:
        yield from iter(lambda: stream.read(65536), b"")


def test_a_closed_standard_output_is_named(monkeypatch):
    """Python has no `sys.stdout` then."""
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(StoreUnavailable, match="--request-log"):
        RequestLog.to_stdout()
