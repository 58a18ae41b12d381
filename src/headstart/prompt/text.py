"""A segment's text: Jinja2 in a sandbox, and values that are data and never template source.

What this environment takes away, and why:
- includes, imports and inheritance: a segment is one text, complete where it stands;
- `lipsum`, `random`, `shuffle` and whatever prints an object's address: two processes must render
  the same bytes;
- printing anything but JSON values: a function or a generator has no stable text;
- unbounded output: ranges, repetition and the text as a whole have limits.

A string is inserted as it is, an integer as its digits, everything else as canonical JSON. A value
that contains `{{` is inserted as those characters: rendering happens once.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headstart.errors import HeadstartError, TemplateError
from headstart.prompt.canonical_json import CanonicalJsonError, canonicalize
from headstart.prompt.documents import DocumentList

MAX_TEXT_CHARS = 8_000_000
"""Longest text that one segment may render to; about two million tokens."""

_MAX_REPEAT = 100_000

_REMOVED_GLOBALS = ("lipsum", "joiner", "cycler")
_REMOVED_FILTERS = ("random", "pprint", "xmlattr", "urlize")

_RENDER_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a text's own expressions can raise on values that its author did not expect."""


class TextSyntaxError(TemplateError):
    """The text is not usable Jinja2; `line` is 1-based in the text itself."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


class TextRenderError(TemplateError):
    """The text cannot be rendered with these values. The message never contains a value."""


@dataclass(frozen=True, slots=True)
class VariableUse:
    """A variable that a text reads; `line` is 1-based in the text, of its first use."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """Compiled text; knows its variables, not their kinds.

    Attributes:
        source: the text with line feeds as its only line ends, and without the last one.
        uses: variables in the order of their first use.
    """

    source: str
    uses: tuple[VariableUse, ...]
    _render: Callable[[Mapping[str, object]], str]

    def render(self, values: Mapping[str, object]) -> str:
        """Return the text with `values` inserted; a value is data, never template source.

        Args:
            values: one for each variable in `uses`; JSON values or `DocumentList`s.

        Raises:
            TextRenderError: an expression does not fit the values, or the text is too long.
        """
        return self._render(values)


def compile_text(source: str) -> TextTemplate:
    """Compile a segment's text; does not render it.

    Raises:
        TextSyntaxError: not valid Jinja2, or it asks for another file.
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
    environment = _make_environment()
    try:
        tree = environment.parse(source)
        compiled = environment.from_string(source)
    except jinja2.TemplateSyntaxError as exc:
        raise TextSyntaxError(f"not valid Jinja2: {exc.message}", exc.lineno) from exc
    except (jinja2.TemplateError, RecursionError, OverflowError) as exc:
        raise TextSyntaxError(f"not usable Jinja2: {type(exc).__name__}", 1) from exc
    for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        raise TextSyntaxError(
            "a segment cannot include, import or extend another text", node.lineno
        )
    known = environment.globals
    names = {name for name in meta.find_undeclared_variables(tree) if name not in known}
    lines: dict[str, int] = {}
    for name_node in tree.find_all(nodes.Name):
        if name_node.name in names:
            lines.setdefault(name_node.name, name_node.lineno)
            lines[name_node.name] = min(lines[name_node.name], name_node.lineno)
    ordered = sorted(lines.items(), key=lambda item: (item[1], item[0]))
    uses = tuple(VariableUse(name, line) for name, line in ordered)
    return TextTemplate(source, uses, lambda values: _render(compiled, values))


def reserved_names() -> frozenset[str]:
    """Return names that a text gives a meaning of its own, so that no variable can have them."""
    own = {"loop", "self", "super", "caller", "varargs", "kwargs", "true", "false", "none"}
    return frozenset(own | set(_make_environment().globals))


def _render(compiled: jinja2.Template, values: Mapping[str, object]) -> str:
    parts: list[str] = []
    num_chars = 0
    try:
        for part in compiled.generate(values):
            parts.append(part)
            num_chars += len(part)
            if num_chars > MAX_TEXT_CHARS:
                raise TextRenderError(f"renders to more than {MAX_TEXT_CHARS:,} characters")
    except CanonicalJsonError as exc:
        # Not its path: keys of a value are prompt text too.
        raise TextRenderError(f"prints a value that has no stable text: {exc.problem}") from exc
    except HeadstartError:
        raise
    except jinja2.UndefinedError as exc:
        raise TextRenderError(
            "asks a variable for a field or an item that the given value does not have"
        ) from exc
    except _RENDER_FAULTS as exc:
        # The message of `exc` can quote a value, which is prompt text: only its kind is told.
        raise TextRenderError(
            f"has an expression that does not fit the given values ({type(exc).__name__})"
        ) from exc
    return "".join(parts)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with bounded repetition."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Refuse powers and repetitions that would fill the memory."""
        if operator == "**" and not (abs(left) <= _MAX_REPEAT and abs(right) <= 64):
            raise TextRenderError("raises a number to a power beyond the limit of 64")
        for value, count in ((left, right), (right, left)):
            repeats = isinstance(value, str | list | tuple) and isinstance(count, int)
            if repeats and len(value) * count > _MAX_REPEAT:
                raise TextRenderError(f"repeats a value to more than {_MAX_REPEAT:,} items")
        return super().call_binop(context, operator, left, right)


def _make_environment() -> _Sandbox:
    environment = _Sandbox(
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        finalize=_to_text,
        newline_sequence="\n",
        keep_trailing_newline=True,
        loader=None,
        cache_size=0,
    )
    for name in _REMOVED_GLOBALS:
        del environment.globals[name]
    for name in _REMOVED_FILTERS:
        del environment.filters[name]
    environment.filters["tojson"] = _to_json
    return environment


def _to_text(value: object) -> object:
    """Return the characters for a value that stands in `{{ }}`."""
    if isinstance(value, str | jinja2.Undefined):
        return value
    if isinstance(value, DocumentList):
        return value.text
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or isinstance(value, bool | float | dict | list | tuple):
        return canonicalize(value).decode()
    raise TextRenderError(
        f"prints a {type(value).__name__}, which has no stable text; print a value from it"
    )


def _to_json(value: object, indent: int | None = None) -> str:
    """Return canonical JSON, or with `indent` the same keys and numbers spread over lines."""
    if isinstance(value, DocumentList):
        value = list(value)
    data = canonicalize(value)
    if indent is None:
        return data.decode()
    return json.dumps(json.loads(data), ensure_ascii=False, indent=min(max(indent, 0), 16))
