"""Bodies of OpenAI's API, read only as far as the gateway needs them.

Theory of operation: one pass of a JSON parser checks that a body is JSON and cuts out the few
members that route, template or account for it; messages, tools and prompts stay the bytes they
are. Wrong types are the engine's business: it knows what it accepts, and its complaint is in the
form its clients expect. What the gateway refuses is what it cannot read at all.
"""

from typing import Final

import msgspec

from headstart.errors import BadRequest, HeadstartError
from headstart.types import JsonObject

# The decoder hands out this very object for members that a body does not have.
_ABSENT: Final = msgspec.Raw()

# What pydantic reads as true, besides the number 1.
_TRUE_WORDS: Final = frozenset(("true", "t", "yes", "y", "on", "1"))


_MANY_BYTES: Final = 1 << 20
"""Up to here a body's messages are told apart without asking how many there may be."""

_MIN_MESSAGE_BYTES: Final = 16
"""Larger bodies are not cut into messages if these might be shorter on average: each costs 56 bytes
of memory, and 20 MB of `[0,0,0` would cost half a gigabyte. Text has a comma in 60 bytes."""


class _Peek(msgspec.Struct):
    """What is read alike, whatever `messages` is."""

    model: object = None
    stream: object = None
    stream_options: msgspec.Raw = _ABSENT
    cache_salt: object = None
    tools: msgspec.Raw = _ABSENT
    system: msgspec.Raw = _ABSENT
    instructions: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    chat_template: msgspec.Raw = _ABSENT
    chat_template_kwargs: msgspec.Raw = _ABSENT
    documents: msgspec.Raw = _ABSENT
    reasoning_effort: msgspec.Raw = _ABSENT
    response_format: msgspec.Raw = _ABSENT
    add_generation_prompt: msgspec.Raw = _ABSENT
    continue_final_message: msgspec.Raw = _ABSENT
    add_special_tokens: msgspec.Raw = _ABSENT
    truncate_prompt_tokens: msgspec.Raw = _ABSENT
    truncation_side: msgspec.Raw = _ABSENT
    prompt_embeds: msgspec.Raw = _ABSENT
    mm_processor_kwargs: msgspec.Raw = _ABSENT
    media_io_kwargs: msgspec.Raw = _ABSENT


class _LoosePeek(_Peek):
    messages: msgspec.Raw = _ABSENT


class RequestPeek(_Peek):
    """Members of a request body that the gateway looks at; `Raw` ones are empty if absent.

    `messages` has one member per message. What is not an array, or has more members than anybody
    sends, is one piece: the engine is to complain, not the gateway.
    """

    messages: list[msgspec.Raw] | None = None

    def has_stream_options(self) -> bool:
        """Return whether `stream_options` is there, whatever it is."""
        return self.stream_options is not _ABSENT

    def model_name(self) -> str:
        """Return the model asked for; empty if the body names none."""
        return self.model if isinstance(self.model, str) else ""

    def is_stream(self) -> bool:
        """Return whether the body asks for a stream, to engines that read loosely too."""
        # vLLM and SGLang take 1 and "true" for true (pydantic), and then stream.
        stream = self.stream
        return stream == 1 or (isinstance(stream, str) and stream.lower() in _TRUE_WORDS)

    def has_prompt_object(self) -> bool:
        """Return whether `prompt` names a template."""
        return is_object(self.prompt)

    def asks_for_usage(self) -> bool:
        """Return whether the body already has `stream_options.include_usage: true`."""
        if not is_object(self.stream_options):
            return False
        return _STREAM_OPTIONS.decode(self.stream_options).include_usage is True

    def asks_for_continuous_usage(self) -> bool:
        """Return whether the body has `stream_options.continuous_usage_stats: true`."""
        if not is_object(self.stream_options):
            return False
        return _STREAM_OPTIONS.decode(self.stream_options).continuous_usage_stats is True

    def prompt_parts(self) -> list[msgspec.Raw]:
        """Return what enters the model, in the order that it enters: what is first stays longest.

        Tools, system text, instructions, each message, prompt, input; only what is there.
        """
        parts: list[msgspec.Raw] = []
        if self.tools is not _ABSENT:
            parts.append(self.tools)
        if self.system is not _ABSENT:
            parts.append(self.system)
        if self.instructions is not _ABSENT:
            parts.append(self.instructions)
        if self.messages is not None:
            parts += self.messages
        if self.prompt is not _ABSENT:
            parts.append(self.prompt)
        if self.input is not _ABSENT:
            parts.append(self.input)
        return parts

    def template_parameters(self, *, renders_response_format: bool = False) -> bytes:
        """Return what else decides how the prompt begins, as bytes to tell prompts apart by.

        `add_generation_prompt` and `continue_final_message` are not in it: they change how a
        prompt ends, so that two which differ in them still begin alike.

        Args:
            renders_response_format: the engine writes the answer's schema into the prompt, as the
                embedded one does; vLLM and SGLang only constrain the output by it.

        Returns:
            Empty for nearly every request, at the cost of five look-ups.
        """
        if (
            self.chat_template_kwargs is _ABSENT
            and self.reasoning_effort is _ABSENT
            and self.documents is _ABSENT
            and self.chat_template is _ABSENT
            and (self.response_format is _ABSENT or not renders_response_format)
        ):
            return b""
        values = [self.chat_template_kwargs, self.reasoning_effort, self.documents]
        values += [self.chat_template, self.response_format if renders_response_format else _ABSENT]
        return b"".join(b"%d:%b" % (len(text), text) for text in map(bytes, values))

    def ending_parameters(self) -> bytes:
        """Return what is not in `template_parameters` and decides on the prompt's tokens."""
        values = [getattr(self, name) for name in _ENDING_FIELDS]
        return b"".join(b"%d:%b" % (len(text), text) for text in map(bytes, values))


_ENDING_FIELDS: Final = (
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "prompt_embeds",
    "mm_processor_kwargs",
    "media_io_kwargs",
)


class _StreamOptions(msgspec.Struct):
    include_usage: object = None
    continuous_usage_stats: object = None


class _Message(msgspec.Struct):
    usage: msgspec.Raw = _ABSENT


class ResponsePeek(msgspec.Struct):
    """Members of a response body, or of one event of a stream, that accounting looks at.

    `message` is where Anthropic's first event, `response` where OpenAI's Responses API puts them.
    """

    choices: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    message: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT

    def usage_object(self) -> JsonObject | None:
        """Return the usage object, wherever this dialect puts it; None if it cannot be read."""
        try:
            raw = self.usage
            if raw is _ABSENT:
                for nested in (self.message, self.response):
                    if is_object(nested):
                        raw = _MESSAGE.decode(nested).usage
            return _OBJECT.decode(raw) if is_object(raw) else None
        except _UNREADABLE:
            return None

    def is_usage_only(self) -> bool:
        """Return whether this is the extra event that `include_usage` asks for."""
        return is_empty_array(self.choices) and is_object(self.usage)

    def has_null_usage(self) -> bool:
        """Return whether the event says `"usage": null`."""
        return is_null(self.usage)

    def has_error(self) -> bool:
        """Return whether the event reports an error."""
        return self.error is not _ABSENT and not is_null(self.error)

    def error_status(self) -> int:
        """Return the HTTP status that the error names in `code`, as vLLM does; 0 if none."""
        try:
            code = _OBJECT.decode(self.error).get("code") if is_object(self.error) else None
        except _UNREADABLE:
            return 0
        return code if isinstance(code, int) else 0


class _UsageAlone(msgspec.Struct):
    usage: dict[str, object] | None = None


_USAGE: Final = msgspec.json.Decoder(_UsageAlone)
_REQUEST: Final = msgspec.json.Decoder(RequestPeek)
_LOOSE_REQUEST: Final = msgspec.json.Decoder(_LoosePeek)
_RESPONSE: Final = msgspec.json.Decoder(ResponsePeek)
_MESSAGE: Final = msgspec.json.Decoder(_Message)
_STREAM_OPTIONS: Final = msgspec.json.Decoder(_StreamOptions)
_OBJECT: Final = msgspec.json.Decoder(dict[str, object])

# vLLM's words: its worker has died; it shuts down.
_ENGINE_ENDED: Final = (
    b"EngineCore encountered an issue",
    b"cannot schedule new futures after shutdown",
)

# What decoding raises. `Raw` members are only skipped at first, so that invalid UTF-8 or a number
# out of range inside one shows when it is decoded itself.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def is_object(raw: msgspec.Raw) -> bool:
    """Return whether `raw` is a JSON object; an absent member is not."""
    return raw is not _ABSENT and bytes(memoryview(raw)[:1]) == b"{"


def is_null(raw: msgspec.Raw) -> bool:
    """Return whether `raw` is `null`; an absent member is not."""
    return bytes(memoryview(raw)[:5]) == b"null"


def is_empty_array(raw: msgspec.Raw) -> bool:
    """Return whether `raw` is `[]`, with or without space inside."""
    text = bytes(memoryview(raw)[:16])
    return text[:1] == b"[" and text[1:].lstrip()[:1] == b"]"


def peek_request(body: bytes) -> RequestPeek:
    """Read a request body.

    Raises:
        BadRequest: it is not JSON, or not an object. The message quotes nothing of it.
    """
    try:
        if len(body) > _MANY_BYTES and body.count(b",") > len(body) // _MIN_MESSAGE_BYTES:
            return _peek_loosely(body)
        return _REQUEST.decode(body)
    except msgspec.ValidationError:  # `messages` is no array, or the body no object
        pass
    except _UNREADABLE as exc:
        raise _not_json(body, exc) from exc
    try:
        return _peek_loosely(body)
    except _UNREADABLE as exc:
        raise _not_json(body, exc) from exc


def parse_object(body: bytes) -> JsonObject:
    """Parse a whole body.

    Raises:
        BadRequest: it is not a JSON object.
    """
    try:
        return _OBJECT.decode(body)
    except _UNREADABLE as exc:
        raise _not_json(body, exc) from exc


def peek_response(body: bytes) -> ResponsePeek | None:
    """Read a response body or an event's data; None if it is not a JSON object."""
    try:
        return _RESPONSE.decode(body)
    except _UNREADABLE:
        return None


def usage_of(body: bytes) -> JsonObject | None:
    """Return the usage object of a whole response body; None if there is none that can be read."""
    try:
        usage = _USAGE.decode(body).usage
    except _UNREADABLE:
        usage = None
    if usage is None:  # it may be inside another member, or what is wrong may not matter
        peek = peek_response(body)
        usage = peek.usage_object() if peek is not None else None
    return usage


def says_engine_ended(data: bytes) -> bool:
    """Return whether an error body or event is the word of an engine that has ended.

    vLLM's server lives a little longer than what computes, and answers 500 to everything
    meanwhile: such a 500 is about the engine and not about the request.

    Source: observed of vLLM 0.32 after kill -9 of its worker, and after SIGTERM with
    `--shutdown-timeout`.
    """
    return any(words in data for words in _ENGINE_ENDED)


def error_body(error: HeadstartError) -> bytes:
    """Return `error` as OpenAI's API writes errors."""
    return msgspec.json.encode(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_event(error: HeadstartError) -> bytes:
    """Return `error` as an event of a stream."""
    return b"data: %b\n\n" % error_body(error)


def _peek_loosely(body: bytes) -> RequestPeek:
    loose = _LOOSE_REQUEST.decode(body)
    is_absent = loose.messages is _ABSENT or is_null(loose.messages)
    messages = None if is_absent else [loose.messages]
    shared = {name: getattr(loose, name) for name in _Peek.__struct_fields__}
    return RequestPeek(messages=messages, **shared)


def _not_json(body: bytes, exc: Exception) -> BadRequest:
    if not body:
        return BadRequest("The body is empty; send a JSON object.")
    if isinstance(exc, RecursionError):
        return BadRequest("The body's JSON is nested too deeply.")
    if isinstance(exc, UnicodeDecodeError):
        return BadRequest("The body is not valid UTF-8.")
    # msgspec's messages give positions and types, never the text itself.
    return BadRequest(f"The body is not a JSON object: {exc}.")
