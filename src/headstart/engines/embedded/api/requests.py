"""Read request bodies into values; refuse what would change the output but is not supported.

Fields are vLLM's. Three kinds: fields declared here are read and checked; fields in `_NOT_OFFERED`
are refused unless they hold a value that means "off"; any other unknown field is ignored, as
OpenAI's clients send many that only concern other servers.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast

import msgspec

from headstart.engines.embedded.request import SamplingParams
from headstart.errors import BadRequest
from headstart.types import JsonObject
from headstart.wire.openai import parse_object

MAX_SEQUENCES = 128
"""Most choices that one request may ask for (OpenAI's limit for `n`)."""

_COMPLETION_MAX_TOKENS = 16
"""OpenAI's and vLLM's default on `/v1/completions`."""

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_NonNegative = Annotated[float, msgspec.Meta(ge=0)]
_Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
_Salt = Annotated[str, msgspec.Meta(min_length=1)]

Tokens = list[int]


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that both generating endpoints share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)] | None = None
    stop: str | list[str] | None = None
    max_tokens: _Positive | None = None
    temperature: _NonNegative | None = None
    top_p: _Probability | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    cache_salt: _Salt | None = None
    return_token_ids: bool | None = None

    @property
    def num_choices(self) -> int:
        """Return how many answers each prompt gets."""
        return self.n or 1

    @property
    def wants_stream_usage(self) -> bool:
        """Return whether the stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, max_tokens: int, choice: int) -> SamplingParams:
        """Return the parameters of one choice; choices of one seeded request differ by their seed.

        Args:
            max_tokens: the limit to use.
            choice: 0 .. n-1.
        """
        seed = None if self.seed is None else (self.seed + choice) % 2**63
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            seed=seed,
            stop=_stop_strings(self.stop),
            max_tokens=max_tokens,
            ignore_eos=bool(self.ignore_eos),
        )


class ChatRequest(_Generation, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: _Positive | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def parses_tool_calls(self) -> bool:
        """Return whether calls in the output become `tool_calls`."""
        return bool(self.tools) and self.tool_choice != "none"


class CompletionRequest(_Generation, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | list[str | int | Tokens]
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[str | Tokens]:
        """Return each prompt, as text or as token ids.

        Raises:
            BadRequest: nothing to continue, or text and token ids in one list.
        """
        if not self.prompt:
            raise BadRequest("`prompt` is empty; send text or token ids.", param="prompt")
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(item) for item in self.prompt}
        if kinds == {int}:
            return [cast("Tokens", self.prompt)]
        if len(kinds) == 1:
            return cast("list[str | Tokens]", self.prompt)
        raise BadRequest(
            "`prompt` mixes text and token ids; send one kind in a list.", param="prompt"
        )

    @property
    def token_limit(self) -> int:
        """Return the most tokens each choice may have."""
        return self.max_tokens or _COMPLETION_MAX_TOKENS


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: a prompt, or messages as a chat request has them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


_NOT_OFFERED: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "mm_processor_kwargs": ({},),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Fields that change the output elsewhere, with the values (besides null) that mean "off"."""

_Body = TypeVar("_Body", bound=msgspec.Struct)


def parse_body(raw: bytes, kind: type[_Body]) -> _Body:
    """Return the body as `kind`.

    Raises:
        BadRequest: no JSON object, a field of the wrong type or range, or one not offered.
    """
    body = parse_object(raw)
    _refuse_not_offered(body)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as exc:
        raise _explain(str(exc), body) from exc


def parse_chat_request(raw: bytes) -> ChatRequest:
    """Return a chat body; `tool_choice` and `tools` are checked, messages are not yet rendered.

    Raises:
        BadRequest: see `parse_body`; also a `tool_choice` that would need constrained decoding.
    """
    request = parse_body(raw, ChatRequest)
    _stop_strings(request.stop)
    if request.tool_choice not in (None, "none", "auto"):
        raise BadRequest(
            '`tool_choice` must be "auto" or "none": this engine cannot force a call.',
            param="tool_choice",
        )
    _check_tools(request.tools)
    return request


def parse_completion_request(raw: bytes) -> CompletionRequest:
    """Return a completion body.

    Raises:
        BadRequest: see `parse_body`; also too many sequences or an answer format.
    """
    request = parse_body(raw, CompletionRequest)
    _stop_strings(request.stop)
    if len(request.prompts) * request.num_choices > MAX_SEQUENCES:
        raise BadRequest(
            f"{len(request.prompts)} prompts with n={request.num_choices} are more than "
            f"{MAX_SEQUENCES} sequences; split the request.",
            param="n",
        )
    return request


def answer_schema(response_format: Mapping[str, Any] | None) -> JsonObject | None:
    """Return the JSON Schema that a `response_format` asks for; None for plain text.

    Raises:
        BadRequest: a type other than `text`, `json_object` and `json_schema`, or no schema.
    """
    if response_format is None:
        return None
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise BadRequest(
            f"`response_format.type` is {kind!r}; use text, json_object or json_schema.",
            param="response_format",
        )
    holder = response_format.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if not isinstance(schema, dict):
        raise BadRequest(
            "`response_format.json_schema.schema` must be an object.", param="response_format"
        )
    return schema


def _refuse_not_offered(body: Mapping[str, Any]) -> None:
    for name in _NOT_OFFERED.keys() & body.keys():
        value = body[name]
        if value is None or any(_is_same(value, off) for off in _NOT_OFFERED[name]):
            continue
        raise BadRequest(
            f"`{name}` is not supported by the embedded engine; leave it out.", param=name
        )
    if "prompt" in body and "messages" not in body and "response_format" in body:
        answer_format = body["response_format"]
        if answer_format not in (None, {"type": "text"}):
            raise BadRequest(
                "`response_format` needs chat messages; use /v1/chat/completions.",
                param="response_format",
            )


def _is_same(value: object, off: object) -> bool:
    # 0 == False, but `logprobs: 0` on completions asks for log probabilities.
    return value == off and isinstance(value, bool) == isinstance(off, bool)


def _explain(message: str, body: Mapping[str, Any]) -> BadRequest:
    what, _, where = message.partition(" - at ")
    field = where.strip("`").removeprefix("$").removeprefix(".")
    if not field:
        return BadRequest(f"{what}.")
    value = body.get(field)
    # Numbers are named; text could be part of a prompt.
    is_named = isinstance(value, int | float) and ", got " not in what
    got = f", got {value}" if is_named else ""
    return BadRequest(f"`{field}`: {what}{got}.", param=field)


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in strings:
        raise BadRequest("`stop` holds an empty string, which would end any answer.", param="stop")
    return strings


def _check_tools(tools: list[dict[str, Any]] | None) -> None:
    for index, tool in enumerate(tools or ()):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if tool.get("type") != "function" or not isinstance(name, str) or not name:
            raise BadRequest(
                f'`tools[{index}]` must be {{"type": "function", "function": {{"name": …}}}}.',
                param=f"tools[{index}]",
            )
