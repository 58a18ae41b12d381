"""`headstart engine`: what it prints, and the combinations of flags that it refuses."""

import pytest
from typer.testing import CliRunner

from headstart.cli import engine as engine_command
from headstart.cli.main import app


@pytest.fixture
def parse(tiny_gguf, monkeypatch):
    def run(*flags):
        seen = []
        monkeypatch.setattr(engine_command, "_serve", lambda settings, **_: seen.append(settings))
        result = CliRunner().invoke(app, ["engine", f"--model={tiny_gguf}", *flags])
        return result, seen[0] if seen else None

    return run


def test_the_defaults_are_a_pool_of_8192_tokens_on_port_8000(parse, tiny_gguf):
    _, settings = parse()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.num_blocks * settings.block_size == 8192
    assert settings.model_name == tiny_gguf.stem
    assert settings.kv_events is None
    assert settings.threads is None


def test_the_pool_can_be_given_in_tokens_or_blocks(parse):
    assert parse("--kv-tokens=1000")[1].num_blocks == 63
    assert parse("--num-blocks=10", "--block-size=32")[1].num_blocks == 10
    result, settings = parse("--num-blocks=10", "--kv-tokens=100")
    assert (result.exit_code, settings) == (1, None)
    assert "not both" in result.output


def test_event_ports_become_addresses_on_the_same_host(parse):
    _, settings = parse("--kv-events-port=5557", "--kv-replay-port=5558")
    assert settings.kv_events.endpoint == "tcp://127.0.0.1:5557"
    assert settings.kv_events.replay_endpoint == "tcp://127.0.0.1:5558"


def test_a_replay_port_alone_is_refused(parse):
    result, settings = parse("--kv-replay-port=5558")
    assert (result.exit_code, settings) == (1, None)
    assert "--kv-events-port" in result.output


def test_a_model_that_is_nowhere_is_one_line(monkeypatch):
    result = CliRunner().invoke(app, ["engine", "--model=absent.gguf"])
    assert result.exit_code == 1
    assert "neither a known model (smollm2-135m) nor a GGUF file" in result.output
    assert len(result.output.splitlines()) == 1
