"""A pytest plugin: a test that has passed is not run again by the next run.

HEADSTART_CI_PASSED names a file with a line for each test that passed. The second run of `.ci/run`
has more to test with, and nothing changes for those tests that needed none of it.
"""

import os
from pathlib import Path

import pytest

_PASSED = Path(os.environ["HEADSTART_CI_PASSED"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed."""
    passed = set(_PASSED.read_text().splitlines()) if _PASSED.exists() else set()
    before = [item for item in items if item.nodeid in passed]
    if before:
        config.hook.pytest_deselected(items=before)
        items[:] = [item for item in items if item.nodeid not in passed]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what passes."""
    if report.when == "call" and report.passed:
        with _PASSED.open("a") as file:
            file.write(report.nodeid.replace("\n", " ") + "\n")
