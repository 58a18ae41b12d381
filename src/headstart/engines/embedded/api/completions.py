"""`POST /v1/completions`."""

import asyncio

import msgspec
from aiohttp import web

from headstart.engines.embedded.api.collect import UsageTally, collect
from headstart.engines.embedded.api.context import CONTEXT, ApiContext
from headstart.engines.embedded.api.outputs import OutputStream
from headstart.engines.embedded.api.requests import CompletionRequest, parse_completion_request
from headstart.engines.embedded.api.responses import api_finish_reason, completion_choice
from headstart.engines.embedded.api.streaming import EventStream
from headstart.errors import HeadstartError
from headstart.types import JsonObject

_KIND = "text_completion"


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue each prompt; streams if asked to."""
    context = request.app[CONTEXT]
    arrival_s = context.clock.monotonic()
    async with context.gate.admit():
        body = parse_completion_request(await request.read())
        context.check_model(body.model)
        prompts = await asyncio.gather(
            *(
                context.text_tokens(prompt, add_bos=body.add_special_tokens)
                for prompt in body.prompts
            )
        )
        sequences = context.sequences(prompts, body, body.token_limit, arrival_s)
        async with OutputStream(context.engine, sequences) as stream:
            if body.stream:
                return await _stream(request, context, body, stream, prompts)
            return await _answer(context, body, stream, prompts)


async def _answer(
    context: ApiContext,
    body: CompletionRequest,
    stream: OutputStream,
    prompts: list[list[int]],
) -> web.Response:
    tally = UsageTally(body.num_choices)
    answers = await collect(stream, len(prompts) * body.num_choices, tally)
    choices = []
    for index, answer in enumerate(answers):
        choice = completion_choice(index, answer.text, api_finish_reason(answer.finish_reason))
        if body.return_token_ids:
            choice["prompt_token_ids"] = prompts[index // body.num_choices]
            choice["token_ids"] = answer.token_ids
        choices.append(choice)
    result = context.envelope("cmpl").body(_KIND, choices)
    result["usage"] = tally.counts().body()
    return web.Response(body=msgspec.json.encode(result), content_type="application/json")


async def _stream(
    request: web.Request,
    context: ApiContext,
    body: CompletionRequest,
    stream: OutputStream,
    prompts: list[list[int]],
) -> web.StreamResponse:
    events = EventStream(request)
    await events.open()
    tally = UsageTally(body.num_choices)
    envelope = context.envelope("cmpl")
    has_prompt_ids: set[int] = set()
    try:
        async for index, output in stream.outputs():
            tally.add(index, output)
            reason = output.finish_reason
            choice = completion_choice(
                index, output.text, None if reason is None else api_finish_reason(reason)
            )
            if body.return_token_ids:
                choice["token_ids"] = output.token_ids
                if index not in has_prompt_ids:
                    has_prompt_ids.add(index)
                    choice["prompt_token_ids"] = prompts[index // body.num_choices]
            if output.text or reason is not None or body.return_token_ids:
                await events.send(_chunk(envelope.body(_KIND, [choice]), body))
        if body.wants_stream_usage:
            await events.send({**envelope.body(_KIND, []), "usage": tally.counts().body()})
    except HeadstartError as exc:
        await events.fail(exc)
    await events.done()
    return events.response


def _chunk(chunk: JsonObject, body: CompletionRequest) -> JsonObject:
    return {**chunk, "usage": None} if body.wants_stream_usage else chunk
