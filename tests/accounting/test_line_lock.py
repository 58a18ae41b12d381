"""Several writers on one pipe: no line is mixed with another, none is lost with its writer."""

import json
import os
import subprocess
import sys
import tempfile

from headstart.accounting.line_lock import LineLock
from headstart.accounting.log import RequestLog
from headstart.accounting.record import RequestRecord

WRITER = """
import sys
from headstart.accounting.line_lock import LineLock
from headstart.accounting.log import RequestLog
from headstart.accounting.record import RequestRecord

name, lock = sys.argv[1], int(sys.argv[2])
log = RequestLog.to_stdout(LineLock(lock))
for batch in range(20):
    log.write([
        RequestRecord(f"{name}-{batch}-{i}", 0.0, "/", model=name * 300, reason="x" * 200)
        for i in range(64)
    ])
"""


def test_lines_of_several_processes_on_a_pipe_stay_whole():
    """Batches of 50 KB on a pipe of 64 KB: without the lock they would mix."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile() as lock:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, name, str(lock.fileno())],
                stdout=write_end,
                pass_fds=(lock.fileno(),),
            )
            for name in "abcd"
        ]
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            lines = pipe.read().splitlines()
        assert [writer.wait() for writer in writers] == [0] * 4
    ids = [json.loads(line)["request_id"] for line in lines]
    assert len(ids) == len(set(ids)) == 4 * 20 * 64


def test_half_a_line_of_a_dead_writer_is_ended(tmp_path):
    """Its line is lost, and only its own."""
    path = tmp_path / "log"
    with tempfile.TemporaryFile() as lock:
        dead = LineLock(lock.fileno())
        assert not dead.acquire()
        path.write_bytes(b'{"request_id": "half')
        log = RequestLog.to_file(path, LineLock(lock.fileno()))
        log.write([RequestRecord("next", 0.0, "/")])
        log.write([RequestRecord("last", 0.0, "/")])
        log.close()
    half, *rest = path.read_text().splitlines()
    assert half == '{"request_id": "half'
    assert [json.loads(line)["request_id"] for line in rest] == ["next", "last"]


def test_the_lock_is_taken_once_and_given_back():
    """A batch that is tried again still has it."""
    with tempfile.TemporaryFile() as file:
        lock = LineLock(file.fileno())
        assert not lock.acquire()
        assert not lock.acquire()
        lock.release()
        assert not lock.acquire()
