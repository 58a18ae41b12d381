"""The request log: one JSON object per line and request, for people's log pipelines.

Every line has every key; what is unknown is `null`. No line holds prompt text or a secret.
"""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec

from headstart.accounting.line_lock import LineLock
from headstart.accounting.record import RequestRecord
from headstart.accounting.sink import clip_text
from headstart.errors import StoreUnavailable


class LogLine(msgspec.Struct, frozen=True):
    """The keys of a line, in their order."""

    time: str
    request_id: str
    status: int
    model: str
    prompt_tokens: int | None
    cached_tokens: int | None
    written_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    tpot_ms: float | None
    total_latency_ms: float
    queue_ms: float
    prompt_template_version: str | None
    tenant: str
    business_line: str
    replica: str
    path: str
    stream: bool
    error_code: str | None
    retries: int
    policy: str
    reason: str
    body_changes: tuple[str, ...]
    matched_tokens: int | None


class RequestLog:
    """Writes lines to a file or the standard output.

    Args:
        descriptor: an open file descriptor.
        target: what it is, for messages.
        is_owned: close it at the end.
        lock: taken around each write, if other processes write there, too.
    """

    def __init__(
        self, descriptor: int, target: str, *, is_owned: bool, lock: LineLock | None = None
    ) -> None:
        self._descriptor = descriptor
        self._target = target
        self._is_owned = is_owned
        self._lock = lock
        self._encoder = msgspec.json.Encoder()
        self._rest = memoryview(b"")

    @classmethod
    def to_stdout(cls, lock: LineLock | None = None) -> "RequestLog":
        """Write to the process's standard output.

        Raises:
            StoreUnavailable: the process was started without one.
        """
        if sys.stdout is None:
            raise StoreUnavailable(
                "the request log's standard output is closed; give --request-log a path or `off`"
            )
        return cls(sys.stdout.fileno(), "the standard output", is_owned=False, lock=lock)

    @classmethod
    def to_file(cls, path: Path, lock: LineLock | None = None) -> "RequestLog":
        """Append to `path`; created if absent, with its folder.

        Raises:
            StoreUnavailable: it cannot be opened.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot write the request log {path}: {error.strerror}; "
                "choose another --request-log, `-` for the standard output or `off`"
            ) from error
        return cls(descriptor, str(path), is_owned=True, lock=lock)

    @property
    def name(self) -> str:
        """The sink's name in metrics."""
        return "log"

    def write(self, records: Sequence[RequestRecord]) -> None:
        """Write one line per record.

        After a failure the next call goes on where this one stopped, in the middle of a line if
        need be: the recorder repeats a batch until it is through.

        Raises:
            StoreUnavailable: the disk is full, the pipe is closed, or the like.
        """
        if not self._rest:
            lines = [self._encoder.encode(log_line(record)) for record in records]
            lines.append(b"")
            self._rest = memoryview(b"\n".join(lines))
        if self._lock is not None and self._lock.acquire():
            self._rest = memoryview(b"\n" + self._rest)
        while self._rest:
            try:
                written = os.write(self._descriptor, self._rest)
            except OSError as error:
                what = error.strerror if error.errno != errno.EPIPE else "its reader has gone"
                raise StoreUnavailable(
                    f"cannot write the request log to {self._target}: {what}; "
                    "make room, or start with another --request-log"
                ) from error
            self._rest = self._rest[written:]
        if self._lock is not None:
            self._lock.release()

    def close(self) -> None:
        """Close the file if it is ours."""
        if self._is_owned:
            with suppress(OSError):
                os.close(self._descriptor)


def log_line(record: RequestRecord) -> LogLine:
    """Turn a record into its line: milliseconds, the names that log pipelines know."""
    usage = record.usage
    return LogLine(
        time=_time_text(record.time_s),
        request_id=record.request_id,
        status=record.status,
        model=clip_text(record.model),
        prompt_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        written_tokens=usage.written_tokens,
        output_tokens=usage.output_tokens,
        ttft_ms=_milliseconds(record.ttft_s),
        tpot_ms=_milliseconds(record.tpot_s),
        total_latency_ms=_in_ms(record.total_s),
        queue_ms=_in_ms(record.queue_s),
        prompt_template_version=record.template,
        tenant=record.tenant,
        business_line=record.business_line,
        replica=record.replica,
        path=clip_text(record.path),
        stream=record.is_stream,
        error_code=record.error_code,
        retries=record.retries,
        policy=record.policy,
        reason=clip_text(record.reason),
        body_changes=record.body_changes,
        matched_tokens=record.matched_tokens,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else _in_ms(seconds)


def _in_ms(seconds: float) -> float:
    return round(seconds * 1e6) / 1e3  # whole microseconds; `round(…, 3)` takes three times as long


def _time_text(time_s: float) -> str:
    second, microseconds = divmod(round(time_s * 1e6), 1_000_000)
    return f"{_second_text(second)}.{microseconds // 1000:03d}+00:00"


@lru_cache(maxsize=2)  # one second's requests come one after the other
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
