"""Addresses and engine URLs are read as people write them, or refused with a hint."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config.address import Address, check_engine_url, engine_name, parse_address
from headstart.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("[::1]:8080", "::1", 8080),
        ("[2001:db8::7]:0", "2001:db8::7", 0),
        ("gateway.internal:65535", "gateway.internal", 65535),
        ("8080", "127.0.0.1", 8080),
    ],
)
def test_an_address_is_a_host_and_a_port(text, host, port):
    """IPv6 in brackets; a port alone is on loopback."""
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":8080", "host", "host:", "host:x", "host:-1", "host:65536", "::1:8080"),
        *("[::1]", "[x]:1", "[127.0.0.1]:1", "http://host:80", "a b:80", "host:٣", "host:1_0"),
    ],
)
def test_anything_else_is_refused_with_the_value(text):
    """The message repeats it, so that it is found in the file."""
    with pytest.raises(ConfigError) as error:
        parse_address(text)
    assert (
        f"`{text.rpartition(':')[2]}`" in error.value.message or f"`{text}`" in error.value.message
    )


@given(
    st.one_of(
        st.ip_addresses().map(str), st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z])?", fullmatch=True)
    ),
    st.integers(0, 65535),
)
def test_what_is_written_is_read_back(host, port):
    """`str` and `parse_address` are inverse."""
    address = Address(host, port)
    assert parse_address(str(address)) == address


@given(st.text(max_size=12))
def test_no_text_does_anything_but_parse_or_raise_a_config_error(text):
    """Whatever stands in a file."""
    with contextlib.suppress(ConfigError):
        assert 0 <= parse_address(text).port <= 65535


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback_is_what_only_this_machine_can_reach(host, is_loopback):
    """A name other than localhost may point anywhere."""
    assert Address(host, 1).is_loopback is is_loopback


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.11:8000", "http://10.0.0.11:8000"),
        ("https://api.openai.com/", "https://api.openai.com"),
        ("https://api.openai.com/v1", "https://api.openai.com"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000"),
        ("https://host/prefix/", "https://host/prefix"),
    ],
)
def test_an_engine_url_is_a_place_without_v1(url, expected):
    """People paste what their client calls base_url."""
    assert check_engine_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("", "10.0.0.1:8000", "ftp://host", "http://", "http:///x", "http://host:0"),
        *("http://host:x", "http://host:99999", "http://[::1", "http://host/?a=b"),
        *("http://host/#x", "http://ho st"),
    ],
)
def test_what_is_no_engine_url_is_refused(url):
    """Before the first request fails."""
    with pytest.raises(ConfigError, match="URL"):
        check_engine_url(url)


@pytest.mark.parametrize("url", ["https://user:hunter2@host", "http://hunter2@host:x/"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    """The message would end up in a log."""
    with pytest.raises(ConfigError) as error:
        check_engine_url(url)
    assert "hunter2" not in error.value.message


def test_an_engine_is_named_after_its_place():
    """Routing hashes the name: it must not depend on the order of flags."""
    assert engine_name("https://host:8000/prefix") == "host:8000/prefix"
