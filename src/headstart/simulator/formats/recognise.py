"""Which format a trace file has, from its content: names and suffixes say nothing."""

import zlib
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from headstart.simulator.formats import bailian, chat_log, mooncake, records, run_length
from headstart.simulator.formats.lines import Line, TraceError, describe, open_bytes, read_lines
from headstart.simulator.trace import Trace
from headstart.types import JsonObject

_FORMATS: Final[
    tuple[tuple[Callable[[JsonObject], bool], Callable[[Iterable[Line], str], Trace]], ...]
] = (
    (run_length.matches, run_length.read),
    (bailian.matches, bailian.read),
    (mooncake.matches, mooncake.read),
    (records.matches, records.read),
    (chat_log.matches, chat_log.read),
)
"""In this order: the first that matches counts, and a chat log may have anything beside a body."""

_UNDERSTOOD: Final = (
    "headstart reads JSON lines of Mooncake (timestamp, input_length, hash_ids), Bailian (chat_id, "
    "timestamp, input_length), sessions in run-length form (hash_id_scope, block_size, requests), "
    "its own request log or store, and request bodies (messages)"
)

_SUFFIXES: Final = frozenset((".gz", ".jsonl", ".json", ".ndjson", ".log", ".db"))

_OBJECT: Final = msgspec.json.Decoder(dict[str, object])


def read_trace(source: Path | str | bytes, *, name: str | None = None) -> Trace:
    """Return the trace in a file, whichever format it has, plain or gzip.

    Args:
        source: path of the file, or what is in it.
        name: of the trace; None: the file's, without suffixes.

    Raises:
        TraceError: no format that is known, a line that is not in it, or no request at all.
    """
    path = None if isinstance(source, bytes) else Path(source)
    name = name or _name_of(path)
    trace = _read(source if isinstance(source, bytes) else Path(source), path, name)
    if not trace.requests:
        raise TraceError(f"{path or name} holds no request; give a file that has some")
    return trace


def _read(source: Path | bytes, path: Path | None, name: str) -> Trace:
    where = name if path is None else path.name
    with open_bytes(source) as file:
        try:
            magic = file.read(len(records.STORE_MAGIC))
            file.seek(0)
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{where}: {error}; copy the file again") from error
        if magic != records.STORE_MAGIC:
            return _read_lines(read_lines(file, where), name, where)
    if path is None:
        raise TraceError(f"{where} is a database; give the path of its file")
    return records.read_store(path, name)


def _read_lines(lines: Iterable[Line], name: str, where: str) -> Trace:
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{where} is empty; give a file with one request per line")
    try:
        members = _OBJECT.decode(first.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise first.error(f"no JSON object: {describe(error)}", _UNDERSTOOD) from error
    for matches, read in _FORMATS:
        if matches(members):
            return read(chain((first,), lines), name)
    raise first.error(f"no known format has just {_keys(members)}", _UNDERSTOOD)


def _keys(members: JsonObject) -> str:
    keys = [repr(key[:40]) for key in list(members)[:8]]
    return ", ".join(keys) if keys else "no members"


def _name_of(path: Path | None) -> str:
    if path is None:
        return "trace"
    while path.suffix in _SUFFIXES:
        path = path.with_suffix("")
    return path.name
