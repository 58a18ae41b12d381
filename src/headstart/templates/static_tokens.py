"""How many leading tokens of a version's prompts are the same in every request.

Nobody but the chat template knows where tools, a schema or a default system text land, and a
tokenizer may join the last static character with the first changing one. So nothing is added up:
whole conversations that share only the static part are rendered and tokenised, and the count is
the length of what all of them have in common.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from headstart.prompt.body import lay_out_static
from headstart.prompt.chat_template import ChatTemplate
from headstart.prompt.segments import PromptForm, SchemaSegment, SegmentKind, TextSegment
from headstart.prompt.tokenizer import Tokenizer
from headstart.templates.model import TemplateVersion
from headstart.types import JsonObject

_ANY_DAY = datetime(2000, 1, 1)
"""For chat templates that write the date: it has the same number of tokens on any day."""

_OPENINGS = (
    "Alpha",
    "beta",
    " gamma",
    "\n\nDelta",
    "7",
    "\u00e9",
    "(",
    '"',
    "\u4e2d",
    "<",
    "\U0001f600",
)
"""Beginnings that tokenizers join in different ways with what stands before."""


@dataclass(frozen=True, slots=True)
class StaticTokens:
    """Token counts of a version's static part.

    Attributes:
        total: leading tokens that every request has, the next message's fixed markup included.
        by_segment: what each static segment adds to that; the sum is `total`.
    """

    total: int
    by_segment: tuple[tuple[str, int], ...]


def count_static_tokens(
    version: TemplateVersion, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> StaticTokens:
    """Count the static prefix's tokens as the engine will see them; renders, does not generate.

    Raises:
        TemplateError: the chat template refuses this template's messages.

    Cost: tokenises each static segment's prompt a dozen times; for a command, not for a request.
    """
    form = version.template.form
    static = [s for s in form.segments if s.kind is SegmentKind.STATIC]
    counts: list[tuple[str, int]] = []
    before = 0
    for end in range(1, len(static) + 1):
        part = replace(form, segments=(*static[:end], *form.segments[len(static) :]))
        total = _common_tokens(part, tokenizer, chat_template)
        counts.append((static[end - 1].name, total - before))
        before = total
    return StaticTokens(before, tuple(counts))


def static_token_count(
    version: TemplateVersion, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> int:
    """Return how many leading tokens every request of the version has in common."""
    return _common_tokens(version.template.form, tokenizer, chat_template)


def _common_tokens(form: PromptForm, tokenizer: Tokenizer, chat_template: ChatTemplate) -> int:
    prefix = lay_out_static(form)
    messages = [msgspec.json.decode(data, type=JsonObject) for data in prefix.messages]
    tools = None
    if prefix.tools is not None:
        tools = [msgspec.json.decode(data, type=JsonObject) for data in prefix.tools]
    schema = None
    for segment in form.segments:
        if isinstance(segment, SchemaSegment):
            schema = msgspec.json.decode(segment.schema, type=JsonObject)

    def tokens(rest: Sequence[Mapping[str, Any]]) -> list[int]:
        text = chat_template.render(
            [*messages, *rest], tools=tools, response_schema=schema, now=_ANY_DAY
        )
        return tokenizer.encode(text)

    return _common_length(tokens, _continuations(form))


def _continuations(form: PromptForm) -> list[list[JsonObject]]:
    """Return what can follow the static messages: texts that begin in many ways, and histories."""
    changing = [s for s in form.segments if s.kind is not SegmentKind.STATIC]
    if not changing:
        return [[]]
    # Any of them may be the first message: a text that renders to nothing makes none. A history
    # begins with a user turn.
    roles = dict.fromkeys(s.role for s in changing if isinstance(s, TextSegment))
    if form.has_history:
        roles["user"] = None
    found: list[list[JsonObject]] = [
        [{"role": role, "content": text}] for role in roles for text in _OPENINGS
    ]
    if form.has_history:
        question: JsonObject = {"role": "user", "content": "What comes next?"}
        answer: JsonObject = {"role": "assistant", "content": "This does."}
        found.append([question, answer, question])
    return found


def _common_length(
    tokens: Callable[[Sequence[Mapping[str, Any]]], list[int]],
    continuations: Sequence[Sequence[Mapping[str, Any]]],
) -> int:
    first, *others = [tokens(rest) for rest in continuations]
    length = len(first)
    for other in others:
        length = min(length, len(other))
        while first[:length] != other[:length]:
            length -= 1
    return length
