"""Lists a configuration: each value with its key and where it was set, secrets masked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from headstart.accounting.tenant import Tenant
from headstart.config.address import Address
from headstart.config.document import Origin
from headstart.config.load import LoadedConfig

_MASK = "********"

_SECRET_FIELDS = frozenset(("api_key", "admin_key", "key"))

_DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the listing.

    Attributes:
        key: dotted, as in the file: `routing.prefix_hash.load_bound`, `engines[0].url`.
        value: what is in force, as JSON can hold it; a secret is masked.
        origin: where it was set, in words.
    """

    key: str
    value: str | int | float | bool | None
    origin: str


def settings(loaded: LoadedConfig) -> list[Setting]:
    """List every value of a configuration in the order of its fields."""
    return list(_walk(loaded.config, "", loaded.origins))


def _walk(value: object, key: str, origins: Mapping[str, Origin]) -> Iterator[Setting]:
    if isinstance(value, tuple):
        if not value:
            yield _setting(key, "none", origins)
        for index, item in enumerate(value):
            yield from _walk(item, f"{key}[{index}]", origins)
    elif is_dataclass(value) and not isinstance(value, type | Address):
        for one in fields(value):
            inner = f"{key}.{one.name}" if key else one.name
            item = getattr(value, one.name)
            if isinstance(value, Tenant) and one.name == "key_sha256":
                # The hash of a weak key can be guessed from; its beginning tells keys apart.
                yield _setting(inner, f"{item.hex()[:8]}…", origins)
            elif one.name in _SECRET_FIELDS:
                yield _setting(inner, None if item is None else _MASK, origins)
            elif one.name in ("models", "shadow", "peers"):
                yield _setting(inner, ", ".join(item) or None, origins)
            else:
                yield from _walk(item, inner, origins)
    elif isinstance(value, Path | Address):
        yield _setting(key, str(value), origins)
    else:
        assert value is None or isinstance(value, str | int | float | bool)
        yield _setting(key, value, origins)


def _setting(
    key: str, value: str | int | float | bool | None, origins: Mapping[str, Origin]
) -> Setting:
    return Setting(key, value, str(_origin(key, origins)))


def _origin(key: str, origins: Mapping[str, Origin]) -> Origin:
    # A tenant's hash was made of its key, an engine's name of its URL.
    for candidate in (key, key.removesuffix("_sha256")):
        if candidate in origins:
            return origins[candidate]
    if key.endswith("].name"):
        return Origin("default", "after its URL")
    return _DEFAULT
