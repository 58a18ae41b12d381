"""Turn every failure of a handler into an answer in OpenAI's form, once, for all routes."""

import logging
import traceback
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from headstart.errors import BodyTooLarge, HeadstartError, NotFound
from headstart.wire.openai import error_body

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors as JSON; log an unexpected one by type and place, never by its text."""
    try:
        return await handler(request)
    except HeadstartError as exc:
        return error_response(exc)
    except web.HTTPRequestEntityTooLarge as exc:
        limit = f"{request.client_max_size} bytes"
        return error_response(BodyTooLarge(f"The body is larger than {limit}."), exc)
    except web.HTTPNotFound as exc:
        return error_response(NotFound(f"There is no {request.method} {request.path} here."), exc)
    except web.HTTPException as exc:
        return _plain_http_error(request, exc)
    except Exception as exc:  # noqa: BLE001  # the top of a request's task
        _log.error(
            "%s in %s %s\n%s",
            type(exc).__name__,
            request.method,
            request.path,
            "".join(traceback.format_tb(exc.__traceback__)),
        )
        return error_response(
            HeadstartError(f"The engine's server failed ({type(exc).__name__}); see its log.")
        )


def error_response(error: HeadstartError, cause: web.HTTPException | None = None) -> web.Response:
    """Return `error` as a response; keeps the connection header that `cause` asks for."""
    response = web.Response(
        body=error_body(error), status=error.status, content_type="application/json"
    )
    if cause is not None and cause.status == BodyTooLarge.status:
        response.force_close()  # the rest of the body is still on its way
    return response


def _plain_http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    allowed = error.headers.get("Allow")
    hint = f"; use {allowed}" if allowed else ""
    body = {
        "error": {
            "message": f"{request.method} {request.path}: {error.reason}{hint}.",
            "type": "invalid_request_error",
            "param": None,
            "code": "bad_request",
        }
    }
    return web.Response(
        body=msgspec.json.encode(body),
        status=error.status,
        headers={"Allow": allowed} if allowed else None,
        content_type="application/json",
    )
