"""Read YAML as nodes that know their line, so that every complaint names a file and a line.

Values are taken out one by one and typed where they are wanted. Nothing is built from the document
as a whole, so aliases that would unfold to gigabytes are never unfolded.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, TypeVar

import yaml

from headstart.errors import TemplateError
from headstart.prompt.nearest import did_you_mean

E = TypeVar("E", bound=StrEnum)

_KIND_OF_TAG = {
    "tag:yaml.org,2002:str": "text",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:null": "nothing",
    "tag:yaml.org,2002:timestamp": "a date",
    "tag:yaml.org,2002:map": "a mapping",
    "tag:yaml.org,2002:seq": "a list",
}


@dataclass(frozen=True, slots=True)
class Located:
    """A YAML node, the file that it stands in, and what it is called in messages."""

    node: yaml.Node
    file: Path
    what: str

    @property
    def line(self) -> int:
        """1-based line where the node begins."""
        return int(self.node.start_mark.line) + 1

    def fail(self, problem: str, *, line: int | None = None) -> NoReturn:
        """Raise a TemplateError that begins with `file:line`."""
        raise TemplateError(f"{self.file}:{line or self.line}: {problem}")

    def mapping(self, known: Iterable[str] | None = None) -> "LocatedMapping":
        """Return the node's fields; refuses another type, repeated keys and keys not in `known`."""
        if not isinstance(self.node, yaml.MappingNode):
            self._wrong_type("a mapping")
        allowed = None if known is None else list(known)
        fields: dict[str, Located] = {}
        for key_node, value_node in self.node.value:
            key_at = Located(key_node, self.file, f"a key of {self.what}")
            key = key_at.text()
            if allowed is not None and key not in allowed:
                key_at.fail(f"{self.what} has no key {key!r}{did_you_mean(key, allowed)}")
            if key in fields:
                key_at.fail(f"{self.what} has the key {key!r} twice; keep one")
            fields[key] = Located(value_node, self.file, f"`{key}`")
        return LocatedMapping(self, fields)

    def items(self) -> "Iterator[Located]":
        """Iterate over a list's items."""
        if not isinstance(self.node, yaml.SequenceNode):
            self._wrong_type("a list")
        for index, node in enumerate(self.node.value, start=1):
            yield Located(node, self.file, f"item {index} of {self.what}")

    def text(self) -> str:
        """Return a non-empty string; refuses numbers and booleans, which YAML may have guessed."""
        value = self._scalar("tag:yaml.org,2002:str", "text")
        if not value.strip():
            self.fail(f"{self.what} is empty")
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail(f"{self.what} holds half of a surrogate pair; write the character itself")
        return value

    def boolean(self) -> bool:
        """Return true or false."""
        return self._scalar("tag:yaml.org,2002:bool", "true or false").lower() in (
            "true",
            "yes",
            "on",
        )

    def one_of(self, options: type[E]) -> E:
        """Return a member of an enumeration by its value."""
        text = self.text()
        try:
            return options(text)
        except ValueError:
            names = [option.value for option in options]
            self.fail(f"{self.what} cannot be {text!r}{did_you_mean(text, names)}")

    def line_in_text(self, line: int) -> int:
        """Return the file's line for a 1-based line of this scalar's text (block: exact)."""
        first = self.line + 1 if getattr(self.node, "style", None) in ("|", ">") else self.line
        return min(first + line - 1, int(self.node.end_mark.line) + 1)

    def _scalar(self, tag: str, expected: str) -> str:
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag != tag:
            self._wrong_type(expected)
        return str(self.node.value)

    def _wrong_type(self, expected: str) -> NoReturn:
        found = _KIND_OF_TAG.get(self.node.tag, f"of type {self.node.tag}")
        is_guess = isinstance(self.node, yaml.ScalarNode) and expected == "text"
        hint = "; put it in quotes" if is_guess and found != "nothing" else ""
        self.fail(f"{self.what} must be {expected}, not {found}{hint}")


@dataclass(frozen=True, slots=True)
class LocatedMapping:
    """The fields of a mapping node."""

    at: Located
    fields: Mapping[str, Located]

    def get(self, key: str) -> Located | None:
        """Return a field, or None if it is not there."""
        return self.fields.get(key)

    def need(self, key: str) -> Located:
        """Return a field that must be there."""
        found = self.fields.get(key)
        if found is None:
            self.at.fail(f"{self.at.what} needs `{key}`")
        return found


def read_yaml(text: str, file: Path, what: str) -> Located:
    """Return the document's root; does not build values from it.

    Raises:
        TemplateError: not one YAML document, or nested beyond reason.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = mark.line + 1 if mark else 1
        raise TemplateError(f"{file}:{line}: not valid YAML: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise TemplateError(f"{file}:1: not valid YAML: {exc}".splitlines()[0]) from exc
    except RecursionError:
        raise TemplateError(f"{file}:1: is nested too deeply") from None
    if node is None:
        raise TemplateError(f"{file}:1: is empty; a template needs `id`, `model` and `segments`")
    return Located(node, file, what)
