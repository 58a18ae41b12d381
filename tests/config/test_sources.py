"""`dns`, `file` and `kubernetes` among the engines."""

from pathlib import Path

import pytest

from headstart.config.document import parse_document
from headstart.config.sources import read_engine_list, read_engines_file
from headstart.config.values import Reading
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.dns import DnsConfig
from headstart.engines.discovery.file import FileConfig
from headstart.engines.discovery.kubernetes import KubernetesConfig
from headstart.errors import ConfigError

ENVIRONMENT = {"KEY": "sk-1", "OTHER": "sk-2"}


def read(text, folder=Path("/conf")):
    node = parse_document(text, folder / "headstart.yaml")
    return read_engine_list(node.value["engines"], ENVIRONMENT, Reading())


def test_engines_and_sources_stand_in_one_list():
    """With the same keys, which hold for every replica that is found."""
    engines, sources = read(
        "engines:\n"
        "- {name: a, url: http://a:8000}\n"
        "- {dns: vllm.default.svc:8000, kind: vllm, models: [m], api_key_env: KEY}\n"
        "- {kubernetes: {service: vllm, namespace: ml, port: http}, kind: sglang}\n"
        "- {file: engines.yaml}\n"
    )
    assert engines == (ReplicaConfig("a", "http://a:8000"),)
    dns, kubernetes, file = sources
    assert dns.where == DnsConfig("vllm.default.svc", 8000)
    assert (dns.template.kind, dns.template.models) == ("vllm", ("m",))
    assert dns.template.api_key == "sk-1"
    assert kubernetes.where == KubernetesConfig("vllm", "ml", "http")
    assert kubernetes.template.kind == "sglang"
    assert file.where == FileConfig(Path("/conf/engines.yaml"))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("vllm", DnsConfig("vllm", 80)),
        ("vllm.svc.cluster.local.:8000", DnsConfig("vllm.svc.cluster.local.", 8000)),
        ("10.0.0.1:8000", DnsConfig("10.0.0.1", 8000)),
        ("'[fd00::1]:8000'", DnsConfig("fd00::1", 8000)),
    ],
)
def test_a_name_has_a_port_or_that_of_http(text, where):
    """As a URL has."""
    _engines, (source,) = read(f"engines: [{{dns: {text}}}]")
    assert source.where == where


def test_a_port_in_kubernetes_is_a_name_or_a_number():
    """As in every manifest."""
    text = "engines: [{kubernetes: {service: vllm, port: 8000, api_url: 'http://127.0.0.1:8001'}}]"
    _engines, (source,) = read(text)
    assert source.where == KubernetesConfig("vllm", port=8000, api_url="http://127.0.0.1:8001")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{dns: vllm, file: x}", "has `dns` and `file`"),
        ("{dns: vllm, name: a}", "has `dns` and `name`"),
        ("{dns: vllm, url: 'http://a'}", "has `dns` and `url`"),
        ("{dns: 'http://vllm:80'}", "is not a name with a port"),
        ("{dns: 'vllm:99999'}", "is not a name with a port"),
        ("{dns: ''}", "is empty"),
        ("{dns: [a]}", "must be"),
        ("{dns: vllm, api_key: x}", "would keep a secret"),
        ("{dns: vllm, modles: [m]}", "did you mean `models`"),
        ("{kubernetes: {service: vllm, prot: 1}}", "did you mean `port`"),
        ("{kubernetes: {port: 1}}", "has no service"),
        ("{kubernetes: vllm}", "must be a mapping"),
        ("{kubernetes: {service: vllm, api_url: 'localhost:1'}}", "is no URL"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(entry, said):
    """As everywhere in the configuration."""
    with pytest.raises(ConfigError, match=said) as caught:
        read(f"engines:\n- {entry}")
    assert "headstart.yaml:2" in caught.value.message


def test_two_engines_cannot_have_one_name():
    """Sources or not."""
    with pytest.raises(ConfigError, match="two engines are called `a`"):
        read("engines: [{name: a, url: 'http://a'}, {dns: vllm}, {name: a, url: 'http://b'}]")


TEMPLATE = ReplicaConfig("", "", kind="vllm", models=("m",), api_key="sk-1")


def test_a_file_of_engines_is_read_over_the_template(tmp_path):
    """What an entry says goes before; JSON is YAML."""
    path = tmp_path / "engines.json"
    path.write_text(
        '{"engines": [{"url": "http://a:8000"},'
        ' {"name": "b", "url": "http://b", "kind": "sglang", "models": [],'
        ' "api_key_env": "OTHER"}]}'
    )
    first, second = read_engines_file(path, TEMPLATE, ENVIRONMENT)
    assert first == ReplicaConfig("a:8000", "http://a:8000", "vllm", ("m",), "sk-1")
    assert second == ReplicaConfig("b", "http://b", "sglang", (), "sk-2")


def test_a_file_without_engines_says_so_or_lists_none(tmp_path):
    """An empty file is a mistake, an empty list is not."""
    path = tmp_path / "engines.yaml"
    path.write_text("engines: []")
    assert read_engines_file(path, TEMPLATE, {}) == ()
    path.write_text("")
    with pytest.raises(ConfigError, match="has no list `engines`"):
        read_engines_file(path, TEMPLATE, {})


@pytest.mark.parametrize(
    "text",
    ["engines: [", "engines: 7", "engines: [{dns: x}]", "tenants: []", "engines: [{url: ftp://x}]"],
)
def test_a_broken_file_is_an_error(tmp_path, text):
    """Files do not name further sources."""
    path = tmp_path / "engines.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_engines_file(path, TEMPLATE, {})
