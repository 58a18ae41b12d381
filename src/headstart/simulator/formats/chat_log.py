"""Chat logs: one request body of OpenAI's or Anthropic's API a line.

    {"model": "…", "messages": […], …}                                 a body by itself
    {"timestamp": "2026-01-05T09:30:00Z", "body": {…}, "usage": {…}}   with what was noted of it

The body may be in `body` or `request`, usage beside it, in `response` or in `response.body`. Times
are ISO 8601 or numbers since 1970 (in seconds, or in finer units, as their size tells), on every
line or on none. `session_id`, `conversation_id` and `thread_id` name the session; without a name, a
request whose messages begin with all those of an earlier one continues its session. `tenant` or
`user` is the tenant.

There is no tokenizer here. A block is 64 bytes of the prompt as it stands in the line, and the
number of tokens in it is the mean over the lines that have usage, or 16. Without usage an answer
is taken to have `max_tokens`, but no more than `OUTPUT_TOKENS`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import xxhash

from headstart.errors import BadRequest
from headstart.simulator.formats.lines import MAX_TOKENS, Line, decode
from headstart.simulator.formats.numbering import Numbering
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest, scope_root, timed_trace
from headstart.types import JsonObject
from headstart.wire.openai import RequestPeek, peek_request, usage_of
from headstart.wire.usage import UNKNOWN_USAGE, Usage, parse_usage

BLOCK_BYTES: Final = 64
BYTES_PER_TOKEN: Final = 4.0
"""Where no line says how many tokens its prompt has; of English text."""

OUTPUT_TOKENS: Final = 256
"""Of an answer of which nothing is known."""

_PROMPTS: Final = ("messages", "prompt", "input")
_BODIES: Final = ("body", "request")
_TIMES: Final = ("timestamp", "time", "ts", "created_at", "created")
_SESSIONS: Final = ("session_id", "conversation_id", "thread_id")
_TENANTS: Final = ("tenant", "user")
_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")

_UNITS: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""(least number, units in a second): seconds since 1970 reach 1e11 in the year 5138."""

Members = Mapping[str, msgspec.Raw]

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Logged(msgspec.Struct):
    """What is kept of a line, without its text."""

    line: Line
    at_s: float | None
    session: int
    tenant: str
    num_bytes: int
    blocks: list[int]
    usage: Usage
    output_limit: int


def matches(first: JsonObject) -> bool:
    """Return whether a file is in this format, by the object on its first line."""
    return any(key in first for key in (*_PROMPTS, *_BODIES))


def read(lines: Iterable[Line], name: str) -> Trace:
    """Return the trace in a file, timed if its lines are.

    Raises:
        TraceError: a line is not in the format, or some have times and some not.
    """
    reader = _Reader()
    logged = [reader.read(line) for line in lines]
    for each in logged:
        if (each.at_s is None) != (logged[0].at_s is None):
            raise each.line.error(
                "has a time, unlike the first"
                if each.at_s is not None
                else "has no time, unlike the first",
                f"give all lines a `{_TIMES[0]}`, or none",
            )
    bytes_per_token = _bytes_per_token(logged)
    block_tokens = max(1, round(BLOCK_BYTES / bytes_per_token))
    requests = [_request(each, bytes_per_token, block_tokens) for each in logged]
    if logged and logged[0].at_s is not None:
        return timed_trace(name, block_tokens, requests)
    requests.sort(key=lambda request: request.session)
    return Trace(name, block_tokens, tuple(requests), is_timed=False)


def _bytes_per_token(logged: Iterable[_Logged]) -> float:
    num_bytes = num_tokens = 0
    for each in logged:
        if each.usage.input_tokens:
            num_bytes += each.num_bytes
            num_tokens += each.usage.input_tokens
    return num_bytes / num_tokens if num_tokens else BYTES_PER_TOKEN


def _request(each: _Logged, bytes_per_token: float, block_tokens: int) -> TraceRequest:
    input_tokens = each.usage.input_tokens or max(1, round(each.num_bytes / bytes_per_token))
    output_tokens = each.usage.output_tokens
    return TraceRequest(
        arrival_s=each.at_s or 0.0,
        input_tokens=input_tokens,
        output_tokens=max(each.output_limit if output_tokens is None else output_tokens, 1),
        blocks=tuple(each.blocks[: input_tokens // block_tokens]),
        session=each.session,
        tenant=each.tenant,
    )


class _Reader:
    """Reads lines one after another; knows the prompts and sessions of those before."""

    def __init__(self) -> None:
        self._tree = PrefixTree()
        self._namespaces = Numbering()
        self._sessions = _Sessions()

    def read(self, line: Line) -> _Logged:
        outer = decode(_MEMBERS, line, "a logged request")
        body, inner = _body(outer, line)
        try:
            peek = peek_request(body)
        except BadRequest as error:
            raise line.error(error.message, "correct the line or take it out") from error
        parts = peek.prompt_parts()
        if not parts:
            raise line.error("no prompt", f"a body has one of {', '.join(_PROMPTS)}")
        text = b"".join(parts)
        namespace = (peek.model_name(), repr(peek.cache_salt), peek.template_parameters())
        root = scope_root(self._namespaces.number(namespace))
        pieces = (text[at : at + BLOCK_BYTES] for at in range(0, len(text), BLOCK_BYTES))
        full = len(text) // BLOCK_BYTES
        ids = [xxhash.xxh3_64_intdigest(piece) for piece in pieces][:full]
        return _Logged(
            line=Line(line.number, b"", line.source),
            at_s=_time(outer, line),
            session=self._session(peek, outer, inner),
            tenant=_text(_TENANTS, outer, inner),
            num_bytes=len(text),
            blocks=self._tree.walk(ids, root),
            usage=_usage(outer, line),
            output_limit=_output_limit(inner),
        )

    def _session(self, peek: RequestPeek, outer: Members, inner: Members) -> int:
        metadata = _object(inner.get("metadata"))
        name = _text(_SESSIONS, outer, inner, metadata)
        return self._sessions.named(name) if name else self._sessions.continued(peek)


class _Sessions:
    """Numbers of sessions, in the order in which they begin."""

    def __init__(self) -> None:
        self._numbers = Numbering()
        self._num_unnamed = 0
        self._ends: dict[bytes, int] = {}

    def named(self, name: str) -> int:
        return self._numbers.number(name)

    def continued(self, peek: RequestPeek) -> int:
        """Return the session of which an earlier prompt is the beginning of this one, or a new."""
        digest = xxhash.xxh3_128()
        ends: list[bytes] = []
        for part in peek.prompt_parts():
            digest.update(part)
            ends.append(digest.digest())
        for end in reversed(ends[:-1]):
            session = self._ends.get(end)
            if session is not None:
                break
        else:
            self._num_unnamed += 1
            session = self._numbers.number(self._num_unnamed)
        self._ends[ends[-1]] = session
        return session


def _body(outer: Members, line: Line) -> tuple[bytes, Members]:
    """Return a line's request body, as it stands there and by its members."""
    if not any(key in outer for key in _PROMPTS):
        for key in _BODIES:
            inner = _object(outer.get(key))
            if inner:
                return bytes(outer[key]), inner
    return line.data, outer


def _usage(outer: Members, line: Line) -> Usage:
    """Return the token counts, wherever the line has them."""
    response = outer.get("response")
    places = [line.data]
    if response is not None:
        places.append(bytes(response))
        places.append(bytes(_object(response).get("body", b"")))
    for place in places:
        usage = usage_of(place)
        if usage is not None:
            return _plausible(parse_usage(usage))
    return UNKNOWN_USAGE


def _plausible(usage: Usage) -> Usage:
    counts = (usage.input_tokens, usage.output_tokens)
    return usage if all((count or 0) <= MAX_TOKENS for count in counts) else UNKNOWN_USAGE


def _output_limit(body: Members) -> int:
    limits = (_value(body.get(key)) for key in _LIMITS)
    found = [limit for limit in limits if isinstance(limit, int) and limit >= 1]
    return min([*found, OUTPUT_TOKENS])


def _time(outer: Members, line: Line) -> float | None:
    """Return seconds since 1970 UTC, or since whatever the log's own zero is."""
    for key in _TIMES:
        value = _value(outer.get(key))
        if value is None:
            continue
        if isinstance(value, str):
            return _iso_time(value, key, line)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e20:
            return value / next((per_s for least, per_s in _UNITS if value >= least), 1.0)
        raise line.error(f"{key} is no time", "use ISO 8601, or seconds since 1970")
    return None


def _iso_time(value: str, key: str, line: Line) -> float:
    try:
        time = datetime.fromisoformat(value)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise line.error(f"{key} is no ISO 8601 time", "write it like 2026-01-05T09:30:00Z") from (
            error
        )


def _text(keys: Sequence[str], *places: Members) -> str:
    """Return the first of the members `keys` that is there, as text."""
    for place in places:
        for key in keys:
            value = _value(place.get(key))
            if isinstance(value, str | int) and value != "":
                return str(value)
    return ""


def _object(raw: msgspec.Raw | None) -> Members:
    if raw is None:
        return {}
    try:
        return _MEMBERS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _value(raw: msgspec.Raw | None) -> object:
    """Return the value of a member; None if there is none, or it cannot be read."""
    if raw is None:
        return None
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value
