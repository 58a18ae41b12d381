"""Asks an engine's `/tokenize` for a prompt's tokens and compares them with ours."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from headstart.engines.questions import Questions
from headstart.engines.tokenizers.model import ModelTokenizer
from headstart.engines.tokenizers.probes import probes
from headstart.errors import UpstreamError
from headstart.prompt.token_agreement import difference
from headstart.types import JsonObject

_LIMIT_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""What `Questions` must let pass: the ids of a prompt of 2 million tokens."""

_CHAT_FIELDS: Final = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template_kwargs",
)
_TEMPLATE_FIELDS: Final = ("documents", "reasoning_effort")
"""Fields of a chat request that `/tokenize` takes as variables of the template only."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


_TOKENS: Final = msgspec.json.Decoder(_Tokens)


class Comparison(msgspec.Struct, frozen=True):
    """What one or more comparisons showed.

    Attributes:
        num_compared: how many could be made; the engine refuses some, and may have no `/tokenize`.
        difference: the first one, in words without text; None if there was none.
    """

    num_compared: int
    difference: str | None = None


class TokenizeComparer:
    """Compares one replica's tokens with ours.

    Args:
        questions: to the replica.
        tokenizer: ours, of its model.
        local_time: now, in the engine's time zone as far as known, for templates that ask.
        is_embedded: the engine is the embedded one, whose prompts also hold answer formats.
    """

    __slots__ = ("_is_embedded", "_local_time", "_questions", "_tokenizer")

    def __init__(
        self,
        questions: Questions,
        tokenizer: ModelTokenizer,
        local_time: Callable[[], datetime],
        *,
        is_embedded: bool = False,
    ) -> None:
        self._questions = questions
        self._tokenizer = tokenizer
        self._local_time = local_time
        self._is_embedded = is_embedded

    async def probe(self, model: str) -> Comparison:
        """Compare the built-in conversations, up to the first difference.

        Raises:
            UpstreamError: the engine did not answer.
        """
        num_compared = 0
        for probe in probes(self._tokenizer.special_texts):
            found = await self.compare(probe.name, model, probe.body, is_chat=probe.is_chat)
            num_compared += found.num_compared
            if found.difference is not None:
                return Comparison(num_compared, found.difference)
        return Comparison(num_compared)

    async def compare(
        self, name: str, model: str, body: JsonObject, *, is_chat: bool
    ) -> Comparison:
        """Compare one prompt.

        Args:
            name: for messages.
            model: to name to the engine.
            body: of a request; it is sent to this replica again.
            is_chat: a chat request.

        Raises:
            UpstreamError: the engine did not answer, or not with tokens.
        """
        now = self._local_time()
        ours = await asyncio.to_thread(self._tokenizer.token_ids, body, is_chat=is_chat, now=now)
        question = tokenize_body(model, body, is_chat=is_chat, has_format=self._is_embedded)
        if ours is None or question is None:
            return Comparison(0)
        answer = await self._questions.post("/tokenize", msgspec.json.encode(question), _LIMIT_S)
        if answer.status >= 500:
            raise UpstreamError(f"POST /tokenize answers {answer.status}")
        if answer.status != 200:
            return Comparison(0)
        try:
            theirs = _TOKENS.decode(answer.body).tokens
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise UpstreamError("POST /tokenize answers without tokens") from exc
        if self._tokenizer.reads_clock and now.minute != self._local_time().minute:
            return Comparison(0)  # the two may have read different times
        return Comparison(1, difference(name, ours, theirs))


def tokenize_body(
    model: str, body: JsonObject, *, is_chat: bool, has_format: bool = False
) -> JsonObject | None:
    """Return what to ask `/tokenize` for a request's prompt; None if it cannot be asked for.

    Args:
        model: to name.
        body: of the request.
        is_chat: a chat request.
        has_format: `/tokenize` takes `response_format`, as the embedded engine's does.
    """
    if not is_chat:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            return None
        special = body.get("add_special_tokens")
        return {"model": model, "prompt": prompt, "add_special_tokens": special is not False}
    fields = _CHAT_FIELDS + (("response_format",) if has_format else ())
    question: JsonObject = {"model": model}
    question |= {name: body[name] for name in fields if body.get(name) is not None}
    messages = body.get("messages")
    if not has_format and isinstance(messages, list):
        question["messages"] = [_with_reasoning(message) for message in messages]
    given = body.get("chat_template_kwargs")
    variables = dict(given) if isinstance(given, dict) else {}
    effort = body.get("reasoning_effort")
    if effort is not None:
        variables.setdefault("enable_thinking", effort != "none")
    variables |= {name: body[name] for name in _TEMPLATE_FIELDS if body.get(name) is not None}
    if variables:
        question["chat_template_kwargs"] = variables
    return question


def _with_reasoning(message: object) -> object:
    """Give reasoning the name that vLLM's chat endpoint gives it, and its `/tokenize` does not."""
    if not isinstance(message, dict) or "reasoning_content" not in message:
        return message
    renamed = {key: value for key, value in message.items() if key != "reasoning_content"}
    if renamed.get("reasoning") is None:
        renamed["reasoning"] = message["reasoning_content"]
    return renamed
