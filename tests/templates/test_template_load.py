"""Loading: what is right is read, what is wrong is refused with its file and line."""

import re
from pathlib import Path

import pytest

from headstart.errors import TemplateError
from headstart.prompt.documents import DocumentOrder
from headstart.prompt.segments import (
    ExamplesSegment,
    HistorySegment,
    SchemaSegment,
    SegmentKind,
    TextSegment,
    ToolsSegment,
    Variable,
)
from headstart.templates.load import load_template
from template_folder import SMALL, SUPPORT, SUPPORT_FILES, write_template

_HEAD = "id: t\nmodel: m\n"


def _refused(folder: Path, text: str, **files: str) -> str:
    path = write_template(folder, text, {k.replace("__", "."): v for k, v in files.items()})
    with pytest.raises(TemplateError) as caught:
        load_template(path)
    return caught.value.message.replace(f"{folder}/", "")


def test_a_template_with_every_segment_is_read(tmp_path: Path) -> None:
    template = load_template(write_template(tmp_path, SUPPORT, SUPPORT_FILES))
    assert template.id == "support"
    assert template.form.model == "tiny"
    assert template.form.variables == (
        Variable("documents", SegmentKind.SESSION, DocumentOrder.BY_ID),
        Variable("question", SegmentKind.DYNAMIC),
        Variable("now", SegmentKind.DYNAMIC),
    )
    assert [type(segment) for segment in template.form.segments] == [
        TextSegment,
        ToolsSegment,
        SchemaSegment,
        ExamplesSegment,
        TextSegment,
        HistorySegment,
        TextSegment,
    ]


def test_tools_are_sorted_by_name_and_keep_fields_that_nobody_knows(tmp_path: Path) -> None:
    template = load_template(write_template(tmp_path, SUPPORT, SUPPORT_FILES))
    tools = next(s for s in template.form.segments if isinstance(s, ToolsSegment))
    assert [b'"name":"add"' in tools.tools[0], b'"x-cost":2' in tools.tools[1]] == [True, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("question: {kind: dynamic}", "quest: {kind: dynamic}"), "template.yaml:8: the variable"),
        (("id: small", "id: 12"), "template.yaml:1: `id` must be text, not a number; put it"),
        (("id: small", "id: a/b"), "template.yaml:1: `id` cannot be 'a/b'"),
        (("id: small", "ids: small"), "template.yaml:1: the template has no key 'ids'; did you m"),
        (("id: small\n", ""), "template.yaml:1: the template needs `id`"),
        (("model: tiny", "model: tiny\nmodel: x"), "template.yaml:3: the template has the key 'mo"),
        (("kind: dynamic}\n", "kind: static}\n"), "template.yaml:4: the variable 'question' canno"),
        (("kind: dynamic}\n", "kind: dynamo}\n"), "template.yaml:4: `kind` cannot be 'dynamo'; di"),
        (("{kind: dynamic}\n", "dynamic\n"), "template.yaml:4: the variable 'question' must be a "),
        (("question:", "loop:"), "template.yaml:4: 'loop' has a meaning of its own in Jinja2"),
        (("question:", "a-b:"), "template.yaml:4: 'a-b' cannot be a variable's name"),
        (("question: {", "x: {kind: session}\n  question: {"), "template.yaml:4: the variable 'x'"),
        (("role: system", "role: sytem"), "template.yaml:6: `role` cannot be 'sytem'; did you mea"),
        (("role: system, ", ""), "template.yaml:6: the segment 'policy' needs `role`"),
        (("text: Be brief.", "txt: Be brief."), "template.yaml:6: item 1 of `segments` has no key"),
        ((", text: Be brief.", ""), "template.yaml:6: the segment 'policy' has none; it needs exa"),
        (("text: Be brief.", "text: ''"), "template.yaml:6: `text` is empty"),
        (("text: Be brief.", 'text: "\\ud83d"'), "template.yaml:6: `text` holds half of a surrog"),
        (("model: tiny", 'model: "\\ud83d"'), "template.yaml:2: `model` holds half of a surrogate"),
        (("text: Be brief.", "text: '{{ 1 }'"), "template.yaml:6: not valid Jinja2"),
        (("text: Be brief.", "text: '{# nothing #}'"), "template.yaml:6: the static segment 'poli"),
        (("text: Be brief.", "text: '{{ 1/0 }}'"), "template.yaml:6: the segment 'policy' has an "),
        (("text: Be brief.", "text: x, strict: true"), "template.yaml:6: a segment with `text` ha"),
        (("text: Be brief.", "text: x, history: true"), "template.yaml:6: the segment 'policy' ha"),
        (("kind: session, history: true", "kind: static, history: true"), "template.yaml:7: a seg"),
        (("history: true", "history: false"), "template.yaml:7: `history` can only be true"),
        (("history: true", "history: 'true'"), "template.yaml:7: `history` must be true or false"),
        (("name: history", "name: policy"), "template.yaml:7: the segment 'policy' stands twice"),
        (("segments:", "segments: []\nx:"), "template.yaml:6: the template has no key 'x'"),
    ],
)  # fmt: skip
def test_faults_are_named_with_their_line(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert change[0] in SMALL
    assert _refused(tmp_path, SMALL.replace(*change)).startswith(message)


def test_a_dynamic_variable_in_a_static_segment_is_an_error_with_its_line(tmp_path: Path) -> None:
    text = """\
id: t
model: m
variables:
  now: {kind: dynamic}
segments:
  - name: policy
    role: system
    kind: static
    text: |
      Be brief.

      It is {{ now }}.
"""
    message = _refused(tmp_path, text)
    assert message == (
        "template.yaml:12: the dynamic variable 'now' is used in the static segment 'policy'; "
        "move it to a dynamic segment"
    )


def test_the_line_is_the_text_files_own_where_the_text_has_one(tmp_path: Path) -> None:
    text = SMALL.replace("text: Be brief.", "text_file: policy.md")
    message = _refused(tmp_path, text, policy__md="Be brief.\n\n\nAsked: {{ question }}\n")
    assert message.startswith("policy.md:4: the dynamic variable 'question' is used in the static")


def test_a_dynamic_variable_in_a_session_segment_is_an_error_too(tmp_path: Path) -> None:
    text = SMALL.replace("kind: dynamic, text", "kind: session, text")
    assert "is used in the session segment 'question'" in _refused(tmp_path, text)


def test_an_undeclared_variable_is_named_with_the_nearest(tmp_path: Path) -> None:
    message = _refused(tmp_path, SMALL.replace("{{ question }}", "{{ qestion }}"))
    assert message == (
        "template.yaml:8: the variable 'qestion' is not declared under `variables`; "
        "did you mean 'question'?"
    )


def test_segments_out_of_order_are_refused(tmp_path: Path) -> None:
    late = '  - {name: late, role: system, kind: static, text: "x"}\n'
    assert _refused(tmp_path, SMALL + late) == (
        "template.yaml:9: the static segment 'late' stands after the session segment 'history'; "
        "the order is static, session, dynamic"
    )


@pytest.mark.parametrize(
    "extra",
    [
        "  - {name: a, kind: static, tools_file: tools.json}\n"
        "  - {name: b, kind: static, tools_file: tools.json}\n",
        "  - {name: a, kind: session, history: true}\n"
        "  - {name: b, kind: session, history: true}\n",
    ],
)
def test_a_second_segment_of_a_sort_that_stands_once_is_refused(tmp_path: Path, extra: str) -> None:
    text = _HEAD + "segments:\n" + extra
    assert "the segments 'a' and 'b' are of one sort" in _refused(
        tmp_path, text, tools__json=SUPPORT_FILES["tools.json"]
    )


@pytest.mark.parametrize(
    ("source", "content", "problem"),
    [
        ("tools_file", "[", r"f\.json:1: is not JSON"),
        ("tools_file", "[]", "list of at least one tool"),
        ("tools_file", '[{"name": "x", "parameters": {}}]', r"\[0\] must have the form"),
        ("tools_file", '[{"type": "function", "function": {"name": 3}}]', r"\[0\] must have the f"),
        (
            "tools_file",
            '[{"type":"function","function":{"name":"x"}},{"type":"function","function":{"name":"x"}}]',
            "defines the function 'x' twice",
        ),
        (
            "tools_file",
            '[{"type":"function","function":{"name":"x","parameters":{"maximum":9223372036854775807}}}]',
            r"f\.json: \[0\]\.function\.parameters\.maximum an integer of 63 bits",
        ),
        ("output_schema_file", "[]", "must be a JSON Schema"),
        ("output_schema_file", '{"a": 1, "a": 2}', "a: stands twice"),
        ("output_schema_file", '{\n"a": NaN}', "NaN is not a JSON number"),
        ("output_schema_file", f'{{"maximum": {"9" * 5000}}}', "thousands of digits"),
        ("messages_file", "[]", "list of at least one message"),
        ("messages_file", '[{"content": "x"}]', r"\[0\] must be a message with a `role`"),
    ],
)
def test_faults_in_json_files_name_the_file(
    tmp_path: Path, source: str, content: str, problem: str
) -> None:
    text = f"{_HEAD}segments:\n  - {{name: a, kind: static, {source}: f.json}}\n"
    assert re.search(problem, _refused(tmp_path, text, f__json=content))


def test_referenced_files_may_not_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("secret")
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    for name in ("../secret.md", str(tmp_path / "secret.md"), "link.md"):
        message = _refused(folder, SMALL.replace("text: Be brief.", f"text_file: {name}"))
        assert "template.yaml:6: `text_file`" in message
        assert "leaves the folder" in message
    message = _refused(folder, SMALL.replace("text: Be brief.", "text_file: none.md"))
    assert "there is no file" in message
    shared = load_template(
        write_template(folder, SMALL.replace("text: Be brief.", "text_file: ../secret.md")),
        root=tmp_path,
    )
    assert shared.form.segments[0].name == "policy"


def test_files_that_are_not_utf8_are_named_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "policy.md").write_bytes(b"fine\nna\xefve\n")
    message = _refused(tmp_path, SMALL.replace("text: Be brief.", "text_file: policy.md"))
    assert message == "policy.md:2: is not UTF-8; save it as UTF-8"


def test_a_byte_order_mark_and_dos_line_ends_do_not_reach_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "policy.md").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    path = write_template(tmp_path, SMALL.replace("text: Be brief.", "text_file: policy.md"))
    segment = load_template(path).form.segments[0]
    assert isinstance(segment, TextSegment)
    assert segment.text.source == "one\ntwo"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "template.yaml:1: is empty"),
        ("a: [1", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "template.yaml:2: not valid YAML"),
        ("- a\n", "template.yaml:1: the template must be a mapping, not a list"),
        ("a: !!python/object:os.system x", "template.yaml:1: the template has no key 'a'"),
        ("[" * 50_000, "template.yaml:1: is nested too deeply"),
    ],
)
def test_what_is_no_template_at_all_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in _refused(tmp_path, text)


def test_aliases_that_would_unfold_to_gigabytes_cost_nothing(tmp_path: Path) -> None:
    bomb = "variables:\n  a: &a {kind: dynamic}\n"
    lines = ["x0: &x0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]" for i in range(1, 30)]
    assert "has no key 'x0'" in _refused(tmp_path, _HEAD + bomb + "\n".join(lines))
    endless = _HEAD + "segments: &s\n  - *s\n"
    assert "item 1 of `segments` must be a mapping" in _refused(tmp_path, endless)


def test_an_alias_of_a_small_value_is_fine(tmp_path: Path) -> None:
    text = SMALL.replace("{kind: dynamic}", "&d {kind: dynamic}", 1).replace(
        "segments:", "  now: *d\nsegments:"
    )
    text = text.replace('"{{ question }}"', '"{{ question }} {{ now }}"')
    template = load_template(write_template(tmp_path, text))
    assert [variable.name for variable in template.form.variables] == ["question", "now"]
