"""A head that was read once is not read again.

Theory of operation: what a head means is a function of its bytes. On a kept connection a client
sends nearly the same head with every request, and an engine with every response; as a rule only
the number in Content-Length differs. So the readers keep the last head of a connection, cut at that
number, and if the next read is that head with another number, and after it exactly so many bytes,
it is a whole message that needs no parser. Everything else goes through the parser, which has
accepted each head that is kept: nothing is accepted here that it would refuse.
"""

import re
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})\r\n", re.IGNORECASE)
_END: Final = b"\r\n\r\n"

_MAX_KEPT_BYTES: Final = 4096
"""A longer head is not kept: it would cost an idle connection as much memory."""

MAX_DIGITS: Final = 18


class KnownHead:
    """One head with a Content-Length, cut at its number.

    Args:
        before: up to the number.
        after: from there to the empty line, which is its end.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after

    def body_of(self, message: bytes) -> bytes | None:
        """Return the body if `message` is this head and, complete, the body that it announces."""
        before, after = self._before, self._after
        if not message.startswith(before):
            return None
        start = len(before)
        end = message.find(after, start, start + MAX_DIGITS + len(after))
        if end < 0:
            return None
        number, body = message[start:end], message[end + len(after) :]
        return body if number.isdigit() and int(number) == len(body) else None


def known_head(message: bytes, num_body_bytes: int) -> KnownHead | None:
    """Return the head of `message`; None if it is not worth keeping, or not this simple.

    Args:
        message: a read that began where a message began, and which a parser has accepted.
        num_body_bytes: what that parser took for the body of the first message in it.
    """
    end = message.find(_END, 0, _MAX_KEPT_BYTES) + len(_END)
    if end < len(_END) or end + num_body_bytes != len(message):
        return None
    length = _LENGTH.search(message, 0, end)
    if length is None or int(length[1]) != num_body_bytes:
        return None
    return KnownHead(message[: length.start(1)], message[length.end(1) : end])
