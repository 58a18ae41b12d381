"""Fixtures of the prefix room's tests."""

from pathlib import Path

import pytest
from cache_engine import Turn, read_airline_sessions


@pytest.fixture(scope="session")
def airline_sessions(test_data: Path) -> list[list[Turn]]:
    """60 real sessions as requests; made once, which takes some seconds."""
    return read_airline_sessions(test_data, 60)
