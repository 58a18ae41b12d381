"""The byte layout of an assembled body: what never changes comes first.

    {"model":"…","tools":[…],"response_format":{…},"messages":[ static … session … dynamic ] …

`tools` and `response_format` are left out where a template has none. The client's other fields
follow after the messages (`templates.apply`). Everything before the first session message is the
static prefix: for one template version and model the same bytes in every request and process.

Text segments that follow each other with the same role and the same kind are one message, joined
by an empty line. Segments of different kinds are never joined: between messages a chat template
puts special tokens, so a changing segment cannot change how the text before it is tokenised.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import xxhash

from headstart.errors import TemplateError
from headstart.prompt.canonical_json import canonicalize
from headstart.prompt.plan import PlannedSegment
from headstart.prompt.segments import (
    ExamplesSegment,
    PromptForm,
    Role,
    SchemaSegment,
    SegmentKind,
    TextSegment,
    ToolsSegment,
)

_JOINT = rb"\n\n"  # an empty line, as it stands inside a JSON string


@dataclass(frozen=True, slots=True)
class TextPart:
    """One text segment with its values in place."""

    name: str
    kind: SegmentKind
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class MessagesPart:
    """Whole messages, as bytes that stay as they are."""

    name: str
    kind: SegmentKind
    messages: tuple[bytes, ...]


Part = TextPart | MessagesPart


@dataclass(frozen=True, slots=True)
class StaticPrefix:
    """The static part of a form, laid out once.

    Attributes:
        data: the body's bytes after the model's name up to the first byte that may change.
        tools: canonical JSON of the tools, or None if the form has no tools segment.
        response_format: canonical JSON, or None.
        messages: the static messages within `data`.
        segments: their plan, with offsets from the start of `data`.
    """

    data: bytes
    tools: tuple[bytes, ...] | None
    response_format: bytes | None
    messages: tuple[bytes, ...]
    segments: tuple[PlannedSegment, ...]

    def bytes_for(self, model: str) -> bytes:
        """Return the body up to the first byte that may change, for a request to `model`."""
        return b'{"model":' + canonicalize(model) + self.data


@dataclass(frozen=True, slots=True)
class BodyHead:
    """A body up to and with the end of its messages; lacks the client's other fields and `}`."""

    data: bytes
    static_end_byte: int
    messages: tuple[bytes, ...]
    segments: tuple[PlannedSegment, ...]


def lay_out_static(form: PromptForm) -> StaticPrefix:
    """Lay out the segments that are the same in every request; does not know the model's name.

    Raises:
        TextRenderError: a static text has an expression that fails.
    """
    writer = _Writer()
    tools: tuple[bytes, ...] | None = None
    response_format: bytes | None = None
    parts: list[Part] = []
    for segment in form.segments:
        if isinstance(segment, ToolsSegment):
            tools = segment.tools
            writer.field("tools", segment.name, b"[" + b",".join(tools) + b"]")
    for segment in form.segments:
        if isinstance(segment, SchemaSegment):
            response_format = _response_format(segment)
            writer.field("response_format", segment.name, response_format)
        elif isinstance(segment, ExamplesSegment):
            parts.append(MessagesPart(segment.name, segment.kind, segment.messages))
        elif isinstance(segment, TextSegment) and segment.kind is SegmentKind.STATIC:
            text = segment.text.render({})
            parts.append(TextPart(segment.name, segment.kind, segment.role, text))
    writer.write(b',"messages":[')
    writer.parts(parts)
    return StaticPrefix(
        writer.data(), tools, response_format, tuple(writer.messages), tuple(writer.segments)
    )


def lay_out(prefix: StaticPrefix, model: str, parts: Sequence[Part]) -> BodyHead:
    """Lay out one request's body up to the end of its messages.

    Args:
        prefix: of the form.
        model: the model's name in the body.
        parts: session, then dynamic ones.

    Raises:
        TemplateError: a text has half of a surrogate pair.
    """
    head = prefix.bytes_for(model)
    shift = len(head) - len(prefix.data)
    writer = _Writer(offset=len(head), messages=prefix.messages)
    writer.parts(parts)
    writer.write(b"]")
    static = [
        replace(s, start_byte=s.start_byte + shift, end_byte=s.end_byte + shift)
        for s in prefix.segments
    ]
    return BodyHead(
        data=head + writer.data(),
        static_end_byte=len(head),
        messages=tuple(writer.messages),
        segments=(*static, *writer.segments),
    )


class _Writer:
    """Collects a body's bytes and notes where each segment lies."""

    __slots__ = ("_chunks", "_offset", "messages", "segments")

    def __init__(self, offset: int = 0, messages: Sequence[bytes] = ()) -> None:
        self._chunks: list[bytes] = []
        self._offset = offset
        self.messages = list(messages)
        self.segments: list[PlannedSegment] = []

    def data(self) -> bytes:
        return b"".join(self._chunks)

    def write(self, data: bytes) -> None:
        self._chunks.append(data)
        self._offset += len(data)

    def field(self, key: str, name: str, value: bytes) -> None:
        """Write a static top-level field that is a segment of its own."""
        self.write(f',"{key}":'.encode())
        self._segment(name, SegmentKind.STATIC, value, num_messages=0)

    def parts(self, parts: Sequence[Part]) -> None:
        """Write messages; neighbours that share role and kind become one."""
        run: list[TextPart] = []
        for part in parts:
            if isinstance(part, TextPart):
                if run and (part.role, part.kind) != (run[0].role, run[0].kind):
                    self._text_message(run)
                    run = []
                run.append(part)
            else:
                # Even an empty history parts its neighbours: they stay where they are as it fills.
                self._text_message(run)
                run = []
                self._whole_messages(part)
        self._text_message(run)

    def _segment(self, name: str, kind: SegmentKind, data: bytes, *, num_messages: int) -> None:
        start = self._offset
        self.write(data)
        fingerprint = xxhash.xxh3_128_hexdigest(data)
        self.segments.append(
            PlannedSegment(name, kind, start, self._offset, num_messages, fingerprint)
        )

    def _begin_message(self) -> None:
        if self.messages:
            self.write(b",")

    def _text_message(self, run: Sequence[TextPart]) -> None:
        """Write one message; texts that rendered to nothing add nothing, not even a message."""
        if not any(part.text for part in run):
            for part in run:
                self._segment(part.name, part.kind, b"", num_messages=0)
            return
        self._begin_message()
        first_chunk = len(self._chunks)
        self.write(b'{"content":"')
        is_first = True
        for part in run:
            if part.text and not is_first:
                self.write(_JOINT)
            is_first = is_first and not part.text
            self._segment(part.name, part.kind, _escape(part), num_messages=int(bool(part.text)))
        self.write(f'","role":"{run[0].role}"}}'.encode())
        self.messages.append(b"".join(self._chunks[first_chunk:]))

    def _whole_messages(self, part: MessagesPart) -> None:
        if part.messages:
            self._begin_message()
        data = b",".join(part.messages)
        self._segment(part.name, part.kind, data, num_messages=len(part.messages))
        self.messages.extend(part.messages)


def _escape(part: TextPart) -> bytes:
    """Return the characters of a JSON string without its quotes, as canonical JSON writes them."""
    try:
        return json.dumps(part.text, ensure_ascii=False)[1:-1].encode()
    except UnicodeEncodeError as exc:
        raise TemplateError(
            f"segment {part.name!r} received half of a surrogate pair; send whole characters",
            param="prompt.variables",
        ) from exc


def _response_format(segment: SchemaSegment) -> bytes:
    # The keys in canonical order; the schema's bytes are canonical already.
    strict = b"true" if segment.is_strict else b"false"
    name = canonicalize(segment.name)
    inner = b'{"name":' + name + b',"schema":' + segment.schema + b',"strict":' + strict + b"}"
    return b'{"json_schema":' + inner + b',"type":"json_schema"}'
