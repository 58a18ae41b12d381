"""Render chat messages to the exact text that a model is prompted with.

A model's own template (Jinja2, as Hugging Face and GGUF files carry it) decides where roles, tools
and turns land. Most small models' templates have no place for tools or for an answer's JSON
Schema; then `prompt.tool_form` writes them into the system message. Which of the two applies is
found by rendering a probe, not by reading the template's source.

The environment is the one Hugging Face renders in: sandboxed and immutable, `trim_blocks` and
`lstrip_blocks` on, `break` and `continue` allowed, `tojson` without HTML escapes, and
`raise_exception`. `strftime_now` works only if the caller passes the time: a date in a prompt
changes its prefix, so it never comes from a hidden clock.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headstart.errors import BadRequest, HeadstartError, TemplateError
from headstart.prompt.messages import normalise_messages
from headstart.prompt.tool_form import parse_arguments, render_as_text
from headstart.types import JsonObject

_PROBE_NAME = "headstart_probe_f3b1"
_PROBE_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": _PROBE_NAME,
        "description": "probe",
        "parameters": {"type": "object", "properties": {}},
    },
}
_PROBE_SCHEMA: JsonObject = {"type": "object", "title": _PROBE_NAME}
_PROBE_MESSAGES: tuple[tuple[JsonObject, ...], ...] = (
    ({"role": "system", "content": "s"}, {"role": "user", "content": "u"}),
    ({"role": "user", "content": "u"},),
)

_RENDER_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template's own code can raise on messages it does not expect."""


class _GenerationBlock(Extension):
    """Accept `{% generation %} … {% endgeneration %}`; renders the body and tracks nothing."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as Hugging Face's `tojson` filter does; does not escape HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def parse_template(source: str) -> nodes.Template:
    """Return the syntax tree of a chat template, for who asks what it reads.

    Raises:
        TemplateError: the source is not valid Jinja2.
    """
    try:
        return _make_environment().parse(source)
    except jinja2.TemplateSyntaxError as exc:
        raise _unparsable(exc) from exc


def _unparsable(exc: jinja2.TemplateSyntaxError) -> TemplateError:
    return TemplateError(
        f"The chat template cannot be parsed (line {exc.lineno}: {exc.message}); "
        "use a model file with a valid tokenizer.chat_template."
    )


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


class ChatTemplate:
    """One model's chat template; renders text, does not tokenise and reads no clock.

    Attributes:
        source: the Jinja2 text.
        renders_tools: the template has a place of its own for `tools`.
        renders_schema: the template has a place of its own for `response_schema`.

    Args:
        source: Jinja2 text.
        bos_token: what `bos_token` stands for in the template.
        eos_token: what `eos_token` stands for in the template.

    Raises:
        TemplateError: the source is not valid Jinja2.
    """

    __slots__ = ("_constants", "_template", "renders_schema", "renders_tools", "source")

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._constants = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _make_environment().from_string(source)
        except jinja2.TemplateSyntaxError as exc:
            raise _unparsable(exc) from exc
        self.renders_tools = self._has_place_for({"tools": [_PROBE_TOOL]})
        self.renders_schema = self._has_place_for({"response_schema": _PROBE_SCHEMA})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_schema: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        **kwargs: object,
    ) -> str:
        """Return the prompt's text; does not add a BOS token that the template does not write.

        Args:
            messages: OpenAI chat messages, at least one.
            tools: OpenAI tool definitions; each is rendered with its keys in the given order.
            response_schema: JSON Schema that the answer should follow.
            add_generation_prompt: end with the start of an assistant turn.
            now: what `strftime_now` formats; without it a template that asks is refused.
            **kwargs: further variables for the template (`enable_thinking`, `documents` …).

        Raises:
            BadRequest: a message has no role, or content that is not text.
            TemplateError: the template refuses these messages.
        """
        turns = normalise_messages(messages)
        own_tools = tools if self.renders_tools else None
        own_schema = response_schema if self.renders_schema else None
        turns = render_as_text(
            turns,
            tools=None if self.renders_tools else tools,
            response_schema=None if self.renders_schema else response_schema,
            rewrite_history=not self.renders_tools,
        )
        if self.renders_tools:
            turns = [parse_arguments(turn) for turn in turns]
        variables: dict[str, object] = dict(kwargs)
        variables |= {
            "messages": turns,
            "tools": own_tools or None,
            "response_schema": own_schema,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": _clock_reader(now),
        }
        return self._render(variables)

    def render_variables(self, variables: Mapping[str, object], now: datetime | None) -> str:
        """Return the template's text for `variables` as they are: nothing is normalised or added.

        Args:
            variables: `messages`, `tools` and the rest, in the shape that an engine gives them.
            now: what `strftime_now` formats.

        Raises:
            TemplateError: the template refuses them.
        """
        return self._render({**variables, "strftime_now": _clock_reader(now)})

    def _render(self, variables: Mapping[str, object]) -> str:
        try:
            return self._template.render({**self._constants, **variables})
        except HeadstartError:
            raise
        except _RENDER_FAULTS as exc:
            raise TemplateError(
                f"The model's chat template refuses these messages: {exc}. "
                "Check the roles, their order and the content of each message.",
                param="messages",
            ) from exc

    def _has_place_for(self, extra: Mapping[str, object]) -> bool:
        for messages in _PROBE_MESSAGES:
            variables: dict[str, object] = {
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": True,
                "strftime_now": _clock_reader(datetime(2000, 1, 1)),
                **extra,
            }
            try:
                text = self._render(variables)
            except BadRequest:
                continue
            if _PROBE_NAME in text:
                return True
        return False


def _clock_reader(now: datetime | None) -> Any:
    def strftime_now(pattern: str) -> str:
        if now is None:
            raise TemplateError(
                "The model's chat template asks for the current time; pass `now` to render it."
            )
        return now.strftime(pattern)

    return strftime_now
