"""From nodes to typed values: the checks that every key passes, whatever it configures."""

import difflib
import types
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from headstart.config.document import Node, Origin
from headstart.config.schema import AT_LEAST, MAX_SECONDS, MORE_THAN
from headstart.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """Collects the origin of each key while values are read.

    Mutates: `origins`, by dotted key; keys of list entries carry their index, `engines[0].url`.
    """

    origins: dict[str, Origin] = field(default_factory=dict)

    def note(self, key: str, origin: Origin) -> None:
        """Remember where `key` was set."""
        self.origins[key] = origin


def read_section(cls: type[T], node: Node | None, key: str, reading: Reading) -> T:
    """Build a component's configuration; what is not set keeps the component's default.

    Args:
        cls: a dataclass whose fields are scalars, tuples of one kind of scalar, or dataclasses.
        node: the mapping, or None if the whole section is absent.
        key: the section's dotted key.
        reading: takes the origins.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range.
    """
    assert is_dataclass(cls)
    entries = {} if node is None else mapping_of(node, key)
    section_fields = fields(cls)
    check_keys(entries, (one.name for one in section_fields), key)
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for one in section_fields:
        inner_key = f"{key}.{one.name}"
        inner = entries.get(one.name)
        hint = hints[one.name]
        if is_dataclass(hint) and isinstance(hint, type):
            values[one.name] = read_section(hint, inner, inner_key, reading)
        elif inner is None:
            assert not _is_required(one), f"{inner_key} has no default"
            reading.note(inner_key, Origin("default"))
        elif get_origin(hint) is tuple:
            values[one.name] = _read_list(inner, get_args(hint)[0], inner_key, reading)
        else:
            values[one.name] = read_scalar(inner, hint, inner_key, reading)
    return cls(**values)


def _read_list(node: Node, hint: Any, key: str, reading: Reading) -> tuple[Any, ...]:
    """Return a list of values of one type; a variable of the environment has commas between."""
    reading.note(key, node.origin)
    if isinstance(node.value, str) and node.origin.kind == "environment":
        texts = node.value.replace(",", " ").split()
        node = Node([Node(text, node.origin) for text in texts], node.origin)
    items = list_of(node, key)
    return tuple(read_scalar(item, hint, f"{key}[{i}]", Reading()) for i, item in enumerate(items))


def read_scalar(node: Node, hint: Any, key: str, reading: Reading) -> Any:
    """Return the node's value as `hint` wants it: int, float, bool, str, Path, Literal, or None.

    Raises:
        ConfigError: the value has another type, is no choice of the Literal, or out of range.
    """
    reading.note(key, node.origin)
    value: object = node.value
    if isinstance(value, dict | list):
        raise _wrong(node, key, "a single value")
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        if value is None and len(options) < len(get_args(hint)):
            return None
        assert len(options) == 1, f"{key}: {hint} is no type of a configuration key"
        hint = options[0]
    if get_origin(hint) is Literal:
        return _choice(node, get_args(hint), key)
    if hint is Path:
        return _path(node, key)
    if node.origin.kind == "environment" and hint is not str:
        value = _from_text(str(value))
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise _wrong(node, key, _TYPE_NAMES[hint])
    return _in_range(value, node, key)


def read_text(node: Node, key: str, reading: Reading) -> str:
    """Return the node's text, which must not be empty.

    Raises:
        ConfigError: it is no text, or empty.
    """
    text = read_scalar(node, str, key, reading)
    assert isinstance(text, str)
    if not text.strip():
        raise ConfigError(f"{node.origin}: `{key}` is empty", param=key)
    return text


def read_texts(node: Node, key: str, reading: Reading) -> tuple[str, ...]:
    """Return a list of texts.

    Raises:
        ConfigError: it is no list, or an entry is no text.
    """
    items = list_of(node, key)
    reading.note(key, node.origin)
    return tuple(read_text(item, f"{key}[{i}]", Reading()) for i, item in enumerate(items))


def mapping_of(node: Node, key: str) -> dict[str, Node]:
    """Return the node's entries; nothing after the colon is an empty mapping.

    Raises:
        ConfigError: it is something else.
    """
    if node.value is None:
        return {}
    if not isinstance(node.value, dict):
        raise _wrong(node, key, "a mapping of keys to values")
    return node.value


def list_of(node: Node, key: str) -> list[Node]:
    """Return the node's items; nothing after the colon is an empty list.

    Raises:
        ConfigError: it is something else.
    """
    if node.value is None:
        return []
    if not isinstance(node.value, list):
        raise _wrong(node, key, "a list")
    return node.value


def check_keys(entries: dict[str, Node], known: Iterable[str], key: str) -> None:
    """Refuse a key that nothing reads, and name the nearest that something does.

    Raises:
        ConfigError: there is one.
    """
    names = list(known)
    for name, node in entries.items():
        if name not in names:
            full = f"{key}.{name}" if key else name
            raise ConfigError(
                f"{node.origin}: there is no key `{full}`; {nearest(name, names)}", param=full
            )


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which of `known` was probably meant; all of them if none is near."""
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1)
    if matches:
        return f"did you mean `{matches[0]}`?"
    return f"choose from {', '.join(names)}"


def _choice(node: Node, choices: tuple[Any, ...], key: str) -> object:
    if node.value in choices:
        return node.value
    raise ConfigError(
        f"{node.origin}: `{key}` cannot be {node.value!r}; "
        f"{nearest(str(node.value), (str(choice) for choice in choices))}",
        param=key,
    )


def _path(node: Node, key: str) -> Path:
    if not isinstance(node.value, str) or not node.value:
        raise _wrong(node, key, "a path")
    try:
        path = Path(node.value).expanduser()
    except RuntimeError as error:  # `~nobody/x`
        raise ConfigError(
            f"{node.origin}: `{key}` is {node.value!r}: {error}", param=key
        ) from error
    return (node.origin.base / path).absolute()


def _from_text(text: str) -> object:
    """Read a variable's text as the number or boolean it spells; else it stays text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _in_range(value: object, node: Node, key: str) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        general = _without_index(key)
        # Written so that NaN, of which no comparison is true, is refused too.
        if general in AT_LEAST and not AT_LEAST[general] <= value < float("inf"):
            raise _wrong(node, key, f"at least {AT_LEAST[general]}")
        if general in MORE_THAN and not MORE_THAN[general] < value < float("inf"):
            raise _wrong(node, key, f"more than {MORE_THAN[general]}")
        if general.endswith("_s") and value > MAX_SECONDS:
            raise _wrong(node, key, f"at most {MAX_SECONDS}")
    return value


def _without_index(key: str) -> str:
    return ".".join(part.partition("[")[0] for part in key.split("."))


_TYPE_NAMES: dict[type, str] = {
    str: "text (in quotes if it looks like something else)",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _wrong(node: Node, key: str, wanted: str) -> ConfigError:
    if isinstance(node.value, dict):
        found = "a mapping"
    elif isinstance(node.value, list):
        found = "a list"
    else:
        found = "empty" if node.value is None else repr(node.value)
    return ConfigError(f"{node.origin}: `{key}` must be {wanted}, and is {found}", param=key)


def _is_required(one: "Field[Any]") -> bool:
    return one.default is MISSING and one.default_factory is MISSING
