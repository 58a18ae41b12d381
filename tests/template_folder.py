"""Write template folders for tests."""

from pathlib import Path

from headstart.templates import TemplateSet, TemplateVersion

SUPPORT = """\
id: support
model: tiny
variables:
  documents: {kind: session, order: by_id}
  question: {kind: dynamic}
  now: {kind: dynamic}
segments:
  - {name: policy, role: system, kind: static, text_file: policy.md}
  - {name: tools, kind: static, tools_file: tools.json}
  - {name: answer, kind: static, output_schema_file: answer.json}
  - {name: examples, kind: static, messages_file: few_shot.json}
  - {name: documents, role: user, kind: session, text: "{{ documents }}"}
  - {name: history, kind: session, history: true}
  - {name: question, role: user, kind: dynamic, text: "{{ question }}\\n(now: {{ now }})"}
"""

SUPPORT_FILES = {
    "policy.md": "Be kind.\nBe brief.\n",
    "tools.json": """[
      {"type": "function", "function": {"name": "search", "x-cost": 2, "description": "Search",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}},
      {"type": "function", "function": {"name": "add", "description": "Füge zwei Zahlen zusammen",
        "parameters": {"type": "object", "properties": {"b": {"type": "number"},
                                                        "a": {"type": "number", "maximum": 1e3}}}}}
    ]""",
    "answer.json": '{"type": "object", "properties": {"b": {"const": 1.0}, "a": {}}}',
    "few_shot.json": """[
      {"role": "user", "content": "Sum 1 and 2"},
      {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function",
        "function": {"name": "add", "arguments": "{\\"b\\":2, \\"a\\" : 1.0}"}}]}
    ]""",
}

SMALL = """\
id: small
model: tiny
variables:
  question: {kind: dynamic}
segments:
  - {name: policy, role: system, kind: static, text: Be brief.}
  - {name: history, kind: session, history: true}
  - {name: question, role: user, kind: dynamic, text: "{{ question }}"}
"""


def write_template(folder: Path, text: str, files: dict[str, str] | None = None) -> Path:
    """Write a template and its files; return the template's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    path = folder / "template.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def load_version(folder: Path, text: str, files: dict[str, str] | None = None) -> TemplateVersion:
    """Write one template and load it."""
    write_template(folder, text, files)
    (version,) = TemplateSet.load(folder).versions()
    return version


def load_support(folder: Path) -> TemplateVersion:
    """Load a template that has every kind of segment."""
    return load_version(folder, SUPPORT, SUPPORT_FILES)
