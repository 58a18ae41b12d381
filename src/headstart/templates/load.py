"""Read one template from its YAML file and check everything that can be checked before a request.

`docs/templates.md` is the form's reference. Each error begins with `file:line`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import TemplateError
from headstart.prompt.body import lay_out_static
from headstart.prompt.documents import DocumentOrder
from headstart.prompt.nearest import did_you_mean
from headstart.prompt.segments import (
    ROLES,
    ExamplesSegment,
    HistorySegment,
    PromptForm,
    Role,
    SchemaSegment,
    Segment,
    SegmentKind,
    TextSegment,
    ToolsSegment,
    Variable,
)
from headstart.prompt.text import (
    TextRenderError,
    TextSyntaxError,
    TextTemplate,
    compile_text,
    reserved_names,
)
from headstart.templates.files import read_messages, read_schema, read_text, read_tools, resolve
from headstart.templates.model import CacheStrategy, Template
from headstart.templates.yaml_nodes import Located, LocatedMapping, read_yaml

_TEMPLATE_KEYS = ("id", "model", "cache_strategy", "variables", "segments")
_SEGMENT_KEYS = ("name", "role", "kind", "strict")
_SOURCES = (
    "text",
    "text_file",
    "tools_file",
    "output_schema_file",
    "messages_file",
    "history",
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SEGMENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def load_template(path: Path, *, root: Path | None = None) -> Template:
    """Read and check a template; does not name a version.

    Args:
        path: the YAML file.
        root: folder that referenced files may not leave; default the file's own.

    Raises:
        TemplateError: with the file and the line of the fault.
    """
    document = read_yaml(read_text(path), path, "the template")
    return _Loader(root or path.parent).template(document)


@dataclass(frozen=True, slots=True)
class _Declared:
    variable: Variable
    at: Located


@dataclass(frozen=True, slots=True)
class _TextOrigin:
    """Where a segment's text stands: in the template's YAML or in a file of its own."""

    source: str
    at: Located
    file: Path | None

    def fail(self, problem: str, line: int) -> TemplateError:
        if self.file is not None:
            return TemplateError(f"{self.file}:{line}: {problem}")
        return TemplateError(f"{self.at.file}:{self.at.line_in_text(line)}: {problem}")


class _Loader:
    """Carries the folder and what has been read so far through one template."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._declared: dict[str, _Declared] = {}
        self._used: set[str] = set()

    def template(self, document: Located) -> Template:
        fields = document.mapping(_TEMPLATE_KEYS)
        template_id = _name(fields.need("id"), _ID, "letters, digits, `.`, `_`, `-`")
        model = fields.need("model").text()
        strategy = CacheStrategy.PREFIX_CACHE_FIRST
        if declared := fields.get("cache_strategy"):
            strategy = declared.one_of(CacheStrategy)
        if variables := fields.get("variables"):
            self._read_variables(variables)
        segments = self._segments(fields.need("segments"))
        for declaration in self._declared.values():
            if declaration.variable.name not in self._used:
                declaration.at.fail(f"the variable {declaration.variable.name!r} is never used")
        form = PromptForm(
            model, tuple(d.variable for d in self._declared.values()), tuple(segments)
        )
        return Template(template_id, document.file, strategy, form)

    def _read_variables(self, at: Located) -> None:
        reserved = reserved_names()
        for name, value in at.mapping().fields.items():
            what = Located(value.node, value.file, f"the variable {name!r}")
            if not _VARIABLE_NAME.fullmatch(name):
                what.fail(f"{name!r} cannot be a variable's name; use letters, digits and `_`")
            if name in reserved:
                what.fail(f"{name!r} has a meaning of its own in Jinja2; take another name")
            fields = what.mapping(("kind", "order"))
            kind_at = fields.need("kind")
            kind = kind_at.one_of(SegmentKind)
            if kind is SegmentKind.STATIC:
                kind_at.fail(
                    f"the variable {name!r} cannot be static; write what never changes in the text"
                )
            order_at = fields.get("order")
            order = order_at.one_of(DocumentOrder) if order_at else None
            self._declared[name] = _Declared(Variable(name, kind, order), what)

    def _segments(self, at: Located) -> list[Segment]:
        segments: list[Segment] = []
        for item in at.items():
            segment = self._segment(item)
            for earlier in segments:
                _check_pair(earlier, segment, item)
            segments.append(segment)
        if not segments:
            at.fail("`segments` is empty; a template needs at least one")
        return segments

    def _segment(self, at: Located) -> Segment:
        fields = at.mapping((*_SEGMENT_KEYS, *_SOURCES))
        name = _name(fields.need("name"), _SEGMENT_NAME, "letters, digits, `_`, `-`")
        named = LocatedMapping(Located(at.node, at.file, f"the segment {name!r}"), fields.fields)
        kind = named.need("kind").one_of(SegmentKind)
        source = _only_source(named)
        if source in ("text", "text_file"):
            _refuse_keys(named, ("strict",), f"a segment with `{source}`")
            return self._text_segment(name, kind, source, named)
        is_schema = source == "output_schema_file"
        refused = ("role",) if is_schema else ("role", "strict")
        _refuse_keys(named, refused, f"a segment with `{source}`")
        return self._other_segment(name, kind, source, named)

    def _other_segment(
        self, name: str, kind: SegmentKind, source: str, fields: LocatedMapping
    ) -> Segment:
        needed = SegmentKind.SESSION if source == "history" else SegmentKind.STATIC
        if kind is not needed:
            fields.need("kind").fail(f"a segment with `{source}` must have `kind: {needed}`")
        reference = fields.need(source)
        if source == "history":
            if not reference.boolean():
                reference.fail("`history` can only be true; leave the segment out instead")
            return HistorySegment(name)
        path = resolve(reference, self._root)
        if source == "tools_file":
            return ToolsSegment(name, read_tools(path))
        if source == "messages_file":
            return ExamplesSegment(name, read_messages(path))
        strict_at = fields.get("strict")
        return SchemaSegment(
            name, read_schema(path), is_strict=strict_at.boolean() if strict_at else True
        )

    def _text_segment(
        self, name: str, kind: SegmentKind, source: str, fields: LocatedMapping
    ) -> TextSegment:
        role = _role(fields.need("role"))
        at = fields.need(source)
        path = resolve(at, self._root) if source == "text_file" else None
        origin = _TextOrigin(at.text() if path is None else read_text(path), at, path)
        try:
            text = compile_text(origin.source)
        except TextSyntaxError as exc:
            raise origin.fail(exc.problem, exc.line) from exc
        self._check_uses(name, kind, text, origin)
        segment = TextSegment(name, kind, role, text)
        if kind is SegmentKind.STATIC:
            _check_static_text(segment, origin)
        return segment

    def _check_uses(
        self, name: str, kind: SegmentKind, text: TextTemplate, origin: _TextOrigin
    ) -> None:
        for use in text.uses:
            declared = self._declared.get(use.name)
            if declared is None:
                hint = did_you_mean(use.name, self._declared)
                problem = f"the variable {use.name!r} is not declared under `variables`{hint}"
                raise origin.fail(problem, use.line)
            self._used.add(use.name)
            variable_kind = declared.variable.kind
            if variable_kind.rank > kind.rank:
                problem = (
                    f"the {variable_kind} variable {use.name!r} is used in the {kind} segment "
                    f"{name!r}; move it to a {variable_kind} segment"
                )
                raise origin.fail(problem, use.line)


def _name(at: Located, pattern: re.Pattern[str], allowed: str) -> str:
    name = at.text()
    if not pattern.fullmatch(name):
        at.fail(f"{at.what} cannot be {name!r}; use up to 64 {allowed}")
    return name


def _role(at: Located) -> Role:
    text = at.text()
    if text not in ROLES:
        at.fail(f"`role` cannot be {text!r}{did_you_mean(text, ROLES)}")
    return next(role for role in ROLES if role == text)


def _only_source(fields: LocatedMapping) -> str:
    present = [key for key in _SOURCES if fields.get(key)]
    if len(present) != 1:
        found = f"has {' and '.join(f'`{key}`' for key in present)}" if present else "has none"
        options = ", ".join(f"`{key}`" for key in _SOURCES)
        fields.at.fail(f"{fields.at.what} {found}; it needs exactly one of {options}")
    return present[0]


def _refuse_keys(fields: LocatedMapping, keys: tuple[str, ...], what: str) -> None:
    for key in keys:
        if found := fields.get(key):
            found.fail(f"{what} has no `{key}`")


def _check_pair(earlier: Segment, later: Segment, at: Located) -> None:
    if earlier.name == later.name:
        at.fail(f"the segment {later.name!r} stands twice; give one another name")
    if earlier.kind.rank > later.kind.rank:
        at.fail(
            f"the {later.kind} segment {later.name!r} stands after the {earlier.kind} segment "
            f"{earlier.name!r}; the order is static, session, dynamic"
        )
    if type(earlier) is type(later) and isinstance(
        later, ToolsSegment | SchemaSegment | HistorySegment
    ):
        at.fail(f"the segments {earlier.name!r} and {later.name!r} are of one sort; keep one")


def _check_static_text(segment: TextSegment, origin: _TextOrigin) -> None:
    """Render a static text once, so that a fault in it shows at load and not in a request."""
    try:
        text = segment.text.render({})
        lay_out_static(PromptForm("", (), (segment,)))
    except TextRenderError as exc:
        raise origin.fail(f"the segment {segment.name!r} {exc.message}", 1) from exc
    except TemplateError as exc:
        raise origin.fail(exc.message, 1) from exc
    if not text.strip():
        raise origin.fail(f"the static segment {segment.name!r} renders to nothing", 1)
