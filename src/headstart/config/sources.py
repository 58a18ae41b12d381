"""Engines that the configuration does not name one by one: `dns`, `file` and `kubernetes`.

Such an entry of `engines` has the keys of any other but `name` and `url`; they hold for every
replica that is found.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from headstart.config.document import Node, read_document
from headstart.config.entries import check_unique, read_engine
from headstart.config.values import (
    Reading,
    check_keys,
    list_of,
    mapping_of,
    read_scalar,
    read_text,
)
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.build import SourceEntry
from headstart.engines.discovery.dns import DnsConfig
from headstart.engines.discovery.file import FileConfig
from headstart.engines.discovery.kubernetes import KubernetesConfig
from headstart.engines.discovery.source import plain_http
from headstart.errors import ConfigError

SOURCE_KEYS: Final = ("dns", "file", "kubernetes")

KUBERNETES_KEYS: Final = ("service", "namespace", "port", "api_url", "account_dir")

_HTTP_PORT: Final = 80
_OWN_KEYS: Final = ("name", "url")


def read_engine_list(
    node: Node, environment: Mapping[str, str], reading: Reading
) -> tuple[tuple[ReplicaConfig, ...], tuple[SourceEntry, ...]]:
    """Read the list of engines: those that it names, and where others are to be found.

    Raises:
        ConfigError: an entry cannot be used, or two have one name.
    """
    reading.note("engines", node.origin)
    engines: list[ReplicaConfig] = []
    sources: list[SourceEntry] = []
    for i, item in enumerate(list_of(node, "engines")):
        key = f"engines[{i}]"
        if mapping_of(item, key).keys() & set(SOURCE_KEYS):
            sources.append(_read_source(item, key, environment, reading))
        else:
            engines.append(read_engine(item, key, environment, reading))
    check_unique(node, "engines", (engine.name for engine in engines))
    return tuple(engines), tuple(sources)


def read_engines_file(
    path: Path, template: ReplicaConfig, environment: Mapping[str, str]
) -> tuple[ReplicaConfig, ...]:
    """Read a file that lists engines: one key, `engines`, as in the configuration.

    Args:
        path: YAML or JSON.
        template: what an entry leaves open.
        environment: the process's variables, for `api_key_env`.

    Raises:
        ConfigError: it cannot be read, or an entry not be used.
    """
    entries = mapping_of(read_document(path), "")
    check_keys(entries, ("engines",), "")
    if "engines" not in entries:
        raise ConfigError(f"{path} has no list `engines`; an empty one is `engines: []`")
    node = entries["engines"]
    engines = []
    for i, item in enumerate(list_of(node, "engines")):
        key = f"engines[{i}]"
        engine = read_engine(item, key, environment, Reading())
        engines.append(_completed(engine, mapping_of(item, key).keys(), template))
    check_unique(node, "engines", (engine.name for engine in engines))
    return tuple(engines)


def _completed(
    engine: ReplicaConfig, given: Collection[str], template: ReplicaConfig
) -> ReplicaConfig:
    """Return `engine` with what its entry leaves open as in the template."""
    # A secret's place is named by `api_key_env` or `api_key_file`.
    known = {name.removesuffix("_env").removesuffix("_file") for name in given} | set(given)
    left_open = {
        one.name: getattr(template, one.name)
        for one in fields(ReplicaConfig)
        if one.name not in known and one.name not in _OWN_KEYS
    }
    return replace(engine, **left_open)


def _read_source(
    node: Node, key: str, environment: Mapping[str, str], reading: Reading
) -> SourceEntry:
    entries = mapping_of(node, key)
    kinds = [kind for kind in SOURCE_KEYS if kind in entries]
    wrong = [name for name in _OWN_KEYS if name in entries]
    if len(kinds) > 1 or wrong:
        raise ConfigError(
            f"{node.origin}: `{key}` has `{kinds[0]}` and `{(kinds[1:] + wrong)[0]}`; what is "
            "found there has names and addresses of its own",
            param=key,
        )
    (kind,) = kinds
    rest = {name: value for name, value in entries.items() if name != kind}
    # Its place is filled in with each replica that is found; all else is checked now.
    whole = Node({**rest, "url": Node("http://found", node.origin)}, node.origin)
    template = read_engine(whole, key, environment, reading)
    reading.origins.pop(f"{key}.url", None)
    inner = f"{key}.{kind}"
    if kind == "kubernetes":
        return SourceEntry(_read_kubernetes(entries[kind], inner, reading), template)
    if kind == "file":
        return SourceEntry(FileConfig(read_scalar(entries[kind], Path, inner, reading)), template)
    return SourceEntry(_read_dns(entries[kind], inner, reading), template)


def _read_dns(node: Node, key: str, reading: Reading) -> DnsConfig:
    try:
        host, port = plain_http(read_text(node, key, reading), _HTTP_PORT)
    except ConfigError as error:
        if error.param == key:
            raise
        raise ConfigError(f"{node.origin}: {error.message}", param=key) from error
    return DnsConfig(host, port)


def _read_kubernetes(node: Node, key: str, reading: Reading) -> KubernetesConfig:
    entries = mapping_of(node, key)
    check_keys(entries, KUBERNETES_KEYS, key)
    if "service" not in entries:
        raise ConfigError(
            f"{node.origin}: `{key}` has no service; write e.g. "
            "`kubernetes: {service: vllm, namespace: default, port: http}`",
            param=f"{key}.service",
        )
    read: dict[str, Any] = {
        name: read_text(entries[name], f"{key}.{name}", reading)
        for name in ("service", "namespace", "api_url")
        if name in entries
    }
    if "account_dir" in entries:
        read["account_dir"] = read_scalar(
            entries["account_dir"], Path, f"{key}.account_dir", reading
        )
    if "port" in entries:
        kind = int if type(entries["port"].value) is int else str
        read["port"] = read_scalar(entries["port"], kind, f"{key}.port", reading)
    if not read.get("api_url", "https://").startswith(("https://", "http://")):
        raise ConfigError(
            f"{entries['api_url'].origin}: `{key}.api_url` is no URL; leave it out inside of a "
            "cluster, or write https://host:port",
            param=f"{key}.api_url",
        )
    return KubernetesConfig(**read)
