"""The client's side of HTTP/1.1, by itself and small: requests to bytes, bytes to answers."""

import json
import re
from dataclasses import dataclass

from benchmarks.soak.answers import Answer
from benchmarks.soak.engine import MODEL

CHAT = "/v1/chat/completions"
TEMPLATE = "support-agent"

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_ID = re.compile(rb"\r\nx-headstart-request-id: *([^\r]+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Response:
    """What a connection has received for one request.

    Attributes:
        answer: for the judge.
        request_id: the gateway's; empty if no head came.
        closes: the connection ends after it.
        size: bytes on the wire.
    """

    answer: Answer
    request_id: str
    closes: bool
    size: int


NOTHING = Response(Answer(0, b"", is_whole=False), "", closes=True, size=0)


def chat_body(token: str, *, is_stream: bool, padding: int = 0, filler: str = "") -> bytes:
    """Return a chat request's body; the mock's answer carries `token` and so much padding."""
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": filler},
            {"role": "user", "content": token},
        ],
    }
    if is_stream:
        body["stream"] = True
    if padding:
        body["padding"] = padding
    return json.dumps(body).encode()


def template_body(token: str) -> bytes:
    """Return a request whose prompt a template of the examples makes."""
    variables = {"question": token, "now": "12:00", "documents": ["A page.", "Another page."]}
    prompt = {"id": TEMPLATE, "variables": variables}
    return json.dumps({"model": MODEL, "prompt": prompt}).encode()


def post(body: bytes, key: str, *, path: str = CHAT) -> bytes:
    """Return a whole request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_response(raw: bytes) -> Response | None:
    """Return the response that `raw` begins with; None if it is not complete."""
    end = raw.find(b"\r\n\r\n")
    if end < 0:
        return None
    start = end + 4
    length = _LENGTH.search(raw, 0, start)
    if length is not None:
        size = start + int(length.group(1))
        return _response(raw, raw[start:size], size, end) if len(raw) >= size else None
    if not _CHUNKED.search(raw, 0, start):
        return None  # it ends with the connection
    if not raw.endswith(_LAST_CHUNK):
        return None
    body, after = _unchunked(raw, start)
    return None if after is None else _response(raw, body, after, end)


def broken_response(raw: bytes) -> Response:
    """Return what came of a response whose connection has ended before it did."""
    end = raw.find(b"\r\n\r\n")
    if end < 0:
        return NOTHING
    body = raw[end + 4 :]
    if _CHUNKED.search(raw, 0, end + 4):
        body, _ = _unchunked(raw, end + 4)
    answer = Answer(int(raw[9:12]), body, is_whole=False)
    return Response(answer, _request_id(raw, end), closes=True, size=len(raw))


def _response(raw: bytes, body: bytes, size: int, end: int) -> Response:
    closes = _CLOSE.search(raw, 0, end + 4) is not None
    answer = Answer(int(raw[9:12]), body, is_whole=True)
    return Response(answer, _request_id(raw, end), closes, size)


def _request_id(raw: bytes, end: int) -> str:
    found = _ID.search(raw, 0, end + 4)
    return found.group(1).decode() if found else ""


def _unchunked(raw: bytes, at: int) -> tuple[bytes, int | None]:
    """Return the chunks' data, and the offset after the last chunk; None if it is not there."""
    parts: list[bytes] = []
    while True:
        line = raw.find(b"\r\n", at)
        if line < 0:
            return b"".join(parts), None
        size = int(raw[at:line], 16)
        if size == 0:
            return b"".join(parts), line + 4 if len(raw) >= line + 4 else None
        data = raw[line + 2 : line + 2 + size]
        parts.append(data)
        at = line + 2 + size + 2
        if len(data) < size or at > len(raw):
            return b"".join(parts), None
