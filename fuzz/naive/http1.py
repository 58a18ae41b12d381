"""HTTP/1.1 framing by the letter of RFC 9112: the judge of the gateway's readers.

It takes the whole input at once, looks at complete lines only and shares no code with the product.
Where the RFC lets a recipient choose between refusing and repairing, it refuses: a request that
two parsers may frame differently must not pass, so a reader that accepts what this one refuses
has a hole.
"""

import re
from dataclasses import dataclass, field

# RFC 9110 §5.6.2, RFC 9112 §3. A target is held to have no control characters and no space; which
# of the other characters are fit for a URI makes no difference to framing.
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REQUEST_LINE = re.compile(
    # §3: a recipient may take any run of spaces for one, since none can be part of a target.
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) +([^\x00-\x20\x7f]+) +HTTP/1\.([01])"
)
# RFC 9112 §4: the reason phrase is for nobody's reading. Old streaming servers wrote other names
# for the same protocol; nothing depends on the name.
_STATUS_LINE = re.compile(rb"(?:HTTP|ICE|RTSP)/1\.([01]) ([1-9][0-9]{2})(?: ([^\r\n]*))?")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]+)(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_DIGITS = re.compile(rb"[0-9]+")


class Refused(Exception):
    """The bytes are not one unambiguous message."""


class Incomplete(Exception):
    """The bytes so far are the beginning of a message."""


@dataclass(slots=True)
class NaiveMessage:
    """One message.

    Attributes:
        start: method and target of a request, status and reason of a response.
        minor_version: 0 or 1.
        fields: lower-case name and value without the space around it, in order; no trailers.
        body: without its framing.
        is_keep_alive: the connection may carry another message.
    """

    start: tuple[bytes, bytes]
    minor_version: int
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    is_keep_alive: bool = True

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of the fields called `name`."""
        return [value for key, value in self.fields if key == name]

    def listed(self, name: bytes) -> list[bytes]:
        """Return the members of a field that is a list, lower case."""
        joined = b",".join(self.values(name))
        return [member.strip(b" \t").lower() for member in joined.split(b",")]


@dataclass(frozen=True, slots=True)
class NaiveReading:
    """What a sequence of bytes is.

    Attributes:
        messages: complete ones, in order.
        ends: offset after each.
        refusal: why the rest is no message; empty if it is the beginning of one, or nothing.
    """

    messages: list[NaiveMessage]
    ends: list[int]
    refusal: str = ""


def read_requests(raw: bytes) -> NaiveReading:
    """Read a client's bytes up to the first fault."""
    messages: list[NaiveMessage] = []
    ends: list[int] = []
    at = 0
    while True:
        # RFC 9112 §2.2: empty lines before a request line are ignored.
        while raw[at : at + 1] in (b"\r", b"\n"):
            at += 1
        try:
            message, at = _request(raw, at)
        except Incomplete:
            return NaiveReading(messages, ends)
        except Refused as refused:
            return NaiveReading(messages, ends, str(refused))
        messages.append(message)
        ends.append(at)
        if not message.is_keep_alive:
            return NaiveReading(messages, ends)


def read_response(raw: bytes, method: str, *, is_ended: bool) -> tuple[NaiveMessage, int]:
    """Read an engine's bytes up to the end of the final response.

    Args:
        raw: from the start of a response.
        method: of the request.
        is_ended: the connection has ended after `raw`.

    Returns:
        The response and the offset after it.

    Raises:
        Refused: the bytes are no response.
        Incomplete: they are the beginning of one.
    """
    at = 0
    while True:
        while raw[at : at + 1] in (b"\r", b"\n"):
            at += 1
        line, at = _line(raw, at)
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise Refused("status line")
        minor, status, reason = match.groups()
        message = NaiveMessage((status, reason or b""), int(minor))
        message.fields, at = _fields(raw, at)
        if status == b"101":
            raise Refused("another protocol")  # nobody asked for one
        if not status.startswith(b"1"):
            break
    return message, _response_body(message, raw, at, method, is_ended=is_ended)


def _request(raw: bytes, at: int) -> tuple[NaiveMessage, int]:
    line, at = _line(raw, at)
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise Refused("request line")
    method, target, minor = match.groups()
    message = NaiveMessage((method, target), int(minor))
    message.fields, at = _fields(raw, at)
    hosts = message.values(b"host")
    if message.minor_version == 1 and (len(hosts) != 1 or b"," in hosts[0]):
        raise Refused("Host")
    options = message.listed(b"connection")
    if message.minor_version == 1:
        message.is_keep_alive = b"close" not in options
    else:
        message.is_keep_alive = b"keep-alive" in options and b"close" not in options
    codings = message.values(b"transfer-encoding")
    length = _content_length(message)
    if codings:
        if length is not None or message.minor_version == 0:
            raise Refused("Transfer-Encoding beside Content-Length or in HTTP/1.0")
        if len(codings) != 1 or codings[0].lower() != b"chunked":
            raise Refused("coding")
        message.body, at = _chunks(raw, at)
    elif length is not None:
        message.body, at = _exactly(raw, at, length)
    return message, at


def _response_body(
    message: NaiveMessage, raw: bytes, at: int, method: str, *, is_ended: bool
) -> int:
    status = message.start[0]
    options = message.listed(b"connection")
    is_persistent = b"close" not in options
    message.is_keep_alive = is_persistent and (
        message.minor_version == 1 or b"keep-alive" in options
    )
    if method == "HEAD" or status in (b"204", b"304"):
        return at
    codings = message.values(b"transfer-encoding")
    length = _content_length(message)
    if codings:
        if length is not None:
            raise Refused("Transfer-Encoding beside Content-Length")
        if message.minor_version == 0:  # §6.1: its framing is not to be trusted any further
            message.is_keep_alive = False
        if len(codings) == 1 and codings[0].lower() == b"chunked":
            message.body, at = _chunks(raw, at)
            return at
        raise Refused("coding")  # none was asked for
    if length is not None:
        message.body, at = _exactly(raw, at, length)
        return at
    message.is_keep_alive = False
    if not is_ended:
        raise Incomplete
    message.body = raw[at:]
    return len(raw)


def _line(raw: bytes, at: int) -> tuple[bytes, int]:
    end = raw.find(b"\n", at)
    if end < 0:
        raise Incomplete
    line = raw[at:end]
    if not line.endswith(b"\r") or b"\r" in line[:-1]:
        raise Refused("line end")
    return line[:-1], end + 1


def _fields(raw: bytes, at: int) -> tuple[list[tuple[bytes, bytes]], int]:
    found: list[tuple[bytes, bytes]] = []
    while True:
        line, at = _line(raw, at)
        if not line:
            return found, at
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refused("field line")
        found.append((name.lower(), value.strip(b" \t")))


def _content_length(message: NaiveMessage) -> int | None:
    values = message.values(b"content-length")
    if not values:
        return None
    if len(values) != 1 or not _DIGITS.fullmatch(values[0]) or len(values[0]) > 4000:
        raise Refused("Content-Length")
    return int(values[0])


def _exactly(raw: bytes, at: int, length: int) -> tuple[bytes, int]:
    if len(raw) - at < length:
        raise Incomplete
    return raw[at : at + length], at + length


def _chunks(raw: bytes, at: int) -> tuple[bytes, int]:
    body = b""
    while True:
        line, at = _line(raw, at)
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise Refused("chunk size")
        size = int(match.group(1), 16)
        if size == 0:
            break
        part, at = _exactly(raw, at, size)
        body += part
        end, at = _exactly(raw, at, 2)
        if end != b"\r\n":
            raise Refused("end of chunk")
    _, at = _fields(raw, at)
    return body, at
