"""Assembly: what goes where, byte for byte, and what is refused."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import BadRequest, TemplateError
from headstart.prompt.assembly import AssembledPrompt, assemble
from headstart.prompt.segments import SegmentKind
from headstart.templates import TemplateVersion
from template_folder import SMALL, load_support, load_version

_text = st.text(st.characters(exclude_categories=["Cs"]))
_json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_turns = st.builds(
    lambda role, content, extra: json.dumps({"role": role, "content": content} | extra).encode(),
    st.sampled_from(["user", "assistant", "tool", "system"]),
    _text,
    st.dictionaries(st.sampled_from(["name", "tool_call_id", "x"]), _json_values, max_size=2),
)


@pytest.fixture(scope="module")
def support(tmp_path_factory: pytest.TempPathFactory) -> TemplateVersion:
    return load_support(tmp_path_factory.mktemp("support"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TemplateVersion:
    return load_version(tmp_path_factory.mktemp("small"), SMALL)


def _assemble(version: TemplateVersion, *messages: object, **variables: object) -> AssembledPrompt:
    return assemble(version.prepared, variables, [json.dumps(m).encode() for m in messages])


def _ask(version: TemplateVersion, **more: object) -> AssembledPrompt:
    return _assemble(version, documents=[], question="Why?", now="noon", **more)


def test_the_body_has_static_then_session_then_dynamic_content(support: TemplateVersion) -> None:
    prompt = _assemble(
        support,
        {"role": "user", "content": "earlier"},
        {"role": "assistant", "content": "answer"},
        documents=[{"id": "d", "text": "D"}],
        question="Why?",
        now="noon",
    )
    assert prompt.messages == [
        {"role": "system", "content": "Be kind.\nBe brief."},
        {"role": "user", "content": "Sum 1 and 2"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"b":2, "a" : 1.0}'},
                }
            ],
        },
        {"role": "user", "content": '<document id="d">\nD\n</document>'},
        {"role": "user", "content": "earlier"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "Why?\n(now: noon)"},
    ]
    ranks = [segment.kind.rank for segment in prompt.plan.segments]
    assert ranks == sorted(ranks)


def test_the_bytes_of_the_static_prefix_are_pinned(support: TemplateVersion) -> None:
    prompt = _ask(support)
    assert prompt.body_head[: prompt.plan.static_end_byte].decode() == (
        '{"model":"tiny","tools":['
        '{"function":{"description":"Füge zwei Zahlen zusammen","name":"add","parameters":'
        '{"properties":{"a":{"maximum":1000,"type":"number"},"b":{"type":"number"}},'
        '"type":"object"}},"type":"function"},'
        '{"function":{"description":"Search","name":"search","parameters":'
        '{"properties":{"q":{"type":"string"}},"type":"object"},"x-cost":2},"type":"function"}],'
        '"response_format":{"json_schema":{"name":"answer","schema":'
        '{"properties":{"a":{},"b":{"const":1}},"type":"object"},"strict":true},'
        '"type":"json_schema"},"messages":['
        '{"content":"Be kind.\\nBe brief.","role":"system"},'
        '{"content":"Sum 1 and 2","role":"user"},'
        '{"content":"","role":"assistant","tool_calls":[{"function":{"arguments":'
        '"{\\"b\\":2, \\"a\\" : 1.0}","name":"add"},"id":"c1","type":"function"}]}'
    )


@given(question=_json_values, now=_json_values, history=st.lists(_turns, max_size=4))
def test_no_value_and_no_history_changes_the_static_prefix(
    support: TemplateVersion, question: object, now: object, history: list[bytes]
) -> None:
    variables = {"documents": [], "question": question, "now": now}
    try:
        prompt = assemble(support.prepared, variables, history)
    except TemplateError:
        return  # an integer that canonical JSON refuses; other tests look at that
    prefix = prompt.body_head[: prompt.plan.static_end_byte]
    assert "sha256:" + hashlib.sha256(prefix).hexdigest() == support.static_prefix_hash
    json.loads(prompt.body_head + b"}")


@given(history=st.lists(_turns, min_size=1, max_size=4))
def test_history_keeps_the_bytes_that_the_client_sent(
    support: TemplateVersion, history: list[bytes]
) -> None:
    prompt = assemble(
        support.prepared, {"documents": [], "question": "\x00", "now": "\x00"}, history
    )
    (segment,) = (s for s in prompt.plan.segments if s.name == "history")
    assert prompt.body_head[segment.start_byte : segment.end_byte] == b",".join(history)
    assert segment.num_messages == len(history)


@given(question=_text.filter(bool), document=_text)
def test_each_segment_lies_where_the_plan_says(
    support: TemplateVersion, question: str, document: str
) -> None:
    documents = [{"id": "d", "text": document}]
    prompt = _assemble(support, documents=documents, question=question, now="")
    where = {s.name: prompt.body_head[s.start_byte : s.end_byte] for s in prompt.plan.segments}
    assert json.loads(b'"' + where["question"] + b'"') == f"{question}\n(now: )"
    assert json.loads(b'"' + where["policy"] + b'"') == "Be kind.\nBe brief."
    assert json.loads(where["tools"]) == prompt.tools
    assert json.loads(where["answer"]) == prompt.response_format
    assert json.loads(b"[" + where["examples"] + b"]") == prompt.messages[1:3]
    assert where["history"] == b""


def test_the_plan_tells_equal_segments_by_their_fingerprints(support: TemplateVersion) -> None:
    def fingerprints(now: str) -> dict[str, str]:
        plan = _assemble(support, documents=[], question="q", now=now).plan
        return {segment.name: segment.fingerprint for segment in plan.segments}

    first, second = fingerprints("noon"), fingerprints("one")
    assert {name for name in first if first[name] != second[name]} == {"question"}


def test_a_question_that_looks_like_a_template_stays_literal(small: TemplateVersion) -> None:
    prompt = _assemble(small, question="{{ 7 * 7 }} {% raw %} {{ question }}")
    assert prompt.messages[-1]["content"] == "{{ 7 * 7 }} {% raw %} {{ question }}"


def test_the_last_user_turn_is_the_question_where_the_variable_is_missing(
    small: TemplateVersion,
) -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    by_turn = _assemble(small, *history, {"role": "user", "content": "c"})
    by_variable = _assemble(small, *history, question="c")
    assert by_turn.body_head == by_variable.body_head
    parts = [{"type": "text", "text": "c"}]
    by_parts = _assemble(small, *history, {"role": "user", "content": parts})
    assert by_parts.body_head == by_variable.body_head


def test_a_question_that_is_sent_twice_stands_once(small: TemplateVersion) -> None:
    turn = {"role": "user", "content": "c"}
    assert _assemble(small, turn, question="c").messages == _assemble(small, question="c").messages


def test_a_last_user_turn_beside_another_question_is_history(small: TemplateVersion) -> None:
    prompt = _assemble(small, {"role": "user", "content": "first"}, question="second")
    assert [m["content"] for m in prompt.messages] == ["Be brief.", "first", "second"]


def test_a_last_turn_that_is_no_text_cannot_be_the_question(small: TemplateVersion) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(TemplateError, match="'question' and must be text"):
        _assemble(small, {"role": "user", "content": [image]})


def test_the_next_turn_appends_to_what_the_engine_has_seen(small: TemplateVersion) -> None:
    """R3: turn two must find turn one's prompt at its front."""
    first = _assemble(small, question="one")
    turns = [*first.messages[1:], {"role": "assistant", "content": "1"}]
    second = _assemble(small, *turns, question="two")
    assert second.messages[: len(first.messages)] == first.messages


def test_messages_without_a_place_are_refused(tmp_path: Path) -> None:
    text = SMALL.replace("  - {name: history, kind: session, history: true}\n", "")
    version = load_version(tmp_path, text)
    turn = {"role": "user", "content": "x"}
    with pytest.raises(TemplateError, match=r"no place for `messages` \(1 of them.*history: true"):
        _assemble(version, turn, question="y")
    assert _assemble(version, turn).messages[-1] == turn


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({}, "needs a value for 'question' .dynamic."),
        ({"question": "q", "now": 1}, "has no variable 'now'"),
        ({"qestion": "q"}, "has no variable 'qestion'; did you mean 'question'"),
    ],
)
def test_missing_and_unknown_variables_are_named(
    small: TemplateVersion, variables: dict[str, object], problem: str
) -> None:
    with pytest.raises(TemplateError, match=problem) as caught:
        _assemble(small, **variables)
    assert caught.value.param is not None
    assert caught.value.param.startswith("prompt.variables.")


def test_wrong_documents_name_their_variable(support: TemplateVersion) -> None:
    with pytest.raises(TemplateError, match=r"Variable 'documents' \[0\] has no `id`"):
        _assemble(support, documents=["bare"], question="q", now="n")


@pytest.mark.parametrize("message", [5, {"content": "x"}, {"role": None}, ["user"]])
def test_a_message_without_a_role_is_refused_with_its_position(
    small: TemplateVersion, message: object
) -> None:
    with pytest.raises(BadRequest, match=r"messages\[1\]"):
        _assemble(small, {"role": "user", "content": "a"}, message, question="q")


def test_half_of_a_surrogate_pair_is_refused(small: TemplateVersion) -> None:
    with pytest.raises(TemplateError, match="'question' received half of a surrogate pair"):
        _assemble(small, question="\ud83d")


def test_a_text_that_does_not_fit_its_values_names_segment_and_template(tmp_path: Path) -> None:
    version = load_version(tmp_path, SMALL.replace("{{ question }}", "{{ question.text }}"))
    with pytest.raises(TemplateError) as caught:
        _assemble(version, question="secret")
    assert "Segment 'question' of template small@" in caught.value.message
    assert "secret" not in caught.value.message


def test_neighbours_of_one_role_and_kind_are_one_message(tmp_path: Path) -> None:
    version = load_version(
        tmp_path,
        """\
id: joined
model: tiny
variables: {profile: {kind: session}, tone: {kind: session}}
segments:
  - {name: one, role: system, kind: static, text: One.}
  - {name: two, role: system, kind: static, text: Two.}
  - {name: profile, role: system, kind: session, text: "{{ profile }}"}
  - {name: tone, role: system, kind: session, text: "{{ tone }}"}
""",
    )
    both = _assemble(version, profile="P", tone="T")
    assert [m["content"] for m in both.messages] == ["One.\n\nTwo.", "P\n\nT"]
    assert [m["content"] for m in _assemble(version, profile="", tone="T").messages][1:] == ["T"]
    assert len(_assemble(version, profile="", tone="").messages) == 1
    spans = {s.name: both.body_head[s.start_byte : s.end_byte] for s in both.plan.segments}
    assert spans == {"one": b"One.", "two": b"Two.", "profile": b"P", "tone": b"T"}


def test_documents_seen_before_keep_their_place(tmp_path: Path) -> None:
    version = load_version(
        tmp_path,
        """\
id: rag
model: tiny
variables: {documents: {kind: session, order: as_first_seen}}
segments:
  - {name: documents, role: user, kind: session, text: "{{ documents }}"}
""",
    )
    first = assemble(version.prepared, {"documents": ["x", "y"]})
    ((name, seen),) = first.plan.document_keys
    second = assemble(version.prepared, {"documents": ["new", "y", "x"]}, first_seen={name: seen})
    content = second.messages[0]["content"]
    assert isinstance(content, str)
    assert content.startswith(str(first.messages[0]["content"]))


def test_the_requests_model_stands_in_the_body_and_is_the_namespace(
    small: TemplateVersion,
) -> None:
    prompt = assemble(small.prepared, {"question": "q"}, model="other")
    assert prompt.body_head.startswith(b'{"model":"other","messages":[')
    assert prompt.plan.namespace == prompt.model == "other"
    assert prompt.plan.segments[0].kind is SegmentKind.STATIC
    policy = prompt.plan.segments[0]
    assert prompt.body_head[policy.start_byte : policy.end_byte] == b"Be brief."
