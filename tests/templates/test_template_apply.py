"""A request that names a template becomes the body for the engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import BadRequest, NotFound, TemplateError
from headstart.templates import AppliedTemplate, TemplateSet, apply_template
from template_folder import SMALL, SUPPORT, SUPPORT_FILES, write_template


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> TemplateSet:
    folder = tmp_path_factory.mktemp("templates")
    write_template(folder / "small", SMALL)
    write_template(folder / "support", SUPPORT, SUPPORT_FILES)
    return TemplateSet.load(folder)


def _small(templates: TemplateSet, **fields: Any) -> AppliedTemplate:
    prompt = {"id": "small", "variables": {"question": "Why?"}}
    return apply_template(json.dumps({"prompt": prompt} | fields).encode(), templates)


def test_the_prompt_becomes_messages_and_the_model_is_the_templates(templates: TemplateSet) -> None:
    applied = _small(templates)
    assert json.loads(applied.body) == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Why?"},
        ],
    }
    assert applied.template_label == templates.resolve("small").label
    assert applied.body_changes == ("messages", "model", "prompt")


def test_the_requests_own_model_stays(templates: TemplateSet) -> None:
    applied = _small(templates, model="mine")
    assert json.loads(applied.body)["model"] == "mine"
    assert applied.body_changes == ("messages", "prompt")


def test_other_fields_keep_their_bytes_and_their_order(templates: TemplateSet) -> None:
    body = (
        b'{"temperature" : 1.0, "seed":12345678901234567890123, "x": { "y":[1e0 , "\\u00e9"]},'
        b'"prompt":{"id":"small","variables":{"question":"q"}}, "stop":["\\n"], "top_p":1E-1}'
    )
    applied = apply_template(body, templates)
    _, _, rest = applied.body.partition(b'"role":"user"}]')
    assert rest == (
        b',"temperature":1.0,"seed":12345678901234567890123,"x":{ "y":[1e0 , "\\u00e9"]},'
        b'"stop":["\\n"],"top_p":1E-1}'
    )


def test_a_parsed_body_gives_the_same_values(templates: TemplateSet) -> None:
    body: dict[str, object] = {
        "prompt": {"id": "small", "variables": {"question": "é"}},
        "seed": 2**70,
        "temperature": 0.5,
    }
    parsed = apply_template(body, templates)
    raw = apply_template(json.dumps(body).encode(), templates)
    assert json.loads(parsed.body) == json.loads(raw.body)


def test_history_goes_through_byte_for_byte(templates: TemplateSet) -> None:
    call = (
        b'{"role": "assistant", "content":null, "tool_calls":[{"id":"1","type":"function",'
        b'"function":{"name":"f","arguments":"{\\"b\\":1,  \\"a\\":2.50}"}}],'
        b' "reasoning" : "\\u00fc"}'
    )
    body = (
        b'{"prompt":{"id":"small"},"messages":[{"role":"user","content":"go"} , ' + call + b","
        b'{"role":"user","content":"Why?"}]}'
    )
    applied = apply_template(body, templates)
    assert b'{"role":"user","content":"go"},' + call + b"," in applied.body
    assert json.loads(applied.body)["messages"][-1]["content"] == "Why?"


def test_tools_and_schema_are_the_templates_where_it_has_them(templates: TemplateSet) -> None:
    variables = {"documents": [], "question": "q", "now": "n"}
    body: dict[str, object] = {
        "prompt": {"id": "support", "variables": variables},
        "tools": [{"type": "function", "function": {"name": "mine"}}],
        "response_format": {"type": "text"},
    }
    applied = apply_template(body, templates)
    sent = json.loads(applied.body)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["add", "search"]
    assert sent["response_format"]["json_schema"]["name"] == "answer"
    assert applied.body_changes == ("messages", "model", "prompt", "response_format", "tools")
    assert json.loads(_small(templates, tools=body["tools"]).body)["tools"] == body["tools"]


def test_the_plan_describes_the_body_that_is_sent(templates: TemplateSet) -> None:
    applied = _small(templates, model="mine", stream=True)
    spans = {s.name: applied.body[s.start_byte : s.end_byte] for s in applied.plan.segments}
    assert spans == {"policy": b"Be brief.", "history": b"", "question": b"Why?"}
    assert applied.plan.template_label == applied.template_label


@pytest.mark.parametrize(
    ("prompt", "error", "problem"),
    [
        ({"id": "none"}, NotFound, "no template 'none'"),
        ({"id": "small", "version": "7"}, NotFound, "no version '7'"),
        ({"id": "small", "version": 7}, TemplateError, "version` must be a string"),
        ({"id": 7}, TemplateError, "id` must name a template"),
        ({}, TemplateError, "id` must name a template"),
        ({"id": "small", "vars": {}}, TemplateError, "no field 'vars'; did you mean 'variables'"),
        ({"id": "small", "variables": []}, TemplateError, "variables` must be an object"),
        ({"id": "small"}, TemplateError, "needs a value for 'question'"),
        ("small", TemplateError, "`prompt` must be an object"),
    ],
)
def test_a_prompt_that_cannot_be_understood_is_refused(
    templates: TemplateSet, prompt: object, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        apply_template({"prompt": prompt}, templates)


@pytest.mark.parametrize(
    "prompt", [{"x" * 100_000: 1}, {"id": "small", "variables": {"x" * 100_000: 1}}]
)
def test_an_error_repeats_only_the_beginning_of_an_endless_name(
    templates: TemplateSet, prompt: object
) -> None:
    with pytest.raises(TemplateError) as caught:
        apply_template({"prompt": prompt}, templates)
    assert caught.value.param is not None
    assert len(caught.value.message) + len(caught.value.param) < 700


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": 5}, "`model` must be a string"),
        ({"messages": {}}, "`messages` must be a list"),
        ({"messages": [5]}, r"messages\[0\]"),
    ],
)
def test_fields_of_the_wrong_type_are_refused(
    templates: TemplateSet, fields: dict[str, object], problem: str
) -> None:
    with pytest.raises(BadRequest, match=problem):
        _small(templates, **fields)


def test_a_version_that_is_in_force_can_be_named(templates: TemplateSet) -> None:
    version = templates.resolve("small").version
    prompt = {"id": "small", "version": version, "variables": {"question": "q"}}
    assert apply_template({"prompt": prompt}, templates).template_label == f"small@{version}"


def test_absent_and_null_messages_are_no_history(templates: TemplateSet) -> None:
    assert _small(templates, messages=None).body == _small(templates).body
    assert _small(templates, messages=[]).body == _small(templates).body


def test_a_body_that_is_no_object_is_refused(templates: TemplateSet) -> None:
    with pytest.raises(BadRequest, match="must be a JSON object"):
        apply_template(b"[1]", templates)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":{"id":"small","variables":{"question":%s}}}',
        b'{"prompt":{"id":"small"},"messages":[{"role":"user","content":%s}]}',
        b'{"prompt":{"id":"small","variables":{"question":"q"}},"x":%s}',
    ],
)
def test_endless_nesting_is_refused(templates: TemplateSet, body: bytes) -> None:
    with pytest.raises(BadRequest, match="nested too deeply"):
        apply_template(body % (b"[" * 100_000 + b"]" * 100_000), templates)


def test_loading_twice_gives_the_same_body(templates: TemplateSet, tmp_path: Path) -> None:
    write_template(tmp_path, SMALL)
    assert _small(TemplateSet.load(tmp_path)).body == _small(templates).body
