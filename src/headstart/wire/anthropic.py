"""How Anthropic's API writes errors, which is what clients of `/v1/messages` read."""

from typing import Final

import msgspec

from headstart.errors import HeadstartError

MESSAGES_PATH: Final = "/v1/messages"

_TYPES: Final = {"upstream_error": "api_error"}


def messages_error_body(error: HeadstartError) -> bytes:
    """Return `error` as Anthropic's API writes errors; with our code, which it does not have."""
    return msgspec.json.encode(
        {
            "type": "error",
            "error": {
                "type": _TYPES.get(error.type, error.type),
                "message": error.message,
                "code": error.code,
            },
        }
    )


def messages_error_event(error: HeadstartError) -> bytes:
    """Return `error` as an event of a stream; its client goes by the event's name."""
    return b"event: error\ndata: %b\n\n" % messages_error_body(error)
