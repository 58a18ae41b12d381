"""Replace a request's `prompt: {id, version, variables}` by the prompt that the template makes.

The body that goes upstream begins with the static prefix (`prompt.body`) and ends with the
client's other fields, each with the bytes that the client sent. `prompt` is gone; `messages` are
the assembled ones; `tools` and `response_format` are the template's where it has them, and the
client's otherwise.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headstart.errors import BadRequest, TemplateError
from headstart.prompt.assembly import AssembledPrompt, assemble
from headstart.prompt.canonical_json import canonicalize
from headstart.prompt.nearest import clip_name, did_you_mean
from headstart.prompt.plan import PromptPlan
from headstart.templates.registry import TemplateSet
from headstart.types import JsonObject

_PROMPT_KEYS = ("id", "version", "variables")


@dataclass(frozen=True, slots=True)
class AppliedTemplate:
    """A body that a template made.

    Attributes:
        body: JSON for the engine.
        template_label: `id@version`.
        plan: where each segment lies in `body`.
        body_changes: top-level fields that are not as the client sent them.
    """

    body: bytes
    template_label: str
    plan: PromptPlan
    body_changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptReference:
    """What a request says in `prompt`."""

    template_id: str
    version: str | None
    variables: Mapping[str, object]


def apply_template(body: bytes | JsonObject, templates: TemplateSet) -> AppliedTemplate:
    """Assemble the prompt that a request names; does not send it.

    Args:
        body: a chat request whose `prompt` is an object. From bytes, every field that stays keeps
            its bytes; from a parsed object, its value.
        templates: where the id is looked up.

    Raises:
        NotFound: no such template or version.
        TemplateError: the variables do not fit the template.
        BadRequest: a field has the wrong type.
    """
    fields = _top_level(body)
    reference = parse_reference(_decode(fields, "prompt"))
    version = templates.resolve(reference.template_id, reference.version)
    model = _decode(fields, "model")
    if model is not None and not isinstance(model, str):
        raise BadRequest("`model` must be a string.", param="model")
    prompt = assemble(version.prepared, reference.variables, _messages(fields), model=model or None)
    return _finish(fields, prompt, names_model=bool(model))


def parse_reference(value: object) -> PromptReference:
    """Read a request's `prompt` object; does not look the template up.

    Raises:
        TemplateError: a field is missing, unknown or of the wrong type.
    """
    if not isinstance(value, dict):
        raise TemplateError(
            '`prompt` must be an object like {"id": "…", "variables": {…}}.', param="prompt"
        )
    for key in value:
        if key not in _PROMPT_KEYS:
            raise TemplateError(
                f"`prompt` has no field {clip_name(key)!r}{did_you_mean(key, _PROMPT_KEYS)}",
                param=f"prompt.{clip_name(key)}",
            )
    template_id, version = value.get("id"), value.get("version")
    variables = value.get("variables")
    if not isinstance(template_id, str) or not template_id:
        raise TemplateError("`prompt.id` must name a template.", param="prompt.id")
    if version is not None and not isinstance(version, str):
        raise TemplateError(
            "`prompt.version` must be a string; leave it out for the version in force.",
            param="prompt.version",
        )
    if variables is not None and not isinstance(variables, dict):
        raise TemplateError("`prompt.variables` must be an object.", param="prompt.variables")
    return PromptReference(template_id, version or None, variables or {})


def _top_level(body: bytes | JsonObject) -> dict[str, msgspec.Raw]:
    try:
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except RecursionError as exc:
        raise BadRequest("The body is nested too deeply.") from exc
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise BadRequest("The body must be a JSON object.") from exc


def _decode(fields: Mapping[str, msgspec.Raw], key: str) -> object:
    raw = fields.get(key)
    if raw is None:
        return None
    try:
        value: object = msgspec.json.decode(raw)
    except RecursionError as exc:
        raise BadRequest(f"`{key}` is nested too deeply.", param=key) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadRequest(f"`{key}` is not valid JSON.", param=key) from exc
    return value


def _messages(fields: Mapping[str, msgspec.Raw]) -> list[bytes]:
    raw = fields.get("messages")
    if raw is None or bytes(raw) == b"null":
        return []
    try:
        messages = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequest("`messages` must be a list.", param="messages") from exc
    return [bytes(message) for message in messages]


def _finish(
    fields: Mapping[str, msgspec.Raw], prompt: AssembledPrompt, *, names_model: bool
) -> AppliedTemplate:
    replaced = {"prompt", "messages"}
    if prompt.tools_json is not None:
        replaced.add("tools")
    if prompt.response_format_json is not None:
        replaced.add("response_format")
    rest = [
        b"," + canonicalize(key) + b":" + bytes(raw)
        for key, raw in fields.items()
        if key not in replaced and key != "model"
    ]
    changes = replaced if names_model else replaced | {"model"}
    return AppliedTemplate(
        body=prompt.body_head + b"".join(rest) + b"}",
        template_label=prompt.plan.template_label,
        plan=prompt.plan,
        body_changes=tuple(sorted(changes)),
    )
