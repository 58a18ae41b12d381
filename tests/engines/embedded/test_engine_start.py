"""What an engine says when it cannot start, in place of a traceback."""

import sys

import pytest

from headstart.engines.embedded.engine import EmbeddedEngine, EngineConfig
from headstart.errors import ConfigError, ModelUnavailable
from tiny_model import write_tiny_gguf


def test_another_architecture_is_refused_by_name(tmp_path):
    """Before anything else that such a file lacks."""
    path = write_tiny_gguf(tmp_path / "m.gguf", architecture="qwen2", pre="unheard-of")
    with pytest.raises(ModelUnavailable, match=r"'qwen2' is not supported"):
        EmbeddedEngine(EngineConfig(path, "m"))


def test_a_backend_that_is_not_installed_is_named(tiny_gguf, monkeypatch):
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "headstart.engines.embedded.torch_backend", raising=False)
    with pytest.raises(ConfigError, match=r"install headstart\[torch\]"):
        EmbeddedEngine(EngineConfig(tiny_gguf, "m", backend="torch"))


def test_a_pool_that_memory_cannot_hold_is_refused(tiny_gguf):
    """More than any address space has; the message names the size and the flag."""
    with pytest.raises(ConfigError, match=r"16000000000000000 tokens .* --kv-tokens"):
        EmbeddedEngine(EngineConfig(tiny_gguf, "m", num_blocks=10**15))
