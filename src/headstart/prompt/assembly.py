"""Put a prompt together: a form, a request's variables and its messages become one body.

The order is the form's: static, session, dynamic. Nothing but the declared variables and the
request's own messages enters; a request id or the time enters only as a declared variable.

What happens to the request's `messages`:

1. If the last one is a user turn, and the last dynamic user segment lacks exactly one of its
   variables, the turn's text is that variable's value and the turn is not part of the history.
2. If that segment lacks none, and the turn's text equals one of its values, the client sent its
   question twice: the turn is left out.
3. All others are the history. They stand where the form has its history segment, byte for byte as
   the client sent them. A form without such a segment accepts none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headstart.errors import BadRequest, TemplateError
from headstart.prompt.body import MessagesPart, Part, StaticPrefix, TextPart, lay_out
from headstart.prompt.documents import DocumentList, order_documents
from headstart.prompt.nearest import clip_name, did_you_mean
from headstart.prompt.plan import PromptPlan
from headstart.prompt.segments import (
    HistorySegment,
    PromptForm,
    SegmentKind,
    TextSegment,
    Variable,
)
from headstart.prompt.text import TextRenderError
from headstart.types import JsonObject

_NO_DOCUMENTS: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A form whose static part is laid out, so that a request pays only for what changes.

    Attributes:
        label: `id@version`, for plans and messages to people.
        form: segments and variables.
        static_prefix: `body.lay_out_static(form)`.
        static_prefix_hash: `sha256:…` of the static prefix for the form's own model.
    """

    label: str
    form: PromptForm
    static_prefix: StaticPrefix
    static_prefix_hash: str


@dataclass(frozen=True, slots=True)
class AssembledPrompt:
    """A prompt in the bytes that go upstream.

    Attributes:
        body_head: the body from `{` to the end of `messages`; the client's other fields and `}`
            are missing.
        model: as in the body.
        messages_json: each message's bytes, in order.
        tools_json: each tool's bytes; None if the form has no tools.
        response_format_json: None if the form has no answer schema.
        plan: what lies where.
    """

    body_head: bytes
    model: str
    messages_json: tuple[bytes, ...]
    tools_json: tuple[bytes, ...] | None
    response_format_json: bytes | None
    plan: PromptPlan

    @property
    def messages(self) -> list[JsonObject]:
        """The messages as values, for a chat template."""
        return [msgspec.json.decode(data, type=JsonObject) for data in self.messages_json]

    @property
    def tools(self) -> list[JsonObject] | None:
        """The tools as values, keys in canonical order."""
        if self.tools_json is None:
            return None
        return [msgspec.json.decode(data, type=JsonObject) for data in self.tools_json]

    @property
    def response_format(self) -> JsonObject | None:
        """The answer's form as a value."""
        if self.response_format_json is None:
            return None
        return msgspec.json.decode(self.response_format_json, type=JsonObject)


class _MessageHead(msgspec.Struct):
    role: str
    content: object = None


def assemble(
    prepared: PreparedPrompt,
    variables: Mapping[str, object],
    messages: Sequence[bytes] = (),
    *,
    model: str | None = None,
    first_seen: Mapping[str, Sequence[str]] = _NO_DOCUMENTS,
) -> AssembledPrompt:
    """Put one prompt together; does not look at what it says.

    Args:
        prepared: from a template version.
        variables: a JSON value for each declared variable, and no others.
        messages: JSON objects as the client sent them, oldest first.
        model: the request's model; None takes the form's.
        first_seen: for each variable with `order: as_first_seen`, the keys of the documents that
            the session's earlier requests had (`PromptPlan.document_keys`). Without it new and
            old documents are not told apart and stand in the request's order.

    Raises:
        TemplateError: a variable is missing, unknown or of the wrong form, or there are messages
            and no place for them.
        BadRequest: a message is not an object with a role.

    Cost: linear in the bytes of the body.
    """
    form = prepared.form
    model = form.model if model is None else model
    bound, history = _take_last_turn(form, variables, messages)
    _check_names(prepared, bound)
    _check_history(prepared, history)
    values = {
        variable.name: _bind(variable, bound[variable.name], first_seen)
        for variable in form.variables
    }
    prefix = prepared.static_prefix
    head = lay_out(prefix, model, _changing_parts(prepared, values, history))
    return AssembledPrompt(
        body_head=head.data,
        model=model,
        messages_json=head.messages,
        tools_json=prefix.tools,
        response_format_json=prefix.response_format,
        plan=PromptPlan(
            template_label=prepared.label,
            namespace=model,
            static_prefix_hash=prepared.static_prefix_hash,
            static_end_byte=head.static_end_byte,
            segments=head.segments,
            document_keys=_document_keys(values),
        ),
    )


def _document_keys(values: Mapping[str, object]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(
        (name, value.keys) for name, value in values.items() if isinstance(value, DocumentList)
    )


def _check_history(prepared: PreparedPrompt, history: Sequence[bytes]) -> None:
    if history and not prepared.form.has_history:
        raise TemplateError(
            f"Template {prepared.label} has no place for `messages` ({len(history)} of them are "
            "history); add a segment `{name: history, kind: session, history: true}` or send none.",
            param="messages",
        )


def _changing_parts(
    prepared: PreparedPrompt, values: Mapping[str, object], history: Sequence[bytes]
) -> list[Part]:
    parts: list[Part] = []
    for segment in prepared.form.segments:
        if isinstance(segment, HistorySegment):
            parts.append(MessagesPart(segment.name, segment.kind, tuple(history)))
        elif isinstance(segment, TextSegment) and segment.kind is not SegmentKind.STATIC:
            try:
                text = segment.text.render(values)
            except TextRenderError as exc:
                raise TemplateError(
                    f"Segment {segment.name!r} of template {prepared.label} {exc.message}.",
                    param="prompt.variables",
                ) from exc
            parts.append(TextPart(segment.name, segment.kind, segment.role, text))
    return parts


def _check_names(prepared: PreparedPrompt, variables: Mapping[str, object]) -> None:
    declared = {variable.name: variable for variable in prepared.form.variables}
    for name in variables:
        if name not in declared:
            raise TemplateError(
                f"Template {prepared.label} has no variable {clip_name(name)!r}"
                f"{did_you_mean(name, declared)}",
                param=f"prompt.variables.{clip_name(name)}",
            )
    missing = [name for name in declared if name not in variables]
    if missing:
        listed = ", ".join(f"{name!r} ({declared[name].kind})" for name in missing)
        raise TemplateError(
            f"Template {prepared.label} needs a value for {listed}; send it in prompt.variables.",
            param=f"prompt.variables.{missing[0]}",
        )


def _bind(variable: Variable, value: object, first_seen: Mapping[str, Sequence[str]]) -> object:
    if variable.order is None:
        return value
    try:
        return order_documents(value, variable.order, first_seen=first_seen.get(variable.name, ()))
    except TemplateError as exc:
        raise TemplateError(
            f"Variable {variable.name!r} {exc.message}.", param=f"prompt.variables.{variable.name}"
        ) from exc


def _take_last_turn(
    form: PromptForm, variables: Mapping[str, object], messages: Sequence[bytes]
) -> tuple[Mapping[str, object], Sequence[bytes]]:
    """Return the variables and the history, the last user turn given to one of the two."""
    heads = [_message_head(data, index) for index, data in enumerate(messages)]
    question = _question_segment(form)
    if not heads or heads[-1].role != "user" or question is None:
        return variables, messages
    ordered = {variable.name for variable in form.variables if variable.order is not None}
    names = [use.name for use in question.text.uses if use.name not in ordered]
    missing = [name for name in names if name not in variables]
    text = _text_of(heads[-1].content)
    if len(missing) == 1:
        if text is None:
            raise TemplateError(
                f"The last user message fills the variable {missing[0]!r} and must be text; "
                "send the variable, and images in a message before the last.",
                param=f"messages[{len(messages) - 1}].content",
            )
        return {**variables, missing[0]: text}, messages[:-1]
    if not missing and text is not None and any(variables[name] == text for name in names):
        return variables, messages[:-1]
    return variables, messages


def _question_segment(form: PromptForm) -> TextSegment | None:
    for segment in reversed(form.segments):
        if (
            isinstance(segment, TextSegment)
            and segment.role == "user"
            and segment.kind is SegmentKind.DYNAMIC
        ):
            return segment
    return None


def _message_head(data: bytes, index: int) -> _MessageHead:
    try:
        return msgspec.json.decode(data, type=_MessageHead)
    except RecursionError as exc:
        raise BadRequest(
            f"`messages[{index}]` is nested too deeply.", param=f"messages[{index}]"
        ) from exc
    except msgspec.DecodeError as exc:
        raise BadRequest(
            f"`messages[{index}]` must be an object with a `role` that is a string.",
            param=f"messages[{index}]",
        ) from exc


def _text_of(content: object) -> str | None:
    """Return a message's text; None if it holds anything but text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    texts = [
        part["text"]
        for part in content
        if isinstance(part, dict)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ]
    return "\n".join(texts) if len(texts) == len(content) else None
