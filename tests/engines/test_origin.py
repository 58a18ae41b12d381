"""`Origin`: where requests go and what their heads say."""

import pytest

from headstart.engines.base import ReplicaConfig
from headstart.engines.origin import Address, Origin, parse_address
from headstart.errors import ConfigError
from headstart.wire.http1 import HeaderSection, Request


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://a100:8000", Address("a100", 8000, "", False), "a100:8000"),
        ("http://a100", Address("a100", 80, "", False), "a100"),
        ("https://api.openai.com", Address("api.openai.com", 443, "", True), "api.openai.com"),
        ("https://h:8443/", Address("h", 8443, "", True), "h:8443"),
        ("https://h/openai/v1", Address("h", 443, "/openai", True), "h"),
        ("http://h:1/v1/", Address("h", 1, "", False), "h:1"),
        ("http://[::1]:8000", Address("::1", 8000, "", False), "[::1]:8000"),
    ],
)
def test_urls_are_parsed(url, address, authority):
    """A final /v1 is what client libraries want in their base URL."""
    assert parse_address(url) == address
    assert address.authority() == authority


def test_credentials_in_a_url_are_refused_without_repeating_them():
    """They would end up in logs."""
    with pytest.raises(ConfigError) as caught:
        parse_address("https://user:hunter2@h")
    assert "hunter2" not in caught.value.message


def test_a_prefix_goes_before_the_target():
    """Providers put their API below a path."""
    origin = Origin(ReplicaConfig("r", "http://h/openai/v1"), strips_credentials=False)
    head = origin.head(Request("GET", b"/v1/models?x=1", HeaderSection([], {})), 0)
    assert head.startswith(b"GET /openai/v1/models?x=1 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("method", "num_bytes", "has_length"),
    [("GET", 0, False), ("POST", 0, True), ("POST", 3, True), ("DELETE", 3, True)],
)
def test_a_length_is_said_where_one_is_expected(method, num_bytes, has_length):
    """RFC 9110 §8.6: POST without content says 0, GET says nothing."""
    origin = Origin(ReplicaConfig("r", "http://h"), strips_credentials=False)
    head = origin.head(Request(method, b"/", HeaderSection([], {})), num_bytes)
    assert (b"content-length: %d\r\n" % num_bytes in head) is has_length


def test_a_via_field_is_added():
    """RFC 9110 §7.6.3; an earlier proxy's stays before it."""
    origin = Origin(ReplicaConfig("r", "http://h"), strips_credentials=False)
    lines = [(b"via", b"Via: 1.1 edge\r\n")]
    head = origin.head(Request("GET", b"/", HeaderSection(lines, {})), 0)
    assert head.index(b"1.1 edge") < head.index(b"1.1 headstart")


@pytest.mark.parametrize("key", ["a\r\nX: y", "schlüssel", "a\x00"])
def test_a_key_that_could_break_a_head_is_refused(key):
    """At start, and without repeating it."""
    with pytest.raises(ConfigError) as caught:
        Origin(ReplicaConfig("r", "http://h", api_key=key), strips_credentials=False)
    assert key not in caught.value.message


def test_a_ca_file_that_is_not_there_is_a_configuration_error(tmp_path):
    """Naming the file."""
    config = ReplicaConfig("r", "https://h", ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"none\.pem"):
        Origin(config, strips_credentials=False)


@pytest.mark.parametrize("url", ["http://bücher", "http://h/a b", "http://h/ä", "http://h/\x00"])
def test_a_url_that_could_not_be_sent_is_a_configuration_error(url):
    """At start, and not with the first request."""
    with pytest.raises(ConfigError, match="ASCII"):
        parse_address(url)


@pytest.mark.parametrize("url", ["ftp://u:pass@h", "http://u:pass@h:x", "http://u:pass@ä"])
def test_credentials_in_a_url_are_not_repeated(url):
    """Whatever else is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        parse_address(url)
    assert "pass" not in caught.value.message
