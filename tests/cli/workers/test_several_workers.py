"""`headstart serve --workers N` at work: one view of several processes, and the loss of one."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from headstart.accounting.store import STORE_FILE, read_records
from served import WAIT_S, chat, serve
from served_workers import (
    answered_ids,
    children,
    logged_ids,
    open_streams,
    samples,
    total,
    traffic,
    two_workers,
    until,
    worker_of,
)


async def test_connections_are_shared(engine, tmp_path):
    """Whoever wakes first does not take all; how even it is, `gateway/test_acceptor.py` shows."""
    engine.go_on.clear()
    async with (
        two_workers(engine, tmp_path) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        streams = await open_streams(stack, served, 8)
        shares = Counter(map(worker_of, streams)).values()
        assert len(shares) == 2
        assert min(shares) >= 2
        async with aiohttp.ClientSession() as session:
            assert await total(session, served, "headstart_open_requests") == 8
            assert await total(session, served, "headstart_replica_in_flight") == 8
            assert await total(session, served, "headstart_client_connections") == 8
        engine.go_on.set()


async def test_metrics_records_and_log_cover_all_workers(engine, tmp_path):
    """Each answer is counted once, recorded once and one whole line in a log on a pipe."""
    async with (
        serve("--engine", engine.url, "--workers", "3", cwd=tmp_path) as served,
        aiohttp.ClientSession() as session,
    ):
        out = asyncio.ensure_future(served.process.stdout.read())
        async with traffic(served, 9) as clients:
            await until(lambda: _has_answers(clients, 600))
        ids = answered_ids(clients)
        assert len({request_id.split("-")[0] for request_id in ids}) == 3
        assert await total(session, served, status="200") == len(ids)
        assert await total(session, served, "headstart_cached_tokens_total") == 64 * len(ids)
        served.process.send_signal(signal.SIGTERM)
        lines = (await asyncio.wait_for(out, WAIT_S)).decode().splitlines()
        status, _rest = await served.end()
    assert status == 0
    assert sorted(json.loads(line)["request_id"] for line in lines) == sorted(ids)
    records = read_records(tmp_path / STORE_FILE, limit=10**6)
    assert sorted(record.request_id for record in records) == sorted(ids)


async def _has_answers(clients, number):
    return len(answered_ids(clients)) >= number


async def test_a_killed_worker_takes_nothing_of_the_others_with_it(engine, tmp_path):
    """kill -9 in traffic: all others are served, counted and recorded, and it is replaced."""
    async with two_workers(engine, tmp_path) as served, aiohttp.ClientSession() as session:
        before = children(served.process.pid)
        seen = [0.0]
        async with traffic(served, 6) as clients:
            await until(lambda: _has_answers(clients, 100))
            seen.append(await total(session, served))
            os.kill(before[0], signal.SIGKILL)
            at_kill = len(answered_ids(clients))
            await served.said_line(r"worker-\d \(process \d+\): was ended by SIGKILL; it is replac")
            await until(lambda: _has_answers(clients, at_kill + 100))
            seen.append(await total(session, served))
            await until(lambda: _is_up(session, served, 2))
            async with traffic(served, 3) as late_clients:
                await until(lambda: _has_answers(late_clients, 30))
                seen.append(await total(session, served))
        clients += late_clients
        seen.append(await total(session, served))
        assert await total(session, served, "headstart_worker_restarts_total") == 1
        served.process.send_signal(signal.SIGTERM)
        status, _out = await served.end()
    assert status == 0
    assert seen == sorted(seen)
    by_worker = {}
    for request_id in answered_ids(clients):
        by_worker.setdefault(request_id.split("-")[0], set()).add(request_id)
    assert len(by_worker) == 3
    recorded = {record.request_id for record in read_records(tmp_path / STORE_FILE, limit=10**6)}
    incomplete = [worker for worker, ids in by_worker.items() if not ids <= recorded]
    assert len(incomplete) <= 1, "only the killed one may lose what it had not written"
    assert recorded <= set(answered_ids(clients))
    # Each client was cut off at most once.
    assert sum(client.num_broken for client in clients) <= 6
    assert set(logged_ids(tmp_path / "requests.jsonl")) <= recorded | set(answered_ids(clients))


async def _is_up(session, served, number):
    return await total(session, served, "headstart_worker_up") == number


async def test_a_worker_that_dies_at_once_again_is_replaced_after_a_pause(engine, tmp_path):
    """The first replacement comes at once; the next ones wait, so that a fault cannot spin."""
    async with two_workers(engine, tmp_path) as served, aiohttp.ClientSession() as session:
        for restarts in (1, 2):
            (victim, _other) = sorted(children(served.process.pid))
            os.kill(victim, signal.SIGKILL)
            await until(
                lambda: _restarted(session, served, restarts)  # noqa: B023  awaited at once
            )
            await until(lambda: _is_up(session, served, 2))


async def _restarted(session, served, number):
    return await total(session, served, "headstart_worker_restarts_total") == number


async def test_a_worker_that_hangs_does_not_hang_the_metrics(engine, tmp_path):
    """Its last figures are shown with their age, and the others take what connects."""
    async with two_workers(engine, tmp_path) as served, aiohttp.ClientSession() as session:
        async with chat(session, served) as response:
            assert response.status == 200
        assert await total(session, served) == 1
        frozen = children(served.process.pid)[0]
        os.kill(frozen, signal.SIGSTOP)
        try:
            for _ in range(6):
                async with aiohttp.ClientSession() as other, chat(other, served) as response:
                    assert response.status == 200
            assert await total(session, served) == 7
            await until(lambda: _is_old(session, served))
            await served.said_line(rf"worker-\d \(process {frozen}\) hangs: it does not report")
        finally:
            os.kill(frozen, signal.SIGCONT)
        await until(lambda: _is_fresh(session, served))


async def _ages(session, served):
    found = await samples(session, served)
    return [v for (name, _), v in found.items() if name == "headstart_worker_report_age_seconds"]


async def _is_old(session, served):
    return max(await _ages(session, served)) > 1.5


async def _is_fresh(session, served):
    return max(await _ages(session, served)) < 0.5


async def test_a_worker_that_gets_sigterm_alone_drains_and_is_replaced(engine, tmp_path):
    """Its open stream ends as it should, nobody is refused, and another takes its place."""
    engine.go_on.clear()
    async with (
        two_workers(engine, tmp_path) as served,
        aiohttp.ClientSession() as session,
        contextlib.AsyncExitStack() as stack,
    ):
        streams = await open_streams(stack, served, 2)
        old = set(children(served.process.pid))
        leaving = min(old)
        os.kill(leaving, signal.SIGTERM)
        for _ in range(20):
            async with aiohttp.ClientSession() as other, chat(other, served) as response:
                assert response.status == 200
        engine.go_on.set()
        for stream in streams:
            assert (await stream.content.read()).rstrip().endswith(b"data: [DONE]")
        await served.said_line(rf"process {leaving}\) has drained")
        await until(lambda: _is_up(session, served, 2))
        assert leaving not in children(served.process.pid)
        assert await total(session, served, status="200") == 22
        served.process.send_signal(signal.SIGTERM)
        status, _out = await served.end()
    assert status == 0
    assert len(logged_ids(tmp_path / "requests.jsonl")) == 22


async def test_a_tenants_limit_holds_over_all_workers(engine, tmp_path):
    """Two requests at once means two, whichever process they come to."""
    (tmp_path / "headstart.yaml").write_text(
        f"engines: [{{url: '{engine.url}'}}]\nworkers: 2\nrequest_log: 'off'\n"
        "tenants: [{name: acme, key_env: ACME_KEY, limits: {concurrent: 2}}]\n"
    )
    engine.go_on.clear()
    headers = {"authorization": "Bearer k"}
    async with (
        serve(cwd=tmp_path, environment={"ACME_KEY": "k"}) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        statuses = []
        for _ in range(6):
            session = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
            stream = await stack.enter_async_context(chat(session, served, stream=True))
            statuses.append(stream.status)
        assert statuses == [200, 200, 429, 429, 429, 429]
        engine.go_on.set()


async def test_a_drained_replica_is_drained_for_all_workers(engine, tmp_path):
    """Also for one that is started later; and so is its return."""
    flags = ("--engine", engine.url, "--workers", "2", "--request-log", "off")
    async with serve(*flags, cwd=tmp_path) as served, aiohttp.ClientSession() as session:
        name = engine.url.removeprefix("http://")
        await _order(session, served, name, "drain")
        assert await _view(session, served) == ("draining", True)
        os.kill(children(served.process.pid)[0], signal.SIGKILL)
        await served.said_line("was ended by SIGKILL")
        await until(lambda: _is_up(session, served, 2))
        assert await _view(session, served) == ("draining", True)
        await _order(session, served, name, "resume")
        await until(lambda: _is_used(session, served))
        async with session.post(f"{served.admin}/replicas/nobody/drain") as response:
            assert response.status == 404


async def _order(session, served, name, order):
    async with session.post(f"{served.admin}/replicas/{name}/{order}") as response:
        assert response.status == 200, await response.text()


async def _view(session, served):
    """A replica's state, and whether all workers share it: else one of them is named."""
    async with session.get(f"{served.admin}/replicas") as response:
        (replica,) = (await response.json())["data"]
    return replica["state"], not replica["reason"].startswith("worker-")


async def _is_used(session, served):
    # Warming or not, which depends on how long it was drained.
    state, is_shared = await _view(session, served)
    return is_shared and state in ("available", "warming")


async def test_no_secret_is_in_a_workers_command_line(engine, tmp_path):
    """The configuration travels through the socket pair."""
    (tmp_path / "key").write_text("sk-very-secret")
    (tmp_path / "headstart.yaml").write_text(
        f"engines: [{{url: '{engine.url}', api_key_file: key}}]\nworkers: 2\nrequest_log: 'off'\n"
    )
    async with serve(cwd=tmp_path) as served, aiohttp.ClientSession() as session:
        for pid in children(served.process.pid):
            shown = Path(f"/proc/{pid}/cmdline").read_bytes()
            shown += Path(f"/proc/{pid}/environ").read_bytes()
            assert b"sk-very-secret" not in shown
        async with chat(session, served) as response:
            assert response.status == 200


async def test_the_admin_port_keeps_its_key(engine, tmp_path):
    """One port, one key, whoever answers."""
    environment = {"HEADSTART_ADMIN_KEY": "k", "HEADSTART_WORKERS": "2"}
    flags = ("--engine", engine.url, "--request-log", "off", "--admin", "0.0.0.0:0")
    async with (
        serve(*flags, cwd=tmp_path, environment=environment) as served,
        aiohttp.ClientSession() as session,
    ):
        assert re.search(r"metrics .*localhost:\d+/metrics, on every address", served.announced)
        async with session.get(f"{served.admin}/metrics") as response:
            assert response.status == 401
        async with session.get(f"{served.admin}/ready") as response:
            assert response.status == 200
        headers = {"authorization": "Bearer k"}
        async with session.get(f"{served.admin}/replicas", headers=headers) as response:
            (replica,) = (await response.json())["data"]
            assert replica["is_available"]


async def test_a_worker_that_cannot_start_ends_the_start_with_its_reason(engine, tmp_path):
    """One line, as with one process."""
    flags = ("--engine", engine.url, "--workers", "2", "--request-log", "/dev/null/x")
    with pytest.raises(AssertionError, match="headstart: cannot write the request log /dev/null/x"):
        async with serve(*flags, cwd=tmp_path):
            pass


async def test_an_embedded_replica_is_started_once(tiny_gguf, tmp_path):
    """All workers front the same one."""
    flags = ("--model", str(tiny_gguf), "--workers", "2", "--request-log", "off")
    async with serve(*flags, cwd=tmp_path) as served, aiohttp.ClientSession() as session:
        assert len(children(served.process.pid)) == 3
        async with session.get(f"{served.data}/v1/models") as response:
            (model,) = (await response.json())["data"]
        body = {"model": model["id"], "prompt": "hello", "max_tokens": 4}
        async with session.post(f"{served.data}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
        served.process.send_signal(signal.SIGTERM)
        status, _out = await served.end()
    assert status == 0
