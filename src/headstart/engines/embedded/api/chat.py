"""`POST /v1/chat/completions`."""

from uuid import uuid4

import msgspec
from aiohttp import web

from headstart.engines.embedded.api.collect import Answer, UsageTally, collect
from headstart.engines.embedded.api.context import CONTEXT, ApiContext
from headstart.engines.embedded.api.outputs import OutputStream
from headstart.engines.embedded.api.requests import ChatRequest, parse_chat_request
from headstart.engines.embedded.api.responses import (
    api_finish_reason,
    chat_choice,
    chat_delta,
    tool_call_body,
)
from headstart.engines.embedded.api.streaming import EventStream
from headstart.engines.embedded.request import GenerationOutput
from headstart.errors import HeadstartError
from headstart.prompt.tool_calls import ParsedPiece, ToolCall, ToolCallParser, parse_tool_calls
from headstart.types import JsonObject


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation; streams if asked to."""
    context = request.app[CONTEXT]
    arrival_s = context.clock.monotonic()
    async with context.gate.admit():
        body = parse_chat_request(await request.read())
        context.check_model(body.model)
        prompt = await context.chat_tokens(body)
        rest = max(context.engine.context_length - len(prompt), 1)
        limit = body.max_completion_tokens or body.max_tokens or rest
        sequences = context.sequences([prompt], body, limit, arrival_s)
        async with OutputStream(context.engine, sequences) as stream:
            if body.stream:
                return await _stream(request, context, body, stream, prompt)
            return await _answer(context, body, stream, prompt)


async def _answer(
    context: ApiContext, body: ChatRequest, stream: OutputStream, prompt: list[int]
) -> web.Response:
    tally = UsageTally(body.num_choices)
    answers = await collect(stream, body.num_choices, tally)
    choices = [_choice(index, answer, body) for index, answer in enumerate(answers)]
    result = context.envelope("chatcmpl").body("chat.completion", choices)
    result["usage"] = tally.counts().body()
    if body.return_token_ids:
        result["prompt_token_ids"] = prompt
    return web.Response(body=msgspec.json.encode(result), content_type="application/json")


def _choice(index: int, answer: Answer, body: ChatRequest) -> JsonObject:
    text, calls = answer.text, list[ToolCall]()
    if body.parses_tool_calls:
        text, calls = parse_tool_calls(text)
        calls = calls[: _call_limit(body)]
    reason = api_finish_reason(answer.finish_reason, has_called=bool(calls))
    choice = chat_choice(
        index, text, [tool_call_body(call, _new_call_id()) for call in calls], reason
    )
    if body.return_token_ids:
        choice["token_ids"] = answer.token_ids
    return choice


async def _stream(
    request: web.Request,
    context: ApiContext,
    body: ChatRequest,
    stream: OutputStream,
    prompt: list[int],
) -> web.StreamResponse:
    events = EventStream(request)
    await events.open()
    tally = UsageTally(body.num_choices)
    envelope = context.envelope("chatcmpl")
    writers = [ChoiceWriter(index, body) for index in range(body.num_choices)]
    first: JsonObject = {"prompt_token_ids": prompt} if body.return_token_ids else {}
    last: JsonObject = {"usage": None} if body.wants_stream_usage else {}
    try:
        async for index, output in stream.outputs():
            tally.add(index, output)
            for choice in writers[index].take(output):
                chunk = envelope.body("chat.completion.chunk", [choice])
                await events.send({**chunk, **first, **last})
                first = {}
        if body.wants_stream_usage:
            usage = {**envelope.body("chat.completion.chunk", []), "usage": tally.counts().body()}
            await events.send(usage)
    except HeadstartError as exc:
        await events.fail(exc)
    await events.done()
    return events.response


class ChoiceWriter:
    """Turns one sequence's outputs into the choices of its chunks; does not send them."""

    __slots__ = ("_call_limit", "_has_started", "_index", "_num_calls", "_parser", "_token_ids")

    def __init__(self, index: int, body: ChatRequest) -> None:
        self._index = index
        self._parser = ToolCallParser() if body.parses_tool_calls else None
        self._call_limit = _call_limit(body)
        self._token_ids = bool(body.return_token_ids)
        self._has_started = False
        self._num_calls = 0

    def take(self, output: GenerationOutput) -> list[JsonObject]:
        """Return the choices to send for one output, possibly none."""
        choices: list[JsonObject] = []
        if not self._has_started:
            self._has_started = True
            choices.append(chat_delta(self._index, {"role": "assistant", "content": ""}))
        choices += [
            chat_delta(self._index, delta)
            for piece in self._pieces(output)
            if (delta := self._delta(piece)) is not None
        ]
        if output.finish_reason is not None:
            reason = api_finish_reason(output.finish_reason, has_called=self._num_calls > 0)
            choices.append(chat_delta(self._index, {}, reason))
        if self._token_ids and output.token_ids:
            choices = choices or [chat_delta(self._index, {"content": ""})]
            choices[0]["token_ids"] = output.token_ids
        return choices

    def _pieces(self, output: GenerationOutput) -> list[ParsedPiece]:
        if self._parser is None:
            return [output.text] if output.text else []
        pieces = self._parser.feed(output.text)
        return pieces + self._parser.finish() if output.finish_reason is not None else pieces

    def _delta(self, piece: ParsedPiece) -> JsonObject | None:
        if isinstance(piece, str):
            return {"content": piece}
        if self._call_limit is not None and self._num_calls >= self._call_limit:
            return None
        call = {"index": self._num_calls, **tool_call_body(piece, _new_call_id())}
        self._num_calls += 1
        return {"tool_calls": [call]}


def _call_limit(body: ChatRequest) -> int | None:
    return 1 if body.parallel_tool_calls is False else None


def _new_call_id() -> str:
    return f"call_{uuid4().hex[:24]}"
