"""`headstart serve` as people run it: a process, sockets, signals, and what it leaves behind."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from headstart.accounting.store import STORE_FILE, read_records
from served import WAIT_S, chat, serve


async def test_a_request_is_answered_counted_recorded_and_logged(engine, tmp_path):
    """The whole way: data port, metrics, store and log line."""
    async with (
        serve("--engine", engine.url, cwd=tmp_path) as served,
        aiohttp.ClientSession() as session,
    ):
        async with chat(session, served) as response:
            assert response.status == 200
            assert (await response.json())["choices"][0]["message"]["content"] == "hello"
            request_id = response.headers["x-headstart-request-id"]
        async with session.get(f"{served.admin}/metrics") as response:
            assert "headstart_cached_tokens_total{" in await response.text()
        async with session.get(f"{served.admin}/replicas") as response:
            (replica,) = (await response.json())["data"]
            assert (replica["models"], replica["is_available"]) == (["m"], True)
        served.process.send_signal(signal.SIGTERM)
        status, out = await served.end()
    assert status == 0
    line = json.loads(out)
    assert (line["request_id"], line["status"], line["cached_tokens"]) == (request_id, 200, 64)
    (record,) = read_records(tmp_path / STORE_FILE)
    assert (record.request_id, record.usage.cached_tokens) == (request_id, 64)


async def test_the_start_says_where_what_and_how(engine, tmp_path):
    """Data port, replica and its models, metrics, records, and a line to try."""
    flags = ("--engine", engine.url, "--policy", "least_loaded", "--request-log", "off")
    async with serve(*flags, cwd=tmp_path) as served:
        said = "\n".join(served.said)
        assert f"{engine.url} serves m" in said
        assert "least_loaded" in said
        assert str(tmp_path / STORE_FILE) in said
        assert f"curl {served.data}/v1/chat/completions" in said
        assert '"model": "m"' in said


async def test_the_printed_curl_line_works(engine, tmp_path):
    """What people paste first."""
    async with serve("--engine", engine.url, cwd=tmp_path) as served:
        line = (await served.said_line(r"^  curl ")).strip()
        curl = await asyncio.create_subprocess_shell(
            f"{line} --silent --show-error", stdout=subprocess.PIPE
        )
        out, _err = await curl.communicate()
    if curl.returncode == 127:
        pytest.skip("there is no curl here")
    assert json.loads(out)["choices"][0]["message"]["content"] == "hello"


async def test_sigterm_lets_an_open_stream_finish_and_records_it(engine, tmp_path):
    """Accepted is answered, and answered is recorded."""
    engine.go_on.clear()
    async with (
        serve("--engine", engine.url, cwd=tmp_path) as served,
        aiohttp.ClientSession() as session,
        chat(session, served, stream=True) as response,
    ):
        first = await response.content.readline()
        assert b"one" in first
        served.process.send_signal(signal.SIGTERM)
        await served.said_line("open requests finish")
        engine.go_on.set()
        rest = await response.content.read()
        assert b"two" in rest
        assert rest.rstrip().endswith(b"data: [DONE]")
        assert b"usage" not in rest  # the gateway asked for it, not the client
        status, _out = await served.end()
    assert status == 0
    (record,) = read_records(tmp_path / STORE_FILE)
    assert (record.status, record.usage.output_tokens) == (200, 2)


async def test_a_second_signal_ends_it_at_once(engine, tmp_path):
    """The open stream is cut off, and still recorded."""
    engine.go_on.clear()
    async with (
        serve("--engine", engine.url, cwd=tmp_path) as served,
        aiohttp.ClientSession() as session,
        chat(session, served, stream=True) as response,
    ):
        await response.content.readline()
        served.process.send_signal(signal.SIGINT)
        await served.said_line("open requests finish")
        served.process.send_signal(signal.SIGINT)
        status, _out = await served.end()
    assert status == 1
    assert len(read_records(tmp_path / STORE_FILE)) == 1


async def test_tenants_from_the_file_are_asked_for_their_key(engine, tmp_path):
    """headstart.yaml in the current folder is read without being named."""
    (tmp_path / "headstart.yaml").write_text(
        f"engines: [{{url: '{engine.url}'}}]\n"
        "tenants: [{name: acme, key_env: ACME_KEY, business_line: support}]\n"
    )
    async with (
        serve(cwd=tmp_path, environment={"ACME_KEY": "k"}) as served,
        aiohttp.ClientSession() as session,
    ):
        async with chat(session, served) as response:
            assert response.status == 401
        session.headers["authorization"] = "Bearer k"
        async with chat(session, served) as response:
            assert response.status == 200
        served.process.send_signal(signal.SIGTERM)
        await served.end()
    record = read_records(tmp_path / STORE_FILE)[-1]
    assert (record.tenant, record.business_line) == ("acme", "support")


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_tenants_limits_hold_over_all_workers(engine, tmp_path, workers):
    """Each request on a connection of its own, whichever process takes it."""
    (tmp_path / "headstart.yaml").write_text(
        f"engines: [{{url: '{engine.url}'}}]\n"
        f"workers: {workers}\n"
        "tenants: [{name: acme, key_env: ACME_KEY, limits: {requests_per_minute: 4}}]\n"
        "queue: {max_in_flight: 8}\n"
    )
    statuses = []
    async with serve(cwd=tmp_path, environment={"ACME_KEY": "k"}) as served:
        for _ in range(8):
            async with (
                aiohttp.ClientSession(headers={"authorization": "Bearer k"}) as session,
                chat(session, served) as response,
            ):
                statuses.append(response.status)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{served.admin}/metrics") as response,
        ):
            text = await response.text()
        served.process.send_signal(signal.SIGTERM)
        await served.end()
    assert statuses == [200] * 4 + [429] * 4
    assert 'headstart_limit_used{limit="requests_per_minute",tenant="acme"} 4.0' in text
    refusals = re.findall(r'headstart_limit_refusals_total{.*code="(\w+)".*} (\d+)', text)
    assert refusals == [("requests_per_minute_limit", "4")]
    assert "headstart_queue_waiting 0.0" in text


async def test_an_unwritable_log_costs_no_request(engine, tmp_path):
    """The disk is full: requests are answered, the failure is counted and said."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    flags = ("--engine", engine.url, "--request-log", "/dev/full")
    environment = {"HEADSTART_RECORDER_CLOSE_S": "0"}
    async with (
        serve(*flags, cwd=tmp_path, environment=environment) as served,
        aiohttp.ClientSession() as session,
    ):
        async with chat(session, served) as response:
            assert response.status == 200
        await served.said_line("log does not keep records")
        async with session.get(f"{served.admin}/metrics") as response:
            text = await response.text()
        assert re.search(r'headstart_record_write_failures_total\{sink="log"\} [1-9]', text)
        served.process.send_signal(signal.SIGTERM)
        status, _out = await served.end()
    assert status == 0
    assert len(read_records(tmp_path / STORE_FILE)) == 1


def run(*arguments, cwd, environment=None):
    return subprocess.run(
        [sys.executable, "-m", "headstart", *arguments],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def test_a_port_in_use_is_one_line(tmp_path):
    """No traceback, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ("--engine", "http://127.0.0.1:1", "--port", str(port), "--data-dir", str(tmp_path))
        ended = run("serve", *flags, "--admin", "127.0.0.1:0", cwd=tmp_path)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"headstart: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--policy", "roundrobin"), "--policy: `routing.policy` cannot be 'roundrobin'; did you"),
        (("--engine", "nonsense"), "--engine: `nonsense` is not an engine's URL"),
        (("--admin", "0.0.0.0:1"), "--admin: the admin port 0.0.0.0:1 can be reached"),
        (("--config", "none.yaml"), "--config: there is no file"),
        (("--data-dir", "/dev/null/x", "--engine", "http://127.0.0.1:1"), "cannot use the request"),
        (("--model", "no-such-model"), "'no-such-model' is neither a known model"),
    ],
)
def test_a_wrong_flag_is_one_line(tmp_path, flags, message):
    """Before anything is started."""
    ended = run("serve", *flags, cwd=tmp_path)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"headstart: {message}")


def test_serving_engines_loads_no_numpy(tmp_path):
    """The gateway process stays small and starts quickly."""
    code = (
        "import sys, headstart.cli.main, headstart.cli.service;"
        "print([name for name in ('numpy', 'torch', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_config_explain_prints_value_and_origin(tmp_path):
    """As a table, and with --json for tools."""
    (tmp_path / "headstart.yaml").write_text("drain_s: 7\nengines: [{url: http://a:1}]\n")
    table = run("config", "explain", "--port", "9000", cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    rows = [line.split(maxsplit=2) for line in table.stdout.splitlines()]
    assert ["drain_s", "7", "headstart.yaml:1"] in rows
    assert ["listen", "127.0.0.1:9000", "--port"] in rows
    found = run("config", "explain", "--json", cwd=tmp_path)
    settings = {line["key"]: line for line in json.loads(found.stdout)["settings"]}
    assert settings["drain_s"] == {"key": "drain_s", "value": 7.0, "origin": "headstart.yaml:1"}
    assert settings["engines[0].models"]["value"] is None


def test_config_explain_warns_of_misspelt_variables(tmp_path):
    """On standard error, so that --json stays JSON."""
    done = run("config", "explain", "--json", cwd=tmp_path, environment={"HEADSTART_LISTN": "1"})
    assert "did you mean `HEADSTART_LISTEN`?" in done.stderr
    json.loads(done.stdout)


async def test_without_engines_an_embedded_replica_is_started_and_stopped(tiny_gguf, tmp_path):
    """`headstart serve` alone, here on a tiny random model."""
    async with (
        serve("--model", str(tiny_gguf), cwd=tmp_path) as served,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"{served.data}/v1/models") as response:
            (model,) = (await response.json())["data"]
        body = {"model": model["id"], "prompt": "hello", "max_tokens": 4}
        async with session.post(f"{served.data}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            assert (await response.json())["usage"]["completion_tokens"] <= 4
        served.process.send_signal(signal.SIGTERM)
        status, _out = await served.end()
    assert status == 0
    (record,) = [one for one in read_records(tmp_path / STORE_FILE) if one.replica]
    assert (record.replica, record.status) == ("embedded", 200)


async def test_an_embedded_replica_that_dies_ends_it_with_the_reason(tiny_gguf, tmp_path):
    """A gateway in front of nothing would only answer 503."""
    async with serve("--model", str(tiny_gguf), cwd=tmp_path) as served:
        pid = served.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        if not children.exists():
            pytest.skip("this system does not list a process's children")
        (child,) = children.read_text().split()
        os.kill(int(child), signal.SIGKILL)
        status, _out = await served.end()
    assert status == 1
    assert any("the embedded replica ended with status -9" in line for line in served.said)
