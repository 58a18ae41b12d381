"""Lines of a trace file, plain or compressed, and what is said when one cannot be read.

A line that does not fit its format is an error and never skipped: a trace with holes would be
replayed as if it were whole.
"""

import gzip
import zlib
from collections.abc import Iterator
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from headstart.errors import ConfigError
from headstart.simulator.trace import Trace

MAX_LINE_BYTES: Final = 64 << 20
"""The largest request bodies, with images in them, are of this order."""

MAX_TOKENS: Final = 10**8
"""Of one prompt. A line that claims more is taken for damage, before memory is taken for it."""

_GZIP: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

# Every error of reading: of the file, of its compression (a cut file is an EOFError).
_UNREADABLE: Final = (OSError, EOFError, zlib.error)

Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
"""Of a prompt."""

OutputTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
"""Of an answer; none is replayed as one."""

BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
"""In a block."""

Moment = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
"""Seconds or milliseconds since anything."""

Decoded = TypeVar("Decoded")


class TraceError(ConfigError):
    """A trace file cannot be used."""

    code = "trace_error"


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line that is not empty.

    Attributes:
        number: in the file, from 1.
        data: without its end.
        source: name of the file.
    """

    number: int
    data: bytes
    source: str

    def error(self, problem: str, next_step: str) -> TraceError:
        """Return the error to raise about this line."""
        return TraceError(f"{self.source}, line {self.number}: {problem}; {next_step}")


def decode(decoder: msgspec.json.Decoder[Decoded], line: Line, what: str) -> Decoded:
    """Return the value of a line.

    Args:
        decoder: of the format.
        line: to read.
        what: a line is in this format, for the message.

    Raises:
        TraceError: the line is not JSON, or lacks what the format has.
    """
    try:
        return decoder.decode(line.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not {what}: {describe(error)}"
        raise line.error(problem, "correct the line or take it out") from error


def describe(error: Exception) -> str:
    """Return what a decoder found wrong, in a few words that quote nothing of the line."""
    if isinstance(error, msgspec.DecodeError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return "it is nested too deeply"


def require_times(trace: Trace) -> None:
    """Refuse a trace whose requests have no times of their own.

    Raises:
        TraceError: it is not timed.
    """
    if not trace.is_timed:
        raise TraceError(f"{trace.name} has no absolute times; give it some with `with_times`")


def open_bytes(source: Path | bytes) -> BufferedIOBase:
    """Open a file, or bytes as if they were one, decompressed if they are gzip.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        raw: BufferedIOBase = BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        is_gzip = raw.read(2) == _GZIP
        raw.seek(0)
    except OSError as error:
        raise TraceError(
            f"{source!s}: {error.strerror or error}; give the path of a readable file"
        ) from error
    return _Gzip(raw) if is_gzip else raw


class _Gzip(gzip.GzipFile):
    """Closes the file below as well, which `GzipFile` leaves to its caller."""

    def __init__(self, raw: BufferedIOBase) -> None:
        super().__init__(fileobj=raw)
        self._raw = raw

    def close(self) -> None:
        super().close()
        self._raw.close()


def read_lines(file: BufferedIOBase, source: str) -> Iterator[Line]:
    """Yield the lines of a file that are not empty.

    Args:
        file: at its start.
        source: its name, for messages.

    Raises:
        TraceError: it cannot be read to its end, or has a line of more than `MAX_LINE_BYTES`.
    """
    number = 0
    while True:
        number += 1
        try:
            data = file.readline(MAX_LINE_BYTES + 1)
        except _UNREADABLE as error:
            line = Line(number, b"", source)
            problem = f"the file cannot be read on ({error})"
            raise line.error(problem, "copy it again, its end may be missing") from error
        if not data:
            return
        if number == 1:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        if len(data) > MAX_LINE_BYTES:
            raise Line(number, b"", source).error(
                f"longer than {MAX_LINE_BYTES >> 20} MiB", "write one JSON object per line"
            )
        data = data.strip()
        if data:
            yield Line(number, data, source)
