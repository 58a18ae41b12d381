"""Names made of content: the same template has the same version and hashes on every machine.

A file has no publisher, so its version is a hash of everything that it holds, referenced files
included. A registry that numbers versions (`support-agent@7`) builds the same `TemplateVersion`
and passes its own `version`.
"""

import hashlib

from headstart.prompt.assembly import PreparedPrompt
from headstart.prompt.body import lay_out_static
from headstart.prompt.canonical_json import canonicalize
from headstart.prompt.segments import (
    ExamplesSegment,
    SchemaSegment,
    Segment,
    TextSegment,
    ToolsSegment,
)
from headstart.templates.model import Template, TemplateVersion

_ID_DIGITS = 12


def make_version(template: Template, version: str | None = None) -> TemplateVersion:
    """Name a template and lay out its static prefix; does not register it anywhere.

    Args:
        template: checked content.
        version: a registry's name for it; None derives one from the content.

    Raises:
        TextRenderError: a static text cannot be rendered.
    """
    name = version or content_version(template)
    prefix = lay_out_static(template.form)
    data = prefix.bytes_for(template.form.model)
    static_prefix_hash = "sha256:" + hashlib.sha256(data).hexdigest()
    tools = prefix.tools
    return TemplateVersion(
        template=template,
        version=name,
        static_prefix_hash=static_prefix_hash,
        tool_schema_version=None if tools is None else _short(b"[" + b",".join(tools) + b"]"),
        output_schema_version=_schema_version(template),
        prepared=PreparedPrompt(f"{template.id}@{name}", template.form, prefix, static_prefix_hash),
    )


def content_version(template: Template) -> str:
    """Return 12 hexadecimal digits that change with any byte of the resolved template.

    File names, line ends, comments and key order in the files do not enter: they change nothing
    that a request could see.
    """
    form = template.form
    content = {
        "id": template.id,
        "model": form.model,
        "cache_strategy": template.cache_strategy.value,
        "variables": [
            {"name": v.name, "kind": v.kind.value, "order": v.order and v.order.value}
            for v in form.variables
        ],
        "segments": [_content(segment) for segment in form.segments],
    }
    return _short(canonicalize(content))


def _content(segment: Segment) -> dict[str, object]:
    common: dict[str, object] = {"name": segment.name, "kind": segment.kind.value}
    if isinstance(segment, TextSegment):
        return common | {"role": segment.role, "text": segment.text.source}
    if isinstance(segment, ToolsSegment):
        return common | {"tools": [tool.decode() for tool in segment.tools]}
    if isinstance(segment, SchemaSegment):
        return common | {"schema": segment.schema.decode(), "strict": segment.is_strict}
    if isinstance(segment, ExamplesSegment):
        return common | {"messages": [message.decode() for message in segment.messages]}
    return common | {"history": True}


def _schema_version(template: Template) -> str | None:
    for segment in template.form.segments:
        if isinstance(segment, SchemaSegment):
            return _short(segment.schema)
    return None


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_ID_DIGITS]
