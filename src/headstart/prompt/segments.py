"""What a prompt is made of: segments, each static, session or dynamic, and variables.

The kind says for how long a segment's bytes stay the same: for every request of a template
version (static), for every request of one session (session), or for one request (dynamic). A
prefix cache reuses leading tokens only, so the kinds stand in this order and the first change in
a prompt comes as late as it can.

These are values. Reading them from files is `templates.load`; turning them and a request's
variables into messages is `prompt.assembly`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

from headstart.prompt.documents import DocumentOrder
from headstart.prompt.text import TextTemplate

Role = Literal["system", "developer", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)


class SegmentKind(StrEnum):
    """How long a segment's bytes stay the same; members stand in the order of assembly."""

    STATIC = "static"
    SESSION = "session"
    DYNAMIC = "dynamic"

    @property
    def rank(self) -> int:
        """Position in the assembled order, 0 to 2."""
        return list(SegmentKind).index(self)


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that a request brings; `order` is set for a list of documents."""

    name: str
    kind: SegmentKind
    order: DocumentOrder | None = None


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Text of one role. A static one uses no variables."""

    name: str
    kind: SegmentKind
    role: Role
    text: TextTemplate


@dataclass(frozen=True, slots=True)
class ToolsSegment:
    """Tool definitions: canonical JSON of each, sorted by function name. Always static."""

    name: str
    tools: tuple[bytes, ...]

    @property
    def kind(self) -> SegmentKind:
        """Static: tools that change per request have no place in a template."""
        return SegmentKind.STATIC


@dataclass(frozen=True, slots=True)
class SchemaSegment:
    """The answer's JSON Schema in canonical form. Always static.

    Attributes:
        name: also the name that the provider is told.
        schema: canonical JSON.
        is_strict: the provider is asked to enforce the schema, not only to show it.
    """

    name: str
    schema: bytes
    is_strict: bool = True

    @property
    def kind(self) -> SegmentKind:
        """Static, as tools are."""
        return SegmentKind.STATIC


@dataclass(frozen=True, slots=True)
class ExamplesSegment:
    """Few-shot messages: canonical JSON of each, in the file's order. Always static."""

    name: str
    messages: tuple[bytes, ...]

    @property
    def kind(self) -> SegmentKind:
        """Static: the messages come from a file."""
        return SegmentKind.STATIC


@dataclass(frozen=True, slots=True)
class HistorySegment:
    """The place of the request's own messages. Always of kind session: turns are appended."""

    name: str

    @property
    def kind(self) -> SegmentKind:
        """Session: earlier turns stay as they were sent."""
        return SegmentKind.SESSION


Segment = TextSegment | ToolsSegment | SchemaSegment | ExamplesSegment | HistorySegment


@dataclass(frozen=True, slots=True)
class PromptForm:
    """Everything that assembly needs of a template.

    Attributes:
        model: the model for requests that name none.
        variables: declared ones, in the order of the file.
        segments: in the order static, session, dynamic; at most one each of tools, schema and
            history; names are unique.
    """

    model: str
    variables: tuple[Variable, ...]
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        """Check what the loader has already told the author in better words."""
        ranks = [segment.kind.rank for segment in self.segments]
        assert ranks == sorted(ranks)
        assert len({segment.name for segment in self.segments}) == len(self.segments)
        for single in (ToolsSegment, SchemaSegment, HistorySegment):
            assert sum(isinstance(segment, single) for segment in self.segments) <= 1

    @property
    def has_history(self) -> bool:
        """The request's messages have a place."""
        return any(isinstance(segment, HistorySegment) for segment in self.segments)
