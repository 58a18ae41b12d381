"""A replica as the admin port is told of it."""

from dataclasses import replace
from typing import Any, Final

import msgspec

from headstart.config.address import check_engine_url, engine_name
from headstart.config.document import Node, Origin
from headstart.config.engine_cache import CACHE_KEYS, read_engine_cache
from headstart.config.values import Reading
from headstart.engines.base import EngineKind, ReplicaConfig
from headstart.engines.discovery.source import check_name
from headstart.errors import BadRequest, ConfigError


class _ReplicaForm(msgspec.Struct, forbid_unknown_fields=True):
    """What can be said of one.

    No `api_key_env` and no `api_key_file`: with these, whoever may add a replica could have any
    variable and file of the gateway's sent to a place of his own.
    """

    url: str
    name: str = ""
    kind: EngineKind = "openai-compatible"
    models: tuple[str, ...] = ()
    api_key: str | None = None
    kv_events: dict[str, object] | None = None
    tokenizer: str | dict[str, object] | None = None
    kv_capacity_tokens: int | None = None
    block_size: int | None = None


_FORM: Final = msgspec.json.Decoder(_ReplicaForm)
_KEY: Final = "engines"
"""What the ranges of its values are filed under."""

_BODY: Final = Origin("flag", "the body")


def read_replica_form(body: bytes) -> ReplicaConfig:
    """Read a replica; it is named after its place where it has no name.

    Args:
        body: JSON.

    Raises:
        BadRequest: it is none, has an unknown key, or a name, URL or key that cannot be used.
    """
    try:
        form = _FORM.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        keys = ", ".join(_ReplicaForm.__struct_fields__)
        raise BadRequest(
            f"The body must be a JSON object with a url, and can have {keys}: {error}."
        ) from error
    try:
        url = check_engine_url(form.url)
    except ConfigError as error:
        raise BadRequest(f"{error.message}.", param="url") from error
    if form.api_key is not None and not (form.api_key.isascii() and form.api_key.isprintable()):
        raise BadRequest(
            "The api_key has characters that no HTTP header may have.", param="api_key"
        )
    name = form.name or engine_name(url)
    check_name(name)
    replica = ReplicaConfig(name, url, form.kind, form.models, form.api_key)
    return replace(replica, **_read_cache(form))


def _read_cache(form: _ReplicaForm) -> dict[str, Any]:
    """Read what it says of its engine's cache, as the configuration's entries do."""
    given = {name: getattr(form, name) for name in CACHE_KEYS}
    entries = {name: _node(value) for name, value in given.items() if value is not None}
    try:
        return read_engine_cache(entries, _KEY, Reading())
    except ConfigError as error:
        message, param = error.message.replace(f"`{_KEY}.", "`"), error.param or ""
        raise BadRequest(message, param=param.removeprefix(f"{_KEY}.")) from error


def _node(value: Any) -> Node:
    if isinstance(value, dict):
        return Node({name: _node(each) for name, each in value.items()}, _BODY)
    if isinstance(value, list):
        return Node([_node(each) for each in value], _BODY)
    return Node(value, _BODY)
