"""One streamed chat completion, with the times and figures that the demo compares."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp

from headstart.errors import UpstreamError
from headstart.types import JsonObject
from headstart.wire.usage import UNKNOWN_USAGE, Usage, parse_usage


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request.

    Attributes:
        text: the whole answer.
        ttft_s: sent to first content, None if no content came.
        tpot_s: (last - first content) / (output tokens - 1), None below two tokens.
        usage: the engine's figures.
    """

    text: str
    ttft_s: float | None
    tpot_s: float | None
    usage: Usage


class RefusedError(UpstreamError):
    """The engine answered with an error status; `engine_status` and `message` say which."""

    code = "demo_request_refused"

    def __init__(self, engine_status: int, message: str) -> None:
        super().__init__(message)
        self.engine_status = engine_status


async def ask(session: aiohttp.ClientSession, url: str, body: JsonObject) -> Answer:
    """Send `body` as a stream to `url` and time what comes back.

    Raises:
        RefusedError: the status was not 200, or the stream carried an error.
    """
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    sent_s = time.perf_counter()
    pieces: list[str] = []
    first_s = last_s = None
    usage = UNKNOWN_USAGE
    async with session.post(url, json=request) as response:
        if response.status != 200:
            raise RefusedError(response.status, await _error_message(response))
        async for event in _events(response):
            if "error" in event:
                raise RefusedError(200, f"the stream ended with an error: {event['error']}")
            if isinstance(figures := event.get("usage"), dict):
                usage = parse_usage(figures)
            if text := _content(event):
                last_s = time.perf_counter()
                first_s = first_s or last_s
                pieces.append(text)
    ttft_s = None if first_s is None else first_s - sent_s
    return Answer("".join(pieces), ttft_s, _tpot(first_s, last_s, usage.output_tokens), usage)


def _tpot(first_s: float | None, last_s: float | None, output_tokens: int | None) -> float | None:
    if first_s is None or last_s is None or output_tokens is None or output_tokens < 2:
        return None
    return (last_s - first_s) / (output_tokens - 1)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Mapping[str, object]]:
    async for line in response.content:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)


def _content(event: Mapping[str, object]) -> str:
    """Return what this chunk adds to the answer; a tool call counts with its arguments."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices:
        return ""
    delta = choices[0].get("delta", {})
    calls = delta.get("tool_calls") or []
    functions = [call.get("function", {}) for call in calls]
    called = [(f.get("name") or "") + (f.get("arguments") or "") for f in functions]
    return (delta.get("content") or "") + "".join(called)


async def _error_message(response: aiohttp.ClientResponse) -> str:
    text = await response.text()
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = text[:200]
    return f"{response.status} from the engine: {message}"
