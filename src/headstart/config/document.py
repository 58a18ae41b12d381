"""A configuration source as a tree in which each value knows where it stands.

YAML is read by the rules of version 1.2: `off` and `no` are text, `true` is not. A tenant may be
called `no`, and `1:30` is not ninety.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from headstart.errors import ConfigError

OriginKind = Literal["default", "file", "environment", "flag"]

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was set.

    Attributes:
        kind: which source won.
        place: `headstart.yaml:3`, `HEADSTART_LISTEN`, `--port`; for a default, how it was derived
            or nothing.
        base: what a relative path is relative to.
    """

    kind: OriginKind
    place: str = ""
    base: Path = Path()

    def __str__(self) -> str:
        if self.kind == "default":
            return f"default ({self.place})" if self.place else "default"
        return self.place


@dataclass(frozen=True, slots=True)
class Node:
    """A value, or a mapping or list of nodes, with its origin."""

    value: "Scalar | dict[str, Node] | list[Node]"
    origin: Origin


def merge(low: Node, high: Node) -> Node:
    """Return `low` with everything that `high` sets; lists and scalars are replaced whole."""
    if isinstance(low.value, dict) and isinstance(high.value, dict):
        merged = dict(low.value)
        for key, node in high.value.items():
            merged[key] = merge(merged[key], node) if key in merged else node
        return Node(merged, low.origin)
    return high


def nest(values: Mapping[str, Node], origin: Origin) -> Node:
    """Build a tree from dotted keys, none of which is a prefix of another."""
    root: dict[str, Node] = {}
    for key, node in values.items():
        *parents, leaf = key.split(".")
        mapping = root
        for parent in parents:
            inner = mapping.setdefault(parent, Node({}, origin)).value
            assert isinstance(inner, dict)
            mapping = inner
        mapping[leaf] = node
    return Node(root, origin)


def read_document(path: Path) -> Node:
    """Read a YAML file whose root is a mapping; an empty file is an empty mapping.

    Raises:
        ConfigError: it cannot be read, is not YAML, repeats a key, or its root is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 (byte {error.start})") from error
    return parse_document(text, path)


def parse_document(text: str, path: Path) -> Node:
    """Parse what `read_document` reads; `path` names it and is what its paths are relative to."""
    base = path.absolute().parent
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())  # for messages: people know where they are
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: this is not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not YAML: {error}") from error
    if root is None:
        return Node({}, Origin("file", str(path), base))
    node = _Converter(path, base).convert(root, ())
    if not isinstance(node.value, dict):
        raise ConfigError(f"{node.origin}: a configuration is a mapping of keys to values")
    return node


def _core_schema() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Build what PyYAML asks of a loader: by first character, the tags a plain scalar may have."""
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    number = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    for tag, pattern, first_characters in (
        ("null", r"(?:~|null|Null|NULL|)", ("~", "n", "N", "")),
        ("bool", r"(?:true|True|TRUE|false|False|FALSE)", "tTfF"),
        ("int", r"[-+]?[0-9]+", "-+0123456789"),
        ("float", number, "-+.0123456789"),
    ):
        rule = (f"tag:yaml.org,2002:{tag}", re.compile(f"^{pattern}$"))
        for character in first_characters:
            resolvers.setdefault(character, []).append(rule)
    return resolvers


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars by YAML 1.2's core schema."""

    yaml_implicit_resolvers = _core_schema()


class _Converter:
    """Turns PyYAML's nodes into ours."""

    def __init__(self, path: Path, base: Path) -> None:
        self._path = path
        self._base = base

    def convert(self, node: yaml.Node, parents: tuple[yaml.Node, ...]) -> Node:
        origin = self._origin(node)
        if any(node is parent for parent in parents):
            raise ConfigError(f"{origin}: this value contains itself")
        if isinstance(node, yaml.MappingNode):
            return Node(self._mapping(node, (*parents, node)), origin)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.convert(item, (*parents, node)) for item in node.value], origin)
        return Node(self._scalar(node, origin), origin)

    def _mapping(self, node: yaml.MappingNode, parents: tuple[yaml.Node, ...]) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        for key_node, value_node in node.value:
            origin = self._origin(key_node)
            key = key_node.value
            if not isinstance(key, str):
                raise ConfigError(f"{origin}: a key is a word, not a list or mapping")
            if key in entries:
                raise ConfigError(f"{origin}: `{key}` is set twice; keep one of them")
            value = self.convert(value_node, parents)
            # The key's line, not the value's: that is where people look for a nested mapping.
            entries[key] = Node(value.value, origin)
        return entries

    def _scalar(self, node: yaml.Node, origin: Origin) -> Scalar:
        kind = node.tag.rpartition(":")[2]
        text = str(node.value)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        try:
            if kind == "int":
                return int(text)
            if kind == "float":
                return float(text)
        except ValueError as error:
            raise ConfigError(f"{origin}: `{text}` is not a number") from error
        if kind != "str":
            raise ConfigError(f"{origin}: the tag {node.tag} is not allowed; write plain values")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{origin}: a text holds half of a surrogate pair; write the character itself"
            ) from error
        return text

    def _origin(self, node: yaml.Node) -> Origin:
        return Origin("file", f"{self._path}:{node.start_mark.line + 1}", self._base)
