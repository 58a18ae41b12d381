"""Responses that the gateway gives by itself: errors, liveness, readiness, the list of models."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from headstart.errors import HeadstartError, MethodNotAllowed, NotFound, Overloaded, RateLimit
from headstart.gateway.state import ReplicaStatus
from headstart.wire.anthropic import MESSAGES_PATH, messages_error_body
from headstart.wire.http1 import Request, simple_response
from headstart.wire.openai import error_body

REQUEST_ID: Final = b"x-headstart-request-id"
_UNAVAILABLE_RETRY_AFTER_S: Final = b"1"


def error_response(
    request: Request | None, error: HeadstartError, request_id: str, *, closes: bool
) -> bytes:
    """Return `error` as a whole response in the form of the API that was called.

    Args:
        request: what is answered; None if it could not be read.
        error: gives status and body.
        request_id: the gateway's own.
        closes: announce that the connection ends.
    """
    extra = [(REQUEST_ID, request_id.encode("ascii"))]
    if error.status == 401:
        extra.append((b"www-authenticate", b"Bearer"))  # RFC 9110 §11.6.1
    elif isinstance(error, Overloaded):
        extra += _limit_fields(error)
    elif error.status == 503:
        extra.append((b"retry-after", _UNAVAILABLE_RETRY_AFTER_S))
    elif isinstance(error, MethodNotAllowed):
        extra.append((b"allow", (error.param or "").encode("ascii")))  # RFC 9110 §10.2.1
    is_messages = request is not None and request.path == MESSAGES_PATH
    return simple_response(
        error.status,
        messages_error_body(error) if is_messages else error_body(error),
        extra=extra,
        is_keep_alive=not closes,
        has_body=request is None or request.method != "HEAD",
    )


def _limit_fields(error: Overloaded) -> Iterator[tuple[bytes, bytes]]:
    yield b"retry-after", b"%d" % error.retry_after_s  # RFC 9110 §10.2.3
    if isinstance(error, RateLimit):
        unit = error.unit.encode("ascii")  # as OpenAI's API names these fields
        yield b"x-ratelimit-limit-" + unit, b"%d" % error.limit
        yield b"x-ratelimit-remaining-" + unit, b"%d" % error.remaining


def json_response(
    request: Request, status: int, value: object, request_id: str, *, closes: bool
) -> bytes:
    """Return `value` as a whole JSON response."""
    return simple_response(
        status,
        msgspec.json.encode(value),
        extra=[(REQUEST_ID, request_id.encode("ascii"))],
        is_keep_alive=not closes,
        has_body=request.method != "HEAD",
    )


def require_method(request: Request, *methods: str) -> None:
    """Refuse other methods than `methods`.

    Raises:
        MethodNotAllowed: with the allowed ones in `param`.
    """
    if request.method not in methods:
        allowed = ", ".join(methods)
        raise MethodNotAllowed(
            f"{request.method} {request.path[:200]} is not possible; use {allowed}.", param=allowed
        )


def readiness(replicas: Sequence[ReplicaStatus], *, is_draining: bool) -> tuple[int, object]:
    """Return status and body of GET /ready: which replicas cannot be used, and why."""
    usable = [replica.name for replica in replicas if replica.is_available]
    is_ready = bool(usable) and not is_draining
    body: dict[str, object] = {
        "status": "draining" if is_draining else "ready" if is_ready else "no replica available",
        "available": usable,
        "unavailable": {
            replica.name: replica.reason for replica in replicas if not replica.is_available
        },
    }
    differ = [each.name for each in replicas if each.cache and each.cache.tokens_agree is False]
    if differ:  # which costs precision, and nothing else
        body["tokens_not_agreed"] = differ
    return (200 if is_ready else 503), body


def merged_models(
    served: Sequence[str], told: Sequence[Mapping[str, Mapping[str, object]]]
) -> list[Mapping[str, object]]:
    """Return the models of all engines as entries of OpenAI's list.

    Args:
        served: names that some replica serves.
        told: what each engine's own list says, by name; the first that knows a model describes it.
    """
    entries: list[Mapping[str, object]] = []
    for name in served:
        for models in told:
            if name in models:
                entries.append(models[name])
                break
        else:
            entries.append({"id": name, "object": "model", "created": 0, "owned_by": "headstart"})
    return entries


def model_named(name: str, entries: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the entry of the model `name`.

    Raises:
        NotFound: no replica serves it.
    """
    for entry in entries:
        if entry.get("id") == name:
            return entry
    served = ", ".join(str(entry.get("id")) for entry in entries)
    raise NotFound(f"No engine serves the model {name[:200]!r}. Served: {served}.", param="model")
