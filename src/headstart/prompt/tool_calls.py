"""Read a model's output in the form of `prompt.tool_form` back into OpenAI `tool_calls`.

Theory of operation: output arrives in pieces of any size. Text is passed on at once, except for a
tail that could still become `<tool_call>`, and everything after a `<tool_call>` until its end tag
is there. A finished body that is a JSON object with a name and an object of arguments becomes a
call; anything else goes out as the text it was. White space between and after calls is dropped;
everything before the first call stays exactly as generated, so that a client that sends the turn
back gets the bytes (and tokens) that the model wrote.

The parser holds one output's state and knows neither tokens nor HTTP.
"""

from dataclasses import dataclass

import msgspec

from headstart.prompt.tool_form import CALL_END, CALL_START


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is the JSON object's text exactly as the model wrote it."""

    name: str
    arguments: str


ParsedPiece = str | ToolCall


class _CallBody(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_call_decoder = msgspec.json.Decoder(_CallBody)
_object_decoder = msgspec.json.Decoder(dict)


class ToolCallParser:
    """Split one model output into text and calls; does not check calls against the tools."""

    __slots__ = ("_follows_call", "_held")

    def __init__(self) -> None:
        self._held = ""
        self._follows_call = False

    def feed(self, text: str) -> list[ParsedPiece]:
        """Return what is certain after `text`; never returns an empty string."""
        self._held += text
        return self._take(at_end=False)

    def finish(self) -> list[ParsedPiece]:
        """Return what was held back; a call that was never closed comes out as text."""
        pieces = self._take(at_end=True)
        rest, self._held = self._held, ""
        if rest and not (self._follows_call and rest.isspace()):
            pieces.append(rest)
        return pieces

    def _take(self, *, at_end: bool) -> list[ParsedPiece]:
        pieces: list[ParsedPiece] = []
        while (start := self._held.find(CALL_START)) >= 0:
            self._emit_text(pieces, self._held[:start])
            self._held = self._held[start:]
            end = self._held.find(CALL_END)
            if end < 0:
                return pieces
            whole, self._held = self._held[: end + len(CALL_END)], self._held[end + len(CALL_END) :]
            call = _parse_body(whole[len(CALL_START) : end])
            if call is None:
                # A nested start tag may open a valid call; give back only the outer tag.
                inner = whole.find(CALL_START, len(CALL_START))
                cut = inner if inner >= 0 else len(whole)
                self._held = whole[cut:] + self._held
                self._emit_text(pieces, whole[:cut])
            else:
                pieces.append(call)
                self._follows_call = True
        if not at_end:
            self._release_text(pieces)
        return pieces

    def _release_text(self, pieces: list[ParsedPiece]) -> None:
        keep = _possible_tag_length(self._held)
        text, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        if self._follows_call and text.isspace():
            # Only the text that follows decides whether this separates calls or belongs to it.
            self._held = text + self._held
            return
        self._emit_text(pieces, text)

    def _emit_text(self, pieces: list[ParsedPiece], text: str) -> None:
        if text and not (self._follows_call and text.isspace()):
            pieces.append(text)
            self._follows_call = False


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Return (remaining text, calls) of a whole output."""
    parser = ToolCallParser()
    pieces = parser.feed(text) + parser.finish()
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls


def _parse_body(body: str) -> ToolCall | None:
    try:
        call = _call_decoder.decode(body.strip())
        arguments = bytes(call.arguments)
        _object_decoder.decode(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None
    return ToolCall(call.name, arguments.decode()) if call.name else None


def _possible_tag_length(text: str) -> int:
    """Return the length of the longest tail of `text` that is a proper start of `<tool_call>`."""
    for length in range(min(len(text), len(CALL_START) - 1), 0, -1):
        if text.endswith(CALL_START[:length]):
            return length
    return 0
