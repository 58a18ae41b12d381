"""`Preparer`: what is read of a body, what is changed, and what it says of templates."""

import json
from dataclasses import dataclass

import pytest

from headstart.errors import BadRequest, NotFound, TemplateError
from headstart.gateway.prepare import PreparedRequest, Preparer
from headstart.prompt.fingerprint import namespace, prompt_keys
from headstart.routing.config import PrefixHashConfig
from headstart.wire.http1 import HeaderSection, Request
from loopback import ScriptedEngine, chat, post, running

BLOCKS = PrefixHashConfig(leading_blocks=4, block_bytes=64)
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Applied:
    body: bytes
    template_label: str = "support-agent@7"


def apply_template(body: bytes) -> Applied:
    """A template that says `filled`, for requests that name `support-agent`."""
    prompt = json.loads(body)["prompt"]
    assert isinstance(prompt, dict)
    if prompt["id"] != "support-agent":
        raise NotFound(f"No template {prompt['id']!r}.", param="prompt.id")
    if "question" not in prompt["variables"]:
        raise TemplateError("The variable 'question' is missing.", param="prompt.variables")
    return Applied(b'{"model":"m","messages":[{"role":"user","content":"filled"}],"stream":true}')


def prepare(
    body: bytes, path: str = CHAT, applier=apply_template, *, renders_response_format=False
):
    prepared = PreparedRequest(body)
    request = Request("POST", path.encode(), HeaderSection([], {}), body)
    preparer = Preparer(applier, BLOCKS, renders_response_format=renders_response_format)
    preparer.prepare(request, prepared)
    return prepared


def test_keys_are_those_of_the_parts_in_the_models_order():
    """Tools before messages, each message for itself, under model and salt."""
    tools = b'[{"type":"function","function":{"name":"' + b"f" * 80 + b'"}}]'
    messages = [b'{"role":"user","content":"' + b"x" * 400 + b'"}', b'{"role":"user"}']
    body = b'{"messages":[%b],"tools":%b,"model":"m","cache_salt":"s"}' % (
        b", ".join(messages),
        tools,
    )
    expected = prompt_keys([tools, *messages], namespace("m", "s"), block_bytes=64)
    assert prepare(body).prompt == expected
    assert len(expected.keys) > 4


def test_a_prompt_shorter_than_a_block_has_no_keys():
    """Routing then looks at the load alone."""
    assert not prepare(b'{"model":"m","messages":[]}').prompt.keys


def test_parameters_of_the_chat_template_part_prompts():
    """They decide how the prompt begins; how it ends does not matter to who holds its beginning."""
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]%b}'
    plain = prepare(body % (b"x" * 400, b"")).prompt
    thinking = prepare(body % (b"x" * 400, b',"chat_template_kwargs":{"thinking":true}')).prompt
    ending = prepare(body % (b"x" * 400, b',"add_generation_prompt":false')).prompt
    assert not set(plain.keys) & set(thinking.keys)
    assert ending == plain


def test_a_schema_parts_prompts_of_engines_that_write_it_into_them():
    """For all others it only constrains the answer."""
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]%b}'
    schema = b',"response_format":{"type":"json_object"}'
    plain, formed = body % (b"x" * 400, b""), body % (b"x" * 400, schema)
    assert prepare(plain).prompt == prepare(formed).prompt
    keys = [prepare(each, renders_response_format=True).prompt.keys for each in (plain, formed)]
    assert not set(keys[0]) & set(keys[1])


def test_a_client_that_asks_for_a_receipt_is_heard():
    """Only by the very value."""
    for value, wants in ((b"1", True), (b"0", False)):
        fields = {b"x-headstart-receipt": value, b"x-session-id": b"s-1"}
        request = Request("POST", CHAT.encode(), HeaderSection([], fields), b'{"model":"m"}')
        prepared = PreparedRequest(request.body)
        Preparer(None, BLOCKS).prepare(request, prepared)
        assert prepared.wants_receipt is wants
        assert prepared.session == "s-1"


def test_a_body_without_need_is_the_same_object():
    """Not even copied."""
    body = b'{"model":"m","messages":[]}'
    prepared = prepare(body)
    assert prepared.body is body
    assert prepared.body_changes == ()


def test_a_template_makes_the_body_and_is_named():
    """Then the body is read again: the template may have asked for a stream."""
    body = b'{"prompt":{"id":"support-agent","variables":{"question":"q"}}}'
    prepared = prepare(body)
    assert prepared.template == "support-agent@7"
    assert prepared.model == "m"
    assert prepared.is_stream
    assert prepared.body_changes == ("template", "stream_options")
    assert b"filled" in prepared.body


def test_a_prompt_object_means_a_template_on_the_chat_surface_only():
    """Elsewhere it is the engine's field."""
    body = b'{"model":"m","prompt":{"id":"support-agent"}}'
    for path in ("/v1/completions", "/v1/responses"):
        assert prepare(body, path).body is body


def test_a_prompt_that_is_no_object_is_the_engines():
    """A string, as in completions."""
    assert prepare(b'{"model":"m","prompt":"x"}').template is None


def test_without_templates_such_a_request_is_refused_with_the_next_step():
    """The message names the setting."""
    with pytest.raises(TemplateError, match="templates"):
        prepare(b'{"prompt":{"id":"x"}}', applier=None)


def test_stream_options_that_are_no_object_are_left_to_the_engine():
    """It will complain in its own words."""
    body = b'{"model":"m","stream":true,"stream_options":7}'
    prepared = prepare(body)
    assert prepared.body is body
    assert not prepared.hides_usage
    assert prepared.body_changes == ()


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"{" * 100])
def test_an_unreadable_body_passes_where_it_need_not_be_read(body):
    """And is refused where it must."""
    assert prepare(body, "/v1/files").body is body
    with pytest.raises(BadRequest):
        prepare(body, "/v1/completions")


@pytest.mark.parametrize(
    ("prompt", "status"),
    [
        ({"id": "support-agent", "variables": {"question": "q"}}, 200),
        ({"id": "support-agent", "variables": {}}, 400),
        ({"id": "nope", "variables": {}}, 404),
    ],
)
async def test_templates_over_http(prompt, status):
    """The label is in the response and in the record; errors are in form."""
    engine = ScriptedEngine()
    async with running(engine, apply_template=apply_template) as up:
        reply = await up.ask(post(chat(prompt=prompt)))
    assert reply.status == status
    (record,) = up.records
    if status == 200:
        assert reply.headers["x-headstart-template"] == "support-agent@7"
        assert record.template == "support-agent@7"
        assert engine.requests[0].json()["messages"][0]["content"] == "filled"
    else:
        assert reply.json()["error"]["param"].startswith("prompt.")
        assert not engine.requests


async def test_a_fault_of_ours_is_a_500_in_form_and_says_nothing_of_the_body(caplog):
    """The connection lives on, the record says 500, and the log has the error's kind only."""

    def broken(body: bytes) -> Applied:
        raise ZeroDivisionError(body.decode())

    async with running(ScriptedEngine(), apply_template=broken) as up:
        reply = await up.ask(post(chat(prompt={"id": "secret", "variables": {}})))
        again = await up.ask(post(chat()))
    assert (reply.status, again.status) == (500, 200)
    assert reply.json()["error"]["code"] == "internal_error"
    assert [record.status for record in up.records] == [500, 200]
    assert "ZeroDivisionError" in caplog.text
    assert "secret" not in caplog.text + reply.body.decode()


def test_a_template_is_given_the_clients_own_bytes():
    """Parsing and writing again would change numbers, escapes and repeated keys."""
    given: list[bytes] = []

    def keep(body: bytes) -> Applied:
        given.append(body)
        return Applied(b"{}")

    body = b'{"prompt":{"id":"x"}, "seed":1e3, "user":"\\u00e9"}'
    prepare(body, applier=keep)
    assert given[0] is body


def test_continuous_figures_without_a_final_one_stay_off():
    """Alone they have no effect; with the gateway's own wish they would reach the client."""
    body = b'{"model":"m","stream":true,"stream_options":{"continuous_usage_stats":true}}'
    options = b'{"continuous_usage_stats":false,"include_usage":true}'
    prepared = prepare(body)
    assert prepared.body == b'{"model":"m","stream":true,"stream_options":%b}' % options
    assert prepared.hides_usage
    asked = b'{"model":"m","stream":true,"stream_options":%b}' % options.replace(b"false", b"true")
    assert prepare(asked).body is asked


@pytest.mark.parametrize("applier", [None, apply_template])
def test_what_was_found_before_a_refusal_stays(applier):
    """The record of a request refused for its template says what it asked for."""
    prepared = PreparedRequest(b'{"model":"big","stream":true,"prompt":{"id":"nope"}}')
    request = Request("POST", CHAT.encode(), HeaderSection([], {}), prepared.body)
    with pytest.raises((NotFound, TemplateError)):
        Preparer(applier, BLOCKS).prepare(request, prepared)
    assert (prepared.model, prepared.is_stream) == ("big", True)


@pytest.mark.parametrize("value", [b'"\xff"', b"1e999", b"{" + b'"\xff":1}'])
def test_options_that_only_the_engine_reads_are_left_to_it(value):
    """What is inside them is none of the gateway's business, valid or not."""
    body = b'{"model":"m","stream":true,"\xfe":1,"stream_options":{"other":%b}}' % value
    expected = (
        b'{"model":"m","stream":true,"\xfe":1,"stream_options":{"other":%b,"include_usage":true}}'
    )
    assert prepare(body).body == expected % value
