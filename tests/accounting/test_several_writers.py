"""Several processes write into one store, as `--workers` has them do."""

import signal
import subprocess
import sys
import time

from headstart.accounting.store import RequestStore, read_records

WRITERS, RECORDS = 4, 2000

WRITER = """
import asyncio, sys
from pathlib import Path
from headstart.accounting.record import RequestRecord
from headstart.accounting.recorder import Recorder, RecorderConfig
from headstart.accounting.store import RequestStore

async def main(path, name, number):
    config = RecorderConfig(flush_s=0.001, batch=16, close_s=60)
    recorder = Recorder([RequestStore(Path(path))], config=config)
    await recorder.start()
    print("open", flush=True)
    for i in range(number):
        recorder.record(RequestRecord(f"{name}-{i}", 0.0, "/v1/completions"))
        if i % 50 == 0:
            await asyncio.sleep(0.001)
    await recorder.close()
    print(recorder.statistics().sinks[0].written, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start(path, name, number):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(number)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_nothing_is_lost_between_writers(tmp_path):
    """Each waits for the others' lock, and what it could not write at once it writes later."""
    path = tmp_path / "headstart.db"
    RequestStore(path).close()
    writers = [start(path, name, RECORDS) for name in "abcd"]
    ended = [writer.communicate() for writer in writers]
    assert [out.split()[-1] for out, _err in ended] == [str(RECORDS)] * WRITERS
    records = read_records(path, limit=10**6)
    assert len({record.request_id for record in records}) == len(records) == WRITERS * RECORDS


def test_a_writer_that_is_killed_leaves_the_store_to_the_others(tmp_path):
    """In the middle of a transaction or not: the lock goes with the process."""
    path = tmp_path / "headstart.db"
    RequestStore(path).close()
    victim, other = start(path, "victim", 10**6), start(path, "other", RECORDS)
    assert victim.stdout.readline() == "open\n"
    while not [each for each in read_records(path) if each.request_id.startswith("victim")]:
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    out, _err = other.communicate()
    assert out.split()[-1] == str(RECORDS)
    names = [each.request_id.split("-")[0] for each in read_records(path, limit=10**7)]
    assert names.count("other") == RECORDS
    assert names.count("victim") > 0
