"""From a request's body to the text, or the token ids, that its engine makes of it.

Theory of operation: an engine's front end reads a body in three steps: it brings messages and tools
into a shape of its own, renders the chat template with the variables that the request sets, and
tokenises the text. Steps one and two are here, once for each engine that does them its own way (a
dialect); step three is `prompt.token_cache`'s. What an engine would refuse, and what cannot be
known from the body alone (images, several prompts, a prompt that the engine cuts), gives None: such
a request is routed without its tokens.

Whether the result is the engine's own is never assumed: `engines.tokenizers` compares.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec

from headstart.errors import HeadstartError
from headstart.prompt.chat_template import ChatTemplate
from headstart.prompt.template_traits import ContentFormat, content_format, reads_clock
from headstart.prompt.vllm_messages import vllm_messages, vllm_tools
from headstart.types import JsonObject

Dialect = Literal["vllm", "embedded"]
"""Whose way of rendering: vLLM's, or the embedded engine's."""

PROMPT_FIELDS: Final = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "prompt_embeds",
    "reasoning_effort",
    "response_format",
    "truncate_prompt_tokens",
    "truncation_side",
)
"""Fields besides messages, tools and prompt that decide on the tokens."""

_UNKNOWABLE: Final = (
    "chat_template",
    "prompt_embeds",
    "truncate_prompt_tokens",
    "truncation_side",
    "mm_processor_kwargs",
    "media_io_kwargs",
)
"""Fields with which the engine's tokens depend on more than the template."""

_CONTINUE_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""What Hugging Face puts behind a message that is to be continued; some templates look for it."""

_FUNCTION_ARGUMENTS: Final = frozenset(
    {
        *("continue_final_message", "conversation", "max_length", "padding", "return_dict"),
        *("return_assistant_tokens_mask", "return_tensors", "tokenizer_kwargs", "truncation"),
    }
)
"""Names that `apply_chat_template` takes for itself: the template never sees them."""

_REFUSED_ARGUMENTS: Final = frozenset(("chat_template", "messages", "tokenize", "tools"))
_UNSET: Final = (None, "auto")
"""Values by which a field or variable says nothing."""


class PromptText(msgspec.Struct, frozen=True):
    """What an engine tokenises.

    Attributes:
        text: the rendered or given text; empty if the ids are given.
        token_ids: what the client sent instead of text.
        adds_special: tokens that begin or end a sequence are put around the text.
    """

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    adds_special: bool = False


class PromptReader:
    """Reads bodies as one engine's front end does; does not tokenise. Safe to share.

    Args:
        template: the model's chat template; None if it has none.
        tool_template: the one for requests with tools, for models with two.
        special_tokens: `bos_token` and its like, as the template may name them.
        dialect: whose way of rendering.
        shape: what messages' content becomes; None finds out as vLLM does.
        defaults: variables of the template that requests may set otherwise.

    Attributes:
        reads_clock: the text depends on the time, besides the body.
    """

    __slots__ = (
        "_defaults",
        "_dialect",
        "_shape",
        "_special",
        "_template",
        "_tool_template",
        "reads_clock",
    )

    def __init__(
        self,
        template: ChatTemplate | None,
        *,
        tool_template: ChatTemplate | None = None,
        special_tokens: Mapping[str, str] | None = None,
        dialect: Dialect = "vllm",
        shape: ContentFormat | None = None,
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self._template = template
        self._defaults = _set_ones(defaults or {})
        self._tool_template = tool_template or template
        self._special = dict(special_tokens or {})
        self._dialect = dialect
        found = [each for each in (template, tool_template) if each is not None]
        self._shape: dict[str, ContentFormat] = {
            each.source: shape or content_format(each.source) for each in found
        }
        self.reads_clock = any(reads_clock(each.source) for each in found)

    def read(self, body: JsonObject, *, is_chat: bool, now: datetime | None) -> PromptText | None:
        """Return what the engine tokenises; None if it cannot be known.

        Args:
            body: of a request to `/v1/chat/completions` or to `/v1/completions`.
            is_chat: which of them.
            now: local time, for templates that ask.

        Cost: a rendering.
        """
        if any(body.get(name) is not None for name in _UNKNOWABLE):
            return None
        if not is_chat:
            return _completion(body)
        try:
            text = (
                self._embedded_text(body, now)
                if self._dialect == "embedded"
                else self._vllm_text(body, now)
            )
            if text is not None:
                text.encode()  # a call's arguments may hold half a character, which no engine takes
        except (HeadstartError, ValueError):
            return None  # the engine refuses it and says why
        adds_special = self._dialect == "vllm" and body.get("add_special_tokens") is True
        return None if text is None else PromptText(text, adds_special=adds_special)

    def _vllm_text(self, body: JsonObject, now: datetime | None) -> str | None:
        tools = vllm_tools(body.get("tools"))
        template = self._template if tools is None else self._tool_template
        if template is None:
            return None
        source = template.source
        turns = vllm_messages(
            body.get("messages"),
            self._shape[source],
            knows_developer='"developer"' in source or "'developer'" in source,
        )
        if not turns:
            return None
        variables = self._vllm_variables(body)
        if variables is None:
            return None
        variables |= {"messages": turns, "tools": tools}
        if body.get("continue_final_message") is not True:
            return template.render_variables(variables, now)
        if variables["add_generation_prompt"]:
            return None  # it cannot do both
        return _continued(template, variables, turns, now)

    def _vllm_variables(self, body: JsonObject) -> dict[str, object] | None:
        """Return what the template sees besides messages and tools.

        Source: vLLM, `ChatCompletionRequest.build_chat_params`, `merge_kwargs`.
        """
        own = body.get("chat_template_kwargs")
        if not isinstance(own, dict | None):
            return None
        given = _set_ones(own or {})
        if _REFUSED_ARGUMENTS & given.keys():
            return None
        effort = body.get("reasoning_effort")
        fields = {"documents": body.get("documents"), "reasoning_effort": effort}
        if effort is not None and "enable_thinking" not in (own or {}):
            fields["enable_thinking"] = effort != "none"
        given = self._defaults | given | _set_ones(fields)
        variables = self._special | {
            name: value for name, value in given.items() if name not in _FUNCTION_ARGUMENTS
        }
        variables.setdefault("documents", None)
        adds = body.get("add_generation_prompt")
        variables["add_generation_prompt"] = adds if isinstance(adds, bool) else True
        return variables

    def _embedded_text(self, body: JsonObject, now: datetime | None) -> str | None:
        messages, tools = body.get("messages"), body.get("tools")
        given = body.get("chat_template_kwargs")
        if self._template is None or not isinstance(messages, list):
            return None
        if not isinstance(tools, list | None) or not isinstance(given, dict | None):
            return None
        variables = dict(given or {})
        if variables.keys() & {"messages", "tools", "response_schema", "now"}:
            return None
        adds = body.get("add_generation_prompt")
        variables["add_generation_prompt"] = adds if isinstance(adds, bool) else True
        schema = _schema(body.get("response_format"))
        return self._template.render(
            messages, tools=tools, response_schema=schema, now=now, **variables
        )


def _set_ones(variables: Mapping[str, object]) -> JsonObject:
    return {name: value for name, value in variables.items() if value not in _UNSET}


def _continued(
    template: ChatTemplate, variables: JsonObject, turns: list[JsonObject], now: datetime | None
) -> str | None:
    """Render with a mark behind the last message's text, and end the text there.

    Source: Hugging Face transformers 5, `render_jinja_template`.
    """
    last = turns[-1]
    content = last.get("content")
    if isinstance(content, list):
        if not content:
            return None
        parts = [*content[:-1], {**content[-1], "text": content[-1]["text"] + _CONTINUE_TAG}]
        marked: JsonObject = {**last, "content": parts}
    else:
        marked = {**last, "content": f"{content}{_CONTINUE_TAG}"}
    text = template.render_variables({**variables, "messages": [*turns[:-1], marked]}, now)
    end = text.rfind(_CONTINUE_TAG.strip())
    if end < 0:
        return None
    # A template that trims the message has trimmed the mark's own space.
    return text[:end] if text.startswith(_CONTINUE_TAG, end) else text[:end].rstrip()


def _completion(body: JsonObject) -> PromptText | None:
    """Return the one prompt of a completion; of several none is the request's."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        adds = body.get("add_special_tokens")
        return PromptText(prompt, adds_special=adds if isinstance(adds, bool) else True)
    if isinstance(prompt, list) and prompt and all(_is_token_id(each) for each in prompt):
        return PromptText(token_ids=tuple(prompt))
    return None


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _schema(response_format: object) -> JsonObject | None:
    """Return the JSON Schema that the embedded engine writes into the prompt."""
    if not isinstance(response_format, dict):
        return None
    if response_format.get("type") == "json_object":
        return {"type": "object"}
    holder = response_format.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, dict) else None
    return schema if isinstance(schema, dict) else None
