"""`headstart serve --workers N` at its end: signals, drains, and a supervisor that is killed."""

import contextlib
import os
import signal
from pathlib import Path

import aiohttp

from headstart.accounting.store import STORE_FILE, read_records
from served import chat, serve
from served_workers import children, logged_ids, open_streams, two_workers, until


async def test_sigterm_drains_all_workers_and_records_everything(engine, tmp_path):
    """Open streams of both finish, a new request is refused in form, status 0."""
    engine.go_on.clear()
    async with (
        two_workers(engine, tmp_path) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        streams = await open_streams(stack, served, 4)
        served.process.send_signal(signal.SIGTERM)
        await served.said_line("4 open requests finish")
        async with aiohttp.ClientSession() as session:
            await until(lambda: _is_refused(session, served))
            async with session.get(f"{served.admin}/ready") as response:
                assert (response.status, (await response.json())["status"]) == (503, "draining")
        engine.go_on.set()
        for stream in streams:
            assert (await stream.content.read()).rstrip().endswith(b"data: [DONE]")
        status, _out = await served.end()
    assert status == 0
    assert "headstart: all requests are answered and recorded" in served.said
    records = read_records(tmp_path / STORE_FILE)
    assert len([record for record in records if record.is_stream and record.status == 200]) == 4
    assert len(logged_ids(tmp_path / "requests.jsonl")) == len(records)


async def _is_refused(session, served):
    try:
        async with chat(session, served) as response:
            return response.status == 503
    except aiohttp.ClientError:
        return False  # it was slower to ask than idle connections are kept


async def test_a_second_signal_cuts_off_what_is_open(engine, tmp_path):
    """In every worker, still recorded, status 1."""
    engine.go_on.clear()
    async with (
        two_workers(engine, tmp_path) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        await open_streams(stack, served, 4)
        served.process.send_signal(signal.SIGINT)
        await served.said_line("open requests finish")
        served.process.send_signal(signal.SIGINT)
        status, _out = await served.end()
    assert status == 1
    codes = [record.error_code for record in read_records(tmp_path / STORE_FILE)]
    assert codes == ["no_replica_available"] * 4


async def test_a_worker_that_does_not_drain_is_killed(engine, tmp_path):
    """It hangs: the others end in order, and the status says that something was lost."""
    environment = {"HEADSTART_DRAIN_S": "0.1", "HEADSTART_RECORDER_CLOSE_S": "0"}
    flags = ("--engine", engine.url, "--workers", "2", "--request-log", "off")
    async with serve(*flags, cwd=tmp_path, environment=environment) as served:
        os.kill(children(served.process.pid)[0], signal.SIGSTOP)
        served.process.send_signal(signal.SIGTERM)
        await served.said_line("1 workers do not end and are killed")
        status, _out = await served.end()
    assert status == 1
    assert any("was ended by SIGKILL" in line for line in served.said)


async def test_signals_to_the_whole_group_drain_like_one(engine, tmp_path):
    """systemd and a terminal's Ctrl-C signal the workers, too."""
    engine.go_on.clear()
    async with (
        two_workers(engine, tmp_path) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        streams = await open_streams(stack, served, 4)
        for pid in (*children(served.process.pid), served.process.pid):
            os.kill(pid, signal.SIGTERM)
        await served.said_line("open requests finish")
        engine.go_on.set()
        for stream in streams:
            assert (await stream.content.read()).rstrip().endswith(b"data: [DONE]")
        status, _out = await served.end()
    assert status == 0


async def test_workers_end_with_their_supervisor(engine, tmp_path):
    """Killed, it cannot tell them: they notice, finish what is open, record it and end."""
    engine.go_on.clear()
    async with (
        two_workers(engine, tmp_path) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        streams = await open_streams(stack, served, 2)
        workers = children(served.process.pid)
        served.process.kill()
        await served.said_line("the supervisor has ended")
        engine.go_on.set()
        for stream in streams:
            assert (await stream.content.read()).rstrip().endswith(b"data: [DONE]")
        await until(lambda: _are_gone(workers))
    assert [record.status for record in read_records(tmp_path / STORE_FILE)] == [200, 200]


async def _are_gone(pids):
    # A zombie whose parent is gone is somebody else's to collect.
    return all(_state(pid) in ("", "Z") for pid in pids)


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
