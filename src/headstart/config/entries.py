"""The two lists of a configuration: engines and tenants."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from headstart.accounting.tenant import Tenant, TenantLimits
from headstart.config.address import check_engine_url, engine_name
from headstart.config.document import Node
from headstart.config.engine_cache import read_engine_cache
from headstart.config.schema import ENGINE_KEYS, TENANT_KEYS
from headstart.config.secrets import read_secret, refuse_literal
from headstart.config.values import (
    Reading,
    check_keys,
    list_of,
    mapping_of,
    read_scalar,
    read_section,
    read_text,
    read_texts,
)
from headstart.engines.base import EngineKind, ReplicaConfig
from headstart.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/\[\]-]{0,127}")
"""What a name may be: it appears in headers, labels and URLs."""

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def read_tenants(
    node: Node, environment: Mapping[str, str], reading: Reading
) -> tuple[Tenant, ...]:
    """Read the list of tenants.

    Raises:
        ConfigError: an entry cannot be used, or two have one name or one key.
    """
    reading.note("tenants", node.origin)
    tenants = tuple(
        _read_tenant(item, f"tenants[{i}]", environment, reading)
        for i, item in enumerate(list_of(node, "tenants"))
    )
    check_unique(node, "tenants", (tenant.name for tenant in tenants))
    owners: dict[bytes, str] = {}
    for tenant in tenants:
        owner = owners.setdefault(tenant.key_sha256, tenant.name)
        if owner != tenant.name:
            raise ConfigError(
                f"{node.origin}: `{owner}` and `{tenant.name}` have the same key; "
                "give each tenant its own",
                param="tenants",
            )
    return tenants


def read_engine(
    node: Node, key: str, environment: Mapping[str, str], reading: Reading
) -> ReplicaConfig:
    """Read one entry of the list of engines.

    Raises:
        ConfigError: it cannot be used.
    """
    entries = mapping_of(node, key)
    refuse_literal(entries, "api_key", f"{key}.api_key")
    check_keys(entries, ENGINE_KEYS, key)
    if "url" not in entries:
        raise ConfigError(
            f"{node.origin}: `{key}` has no url; write e.g. `url: http://127.0.0.1:8000`",
            param=f"{key}.url",
        )
    url = _url(entries["url"], f"{key}.url", reading)
    kind: EngineKind = "openai-compatible"
    if "kind" in entries:
        kind = read_scalar(entries["kind"], EngineKind, f"{key}.kind", reading)
    ca_file = None
    if "ca_file" in entries:
        ca_file = _readable_file(entries["ca_file"], f"{key}.ca_file", reading)
    return ReplicaConfig(
        name=_name(entries, key, reading) if "name" in entries else engine_name(url),
        url=url,
        kind=kind,
        models=read_texts(entries["models"], f"{key}.models", reading)
        if "models" in entries
        else (),
        api_key=read_secret(entries, "api_key", f"{key}.api_key", environment, reading),
        ca_file=ca_file,
        **read_engine_cache(entries, key, reading),
    )


def _read_tenant(node: Node, key: str, environment: Mapping[str, str], reading: Reading) -> Tenant:
    entries = mapping_of(node, key)
    refuse_literal(entries, "key", f"{key}.key")
    check_keys(entries, TENANT_KEYS, key)
    if "name" not in entries:
        raise ConfigError(f"{node.origin}: `{key}` has no name", param=f"{key}.name")
    business_line = ""
    if "business_line" in entries:
        business_line = read_text(entries["business_line"], f"{key}.business_line", reading)
    return Tenant(
        name=_name(entries, key, reading),
        key_sha256=_key_hash(node, entries, key, environment, reading),
        business_line=business_line,
        limits=read_section(TenantLimits, entries.get("limits"), f"{key}.limits", reading),
    )


def _key_hash(
    node: Node,
    entries: dict[str, Node],
    key: str,
    environment: Mapping[str, str],
    reading: Reading,
) -> bytes:
    secret = read_secret(entries, "key", f"{key}.key", environment, reading)
    hashed = entries.get("key_sha256")
    if (secret is None) == (hashed is None):
        raise ConfigError(
            f"{node.origin}: `{key}` needs exactly one of key_env, key_file and key_sha256 "
            "(`printf %s KEY | sha256sum`)",
            param=f"{key}.key_sha256",
        )
    if secret is not None:
        return hashlib.sha256(secret.encode()).digest()
    assert hashed is not None
    text = read_text(hashed, f"{key}.key_sha256", reading)
    if not _SHA256.fullmatch(text):
        raise ConfigError(
            f"{hashed.origin}: `{key}.key_sha256` is not 64 hexadecimal digits; "
            "make them with `printf %s KEY | sha256sum`",
            param=f"{key}.key_sha256",
        )
    return bytes.fromhex(text)


def _name(entries: dict[str, Node], key: str, reading: Reading) -> str:
    node = entries["name"]
    name = read_text(node, f"{key}.name", reading)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{node.origin}: `{key}.name` cannot be {name!r}; use letters, digits and . _ - : /, "
            "at most 128",
            param=f"{key}.name",
        )
    return name


def _url(node: Node, key: str, reading: Reading) -> str:
    text = read_text(node, key, reading)
    try:
        return check_engine_url(text)
    except ConfigError as error:
        raise ConfigError(f"{node.origin}: {error.message}", param=key) from error


def _readable_file(node: Node, key: str, reading: Reading) -> str:
    path = read_scalar(node, Path, key, reading)
    if not path.is_file():
        raise ConfigError(f"{node.origin}: `{key}` is {path}, which is no file", param=key)
    return str(path)


def check_unique(node: Node, key: str, names: Iterable[str]) -> None:
    """Refuse a name that two entries have.

    Raises:
        ConfigError: there is one.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(
                f"{node.origin}: two {key} are called `{name}`; give each its own name", param=key
            )
        seen.add(name)
