"""The SQLite store: one row per request.

One writer (the recorder's thread), any number of readers, in this process or another: the
database runs in WAL mode. `synchronous=NORMAL` means that a killed process loses nothing that was
written, and a power cut at most the last seconds.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

from headstart.accounting.record import RequestRecord
from headstart.accounting.sink import clip_text
from headstart.errors import StoreUnavailable
from headstart.routing.receipt import compact_receipt
from headstart.wire.usage import Usage

STORE_FILE = "headstart.db"
"""The store's name in the data directory."""

_BUSY_S = 0.25
"""How long a write waits for another process's lock before the recorder takes its turn again."""

_OPEN_S = 5.0
"""How long opening waits for others that open the same new file, or bring it up to date."""

_SWITCH_PAUSE_S = 0.01

_COLUMNS = (
    "request_id",
    "time_s",
    "path",
    "model",
    "tenant",
    "business_line",
    "template",
    "replica",
    "is_stream",
    "status",
    "error_code",
    "input_tokens",
    "cached_tokens",
    "written_tokens",
    "output_tokens",
    "ttft_s",
    "tpot_s",
    "total_s",
    "queue_s",
    "retries",
    "policy",
    "reason",
    "body_changes",
    "matched_tokens",
    "receipt",
)

_ROWS_AT_ONCE = 32
"""Rows in one statement; SQLite before 3.32 takes at most 999 values. `sqlite3` lets go of the
interpreter and takes it back around each statement, and each time the event loop may have to wait:
with one row a statement that costs more than the row."""

_PLACES = f"({', '.join('?' * len(_COLUMNS))})"
_INSERT = f"INSERT INTO requests ({', '.join(_COLUMNS)}) VALUES {_PLACES}"  # noqa: S608 -- names of our own columns
_INSERT_ROWS = _INSERT + f", {_PLACES}" * (_ROWS_AT_ONCE - 1)
_RECORD_COLUMNS = _COLUMNS[:-1]  # a receipt is read for itself
_SELECT = f"SELECT {', '.join(_RECORD_COLUMNS)} FROM requests"  # noqa: S608 -- likewise
_SELECT_ONE = f"SELECT {', '.join(_COLUMNS)} FROM requests WHERE request_id = ?"  # noqa: S608 -- likewise

_MIGRATIONS = (
    # 1: the request table. NULL is "unknown". Each index ends in time because every question is
    # about a stretch of it.
    """
    CREATE TABLE requests (
        id INTEGER PRIMARY KEY,
        request_id TEXT NOT NULL,
        time_s REAL NOT NULL,
        path TEXT NOT NULL,
        model TEXT NOT NULL,
        tenant TEXT NOT NULL,
        business_line TEXT NOT NULL,
        template TEXT,
        replica TEXT NOT NULL,
        is_stream INTEGER NOT NULL,
        status INTEGER NOT NULL,
        error_code TEXT,
        input_tokens INTEGER,
        cached_tokens INTEGER,
        written_tokens INTEGER,
        output_tokens INTEGER,
        ttft_s REAL,
        tpot_s REAL,
        total_s REAL NOT NULL,
        retries INTEGER NOT NULL,
        policy TEXT NOT NULL,
        reason TEXT NOT NULL,
        body_changes TEXT NOT NULL
    );
    CREATE INDEX requests_request_id ON requests (request_id);
    CREATE INDEX requests_time ON requests (time_s);
    CREATE INDEX requests_template_time ON requests (template, time_s);
    CREATE INDEX requests_tenant_time ON requests (tenant, time_s);
    CREATE INDEX requests_replica_time ON requests (replica, time_s);
    """,
    # 2: how long a request waited in the gateway; before, none did.
    """
    ALTER TABLE requests ADD COLUMN queue_s REAL NOT NULL DEFAULT 0;
    """,
    # 3: each index costs a request 2 µs. By tenant or replica the one over time does: either has
    # a good part of all requests in any stretch of it. By template it may be a needle in a stack.
    """
    DROP INDEX requests_tenant_time;
    DROP INDEX requests_replica_time;
    DROP INDEX requests_template_time;
    CREATE INDEX requests_template_time ON requests (template, time_s) WHERE template IS NOT NULL;
    """,
    # 4: what was predicted of the cache, and the receipt in its compact form (`routing.receipt`).
    """
    ALTER TABLE requests ADD COLUMN matched_tokens INTEGER;
    ALTER TABLE requests ADD COLUMN receipt TEXT;
    """,
)
"""What brings a database from version n to n + 1; never edited, only added to."""


class RequestStore:
    """Writes records into a SQLite file, which it creates or brings up to date.

    Args:
        path: the database file; its folder is created.

    Raises:
        StoreUnavailable: the file cannot be opened, is no database, or is of a later version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _unavailable(path, error.strerror or str(error)) from error
        try:
            # Opened here, so that a bad path stops the start; used by the recorder's thread only.
            self._connection = sqlite3.connect(
                path, timeout=_OPEN_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _unavailable(path, str(error)) from error
        try:
            _use_wal(self._connection)
            self._connection.execute("PRAGMA synchronous = NORMAL")
            _migrate(self._connection, path)
            self._connection.execute(f"PRAGMA busy_timeout = {round(_BUSY_S * 1000)}")
        except sqlite3.Error as error:
            self._connection.close()
            raise _unavailable(path, str(error)) from error
        except StoreUnavailable:
            self._connection.close()
            raise

    @property
    def name(self) -> str:
        """The sink's name in metrics."""
        return "store"

    def write(self, records: Sequence[RequestRecord]) -> None:
        """Insert `records` in one transaction: all or none.

        Raises:
            StoreUnavailable: the database is locked, full or cannot be written.
        """
        rows = [_row(record) for record in records]
        try:
            # IMMEDIATE: a transaction that starts by reading could not wait for a lock later.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._insert(rows)
                self._connection.execute("COMMIT")
            except sqlite3.Error:
                # A full disk may have rolled back already; then there is nothing to undo.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _unavailable(self._path, str(error)) from error

    def _insert(self, rows: list[tuple[object, ...]]) -> None:
        num_whole = len(rows) - len(rows) % _ROWS_AT_ONCE
        for start in range(0, num_whole, _ROWS_AT_ONCE):
            values = list(chain.from_iterable(rows[start : start + _ROWS_AT_ONCE]))
            self._connection.execute(_INSERT_ROWS, values)
        self._connection.executemany(_INSERT, rows[num_whole:])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def read_records(path: Path, *, since_s: float = 0.0, limit: int = 1000) -> list[RequestRecord]:
    """Return the newest records of a store, oldest of them first; reads while others write.

    Args:
        path: the database file.
        since_s: none that arrived before this time (seconds since 1970).
        limit: at most so many.

    Raises:
        StoreUnavailable: there is no such store, or it cannot be read.
    """
    query = f"{_SELECT} WHERE time_s >= ? ORDER BY time_s DESC, id DESC LIMIT ?"
    rows = _read(path, query, (since_s, limit))
    return [_record(row) for row in reversed(rows)]


def read_request(path: Path, request_id: str) -> tuple[RequestRecord, str | None] | None:
    """Return one request's record and its compact receipt; None if there is no such record.

    Args:
        path: the database file.
        request_id: the gateway's own.

    Raises:
        StoreUnavailable: there is no such store, or it cannot be read.
    """
    rows = _read(path, _SELECT_ONE, (request_id,))
    if not rows:
        return None
    *columns, receipt = rows[-1]
    return _record(tuple(columns)), None if receipt is None else str(receipt)


def _read(path: Path, query: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as connection:
            return connection.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise _unavailable(path, str(error)) from error


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging, which a new file needs once.

    SQLite does not wait for another process that is just switching the same file, however long
    its timeout is, so this does.
    """
    deadline = time.monotonic() + _OPEN_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(_SWITCH_PAUSE_S)
        else:
            return


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply what is missing, each migration with its version in one transaction."""
    # Two gateways may open a new file together: whoever is second finds nothing to do.
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations"
            " (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)"
        )
        row = connection.execute("SELECT COALESCE(MAX(version), 0) FROM migrations").fetchone()
        version = int(row[0])
        if version > len(_MIGRATIONS):
            raise StoreUnavailable(
                f"{path} has version {version}, this headstart knows {len(_MIGRATIONS)}: "
                "upgrade headstart, or choose another --data-dir"
            )
        for number, script in enumerate(_MIGRATIONS[version:], start=version + 1):
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute("INSERT INTO migrations (version) VALUES (?)", (number,))
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _statements(script: str) -> Iterator[str]:
    # Not executescript(): it commits first, and a half-applied migration could not be undone.
    return (statement for statement in script.split(";") if statement.strip())


def _row(record: RequestRecord) -> tuple[object, ...]:
    usage = record.usage
    return (
        record.request_id,
        record.time_s,
        clip_text(record.path),
        clip_text(record.model),
        record.tenant,
        record.business_line,
        record.template if record.template is None else clip_text(record.template),
        record.replica,
        record.is_stream,
        record.status,
        record.error_code,
        usage.input_tokens,
        usage.cached_tokens,
        usage.written_tokens,
        usage.output_tokens,
        record.ttft_s,
        record.tpot_s,
        record.total_s,
        record.queue_s,
        record.retries,
        record.policy,
        clip_text(record.reason),
        ",".join(record.body_changes),
        record.matched_tokens,
        None if record.dispatch is None else compact_receipt(record.dispatch).decode(),
    )


def _record(row: tuple[object, ...]) -> RequestRecord:
    values = dict(zip(_RECORD_COLUMNS, row, strict=True))
    usage = Usage(
        **{name: values.pop(name) for name in Usage.__struct_fields__}  # type: ignore[arg-type]
    )
    changes = str(values.pop("body_changes"))
    is_stream = bool(values.pop("is_stream"))
    return RequestRecord(
        **values,  # type: ignore[arg-type]
        usage=usage,
        is_stream=is_stream,
        body_changes=tuple(changes.split(",")) if changes else (),
    )


def _unavailable(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot use the request store {path}: {why}; "
        "check the disk and its permissions, or choose another --data-dir"
    )
