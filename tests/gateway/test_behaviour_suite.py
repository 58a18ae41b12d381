"""The shared behaviour suite for routers, all nineteen points, against `headstart serve`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("policy", ["prefix_hash", "round_robin"])
def test_the_shared_behaviour_suite_is_satisfied(test_data, tmp_path, policy):
    """Bytes, streams, disconnects, death, retries, big bodies, a replica that goes and returns."""
    bench = test_data / "bench"
    environment = os.environ | {
        "HEADSTART": str(Path(sys.executable).with_name("headstart")),
        "PEERS_ROOT": str(tmp_path),
    }
    command = [sys.executable, bench / "correct.py", f"headstart/{policy}"]
    said = subprocess.run(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True
    ).stdout
    (tmp_path / "result.json").write_bytes(said)
    judge = [sys.executable, bench / "judge_correct.py", tmp_path / "result.json"]
    verdict = subprocess.run(judge, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    assert verdict == "19 of 19", said.decode()
