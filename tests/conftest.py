"""Fixtures that several rooms' tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from headstart.cli.cache import cache_dir
from tiny_model import write_tiny_gguf

REAL_MODEL_FILE = Path("models", "smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf")

# No test is timed: on shared cores an example may take any time. The same examples in every run,
# so that a change is judged by what it changed; `--hypothesis-profile=explore` looks for new ones.
settings.register_profile("headstart", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("headstart")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama GGUF with random weights, made once per session."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of shared material; the test is skipped without it."""
    folder = os.environ.get("HEADSTART_TEST_DATA")
    if not folder:
        pytest.skip("HEADSTART_TEST_DATA is not set; it names the folder of shared test material")
    return Path(folder)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The fetched SmolLM2 file; the test is skipped without it."""
    named = os.environ.get("HEADSTART_TEST_MODEL")
    path = Path(named) if named else cache_dir() / REAL_MODEL_FILE
    if not path.is_file():
        pytest.skip(f"{path} is not there; run `headstart model fetch smollm2-135m`")
    return path
