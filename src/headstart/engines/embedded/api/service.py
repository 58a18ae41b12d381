"""The small endpoints: models, tokens, health, metrics, cache control."""

import asyncio
from functools import partial

import msgspec
from aiohttp import web

import headstart
from headstart.engines.embedded.api.context import CONTEXT
from headstart.engines.embedded.api.requests import DetokenizeRequest, TokenizeRequest, parse_body
from headstart.errors import BadRequest, UpstreamUnavailable

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


async def models(request: web.Request) -> web.Response:
    """List the one model, with its context length."""
    context = request.app[CONTEXT]
    model = {
        "id": context.model_name,
        "object": "model",
        "created": int(context.clock.time()),
        "owned_by": "headstart",
        "root": context.model_name,
        "parent": None,
        "max_model_len": context.engine.context_length,
    }
    return _json({"object": "list", "data": [model]})


async def tokenize(request: web.Request) -> web.Response:
    """Return the token ids that a prompt, or a chat request's messages, would have."""
    context = request.app[CONTEXT]
    body = parse_body(await request.read(), TokenizeRequest)
    context.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("Send either `prompt` or `messages`.", param="prompt")
    if body.prompt is not None:
        tokens = await context.text_tokens(
            body.prompt, add_bos=body.add_special_tokens is not False
        )
    else:
        tokens = await context.chat_tokens(body)
    tokenizer = context.engine.tokenizer
    strings = None
    if body.return_token_strs:
        strings = [tokenizer.decode([token], skip_special=False) for token in tokens]
    return _json(
        {
            "count": len(tokens),
            "max_model_len": context.engine.context_length,
            "tokens": tokens,
            "token_strs": strings,
        }
    )


async def detokenize(request: web.Request) -> web.Response:
    """Return the text of token ids, special tokens included."""
    context = request.app[CONTEXT]
    body = parse_body(await request.read(), DetokenizeRequest)
    context.check_model(body.model)
    context.check_token_ids(body.tokens, "tokens")
    decode = partial(context.engine.tokenizer.decode, skip_special=False)
    text = await asyncio.to_thread(decode, body.tokens)
    return _json({"prompt": text})


async def health(request: web.Request) -> web.Response:
    """Answer 200 while requests are taken.

    Raises:
        UpstreamUnavailable: the server is shutting down, or the engine's thread has failed.
    """
    context = request.app[CONTEXT]
    context.gate.check_open()
    if not context.engine.is_running:
        raise UpstreamUnavailable("The engine has failed; restart it and see its log.")
    return web.Response()


async def version(request: web.Request) -> web.Response:  # noqa: ARG001  # a handler's signature
    """Return the package's version."""
    return _json({"version": headstart.__version__})


async def metrics(request: web.Request) -> web.Response:
    """Return the metrics page."""
    page = request.app[CONTEXT].metrics.render()
    return web.Response(body=page, headers={"Content-Type": _METRICS_TYPE})


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Drop every cached block; refused while requests run, since they hold blocks."""
    engine = request.app[CONTEXT].engine
    if not await asyncio.to_thread(engine.reset_prefix_cache):
        return web.Response(
            status=409,
            body=msgspec.json.encode(
                {
                    "error": {
                        "message": "Requests are running or waiting; reset when none is.",
                        "type": "invalid_request_error",
                        "param": None,
                        "code": "requests_running",
                    }
                }
            ),
            content_type="application/json",
        )
    return web.Response()


async def kv_event_sources(request: web.Request) -> web.Response:
    """List the event publishers, as vLLM 0.32 does; empty if none is enabled."""
    publisher = request.app[CONTEXT].publisher
    return _json(publisher.sources if publisher is not None else [])
