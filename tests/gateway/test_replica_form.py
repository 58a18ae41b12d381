"""What the admin port can be told of a replica."""

import json

import pytest

from headstart.engines.base import ReplicaConfig
from headstart.engines.kv_feed.config import KvEventsConfig
from headstart.errors import BadRequest
from headstart.gateway.replica_form import read_replica_form


def test_a_url_is_enough():
    """It is named after its place, as in the configuration."""
    read = read_replica_form(b'{"url": "http://10.0.0.1:8000/v1/"}')
    assert read == ReplicaConfig("10.0.0.1:8000", "http://10.0.0.1:8000")


def test_all_can_be_said():
    """The key itself: whoever names a variable of ours could have its value sent anywhere."""
    read = read_replica_form(
        b'{"name": "a", "url": "https://a", "kind": "vllm", "models": ["m"], "api_key": "k"}'
    )
    assert read == ReplicaConfig("a", "https://a", "vllm", ("m",), "k")


def test_what_is_known_of_its_cache_can_be_said_as_in_the_configuration():
    """Without a tokenizer its events would be of no use."""
    body = {
        "url": "http://a",
        "kv_events": {"endpoint": "tcp://a:5557"},
        "block_size": 16,
        "kv_capacity_tokens": 1000,
    }
    read = read_replica_form(json.dumps(body).encode())
    assert read.kv_events == KvEventsConfig(endpoint="tcp://a:5557")
    assert (read.block_size, read.kv_capacity_tokens) == (16, 1000)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "must be a JSON object"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "must be a JSON object"),
        (b"{}", "`url`"),
        (b'{"url": 7}', "Expected `str`"),
        (b'{"url": "http://a", "modles": []}', "unknown field `modles`"),
        (b'{"url": "http://a", "kind": "vlm"}', "Invalid enum value 'vlm'"),
        (b'{"url": "http://a", "models": "m"}', r"\$\.models"),
        (b'{"url": "http://a", "api_key_env": "HOME"}', "unknown field `api_key_env`"),
        (b'{"url": "http://a", "ca_file": "/etc/x"}', "unknown field `ca_file`"),
        (b'{"url": "http://a", "kv_events": {"endpint": "x"}}', "did you mean `endpoint`"),
        (b'{"url": "http://a", "tokenizer": {"path": ["x"]}}', "the body: `tokenizer.path"),
        (b'{"url": "http://a", "block_size": "16"}', r"\$\.block_size"),
        (b'{"url": "http://a", "name": "a b"}', "cannot be called 'a b'"),
        (b'{"url": "http://a", "name": "' + b"a" * 200 + b'"}', "at most 128"),
        (b'{"url": "a:8000"}', "is not an engine's URL"),
        (b'{"url": "http://u:secret@a"}', "carries credentials"),
        (b'{"url": "http://a", "api_key": "two\\nlines"}', "no HTTP header"),
        (b"[" * 100_000, "must be a JSON object"),
    ],
)
def test_what_is_wrong_is_said(body, said):
    """400 in form; no secret is in it."""
    with pytest.raises(BadRequest, match=said) as caught:
        read_replica_form(body)
    assert "secret" not in caught.value.message
    assert "lines" not in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("block_size", 0), ("block_size", -16), ("kv_capacity_tokens", -5)],
)
def test_a_number_out_of_range_is_refused(field, value):
    """As in the configuration."""
    body = json.dumps({"url": "http://10.0.0.1:8000", field: value}).encode()
    with pytest.raises(BadRequest, match=rf"`{field}` must be at least 1") as caught:
        read_replica_form(body)
    assert caught.value.param == field
