"""Each value is listed with its origin, and no secret with its value."""

import pytest

from headstart.config.explain import settings
from headstart.config.load import ADMIN_KEY_VARIABLE, Flags, load_config


@pytest.fixture
def listing(tmp_path):
    (tmp_path / "headstart.yaml").write_text(
        "listen: 127.0.0.1:9000\n"
        "engines:\n"
        "  - url: http://a:1\n"
        "    api_key_env: A_KEY\n"
        "tenants:\n"
        "  - {name: acme, key_env: ACME_KEY}\n"
    )
    environment = {
        "A_KEY": "hunter2-a",
        "ACME_KEY": "hunter2-t",
        ADMIN_KEY_VARIABLE: "hunter2-x",
        "HEADSTART_DRAIN_S": "5",
    }
    loaded = load_config(Flags(policy="round_robin"), environment, folder=tmp_path)
    return {
        line.key: (line.value, line.origin.replace(f"{tmp_path}/", "")) for line in settings(loaded)
    }


@pytest.mark.parametrize(
    ("key", "value", "origin"),
    [
        ("listen", "127.0.0.1:9000", "headstart.yaml:1"),
        ("admin", "127.0.0.1:9001", "default (the port of listen + 1, on loopback)"),
        ("engines[0].name", "a:1", "default (after its URL)"),
        ("engines[0].url", "http://a:1", "headstart.yaml:3"),
        (
            "engines[0].api_key",
            "********",
            "environment variable A_KEY, see headstart.yaml:4",
        ),
        ("admin_key", "********", "HEADSTART_ADMIN_KEY"),
        ("drain_s", 5.0, "HEADSTART_DRAIN_S"),
        ("routing.policy", "round_robin", "--policy"),
        ("routing.prefix_hash.load_bound", 1.25, "default"),
        ("request_log", "-", "default"),
    ],
)
def test_a_value_is_listed_with_its_origin(listing, key, value, origin):
    """File and line, variable, flag, default, and how a default was derived."""
    assert listing[key] == (value, origin)


def test_no_secret_is_listed(listing):
    """Masked; a tenant's hash is cut, which still tells keys apart."""
    assert "hunter2" not in repr(listing)
    value, origin = listing["tenants[0].key_sha256"]
    assert len(value) == 9
    assert origin == "environment variable ACME_KEY, see headstart.yaml:6"
