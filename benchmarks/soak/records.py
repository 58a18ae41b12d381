"""Compares the requests that clients saw answered with the records in the gateway's database."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """Answers against records.

    Attributes:
        num_records: in the database.
        num_seen: ids that clients saw.
        num_missing: of these, without a record.
        num_repeated: ids with more than one record, or that more than one answer carried.
        num_unseen: records whose id no client saw.
        num_retried: records of requests that were tried twice.
        errors: records by error code.
    """

    num_records: int
    num_seen: int
    num_missing: int
    num_repeated: int
    num_unseen: int
    num_retried: int
    errors: dict[str, int]


def compare(database: Path, id_files: Iterable[Path], scratch: Path) -> RecordCheck:
    """Compare the ids in files with those in the gateway's database.

    Args:
        database: of the gateway, which has ended.
        id_files: an id a line.
        scratch: a new database is made here, since there may be millions.
    """
    connection = sqlite3.connect(scratch)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE seen (id TEXT NOT NULL)")
        connection.executemany("INSERT INTO seen VALUES (?)", _ids(id_files))
        connection.execute("CREATE INDEX seen_id ON seen (id)")
        connection.execute("ATTACH ? AS gateway", (str(database),))

        def number(query: str) -> int:
            return int(connection.execute(f"SELECT count(*) FROM ({query})").fetchone()[0])

        return RecordCheck(
            num_records=number("SELECT 1 FROM gateway.requests"),
            num_seen=number("SELECT 1 FROM seen"),
            num_missing=number(
                "SELECT 1 FROM seen WHERE NOT EXISTS"
                " (SELECT 1 FROM gateway.requests WHERE request_id = seen.id)"
            ),
            num_repeated=number(
                "SELECT 1 FROM gateway.requests GROUP BY request_id HAVING count(*) > 1"
            )
            + number("SELECT 1 FROM seen GROUP BY id HAVING count(*) > 1"),
            num_unseen=number(
                "SELECT 1 FROM gateway.requests WHERE NOT EXISTS"
                " (SELECT 1 FROM seen WHERE id = request_id)"
            ),
            num_retried=number("SELECT 1 FROM gateway.requests WHERE retries > 0"),
            errors=dict(
                connection.execute(
                    "SELECT error_code, count(*) FROM gateway.requests"
                    " WHERE error_code IS NOT NULL GROUP BY error_code ORDER BY 2 DESC"
                ).fetchall()
            ),
        )
    finally:
        connection.close()


def _ids(files: Iterable[Path]) -> Iterator[tuple[str]]:
    for path in files:
        with path.open(encoding="ascii") as lines:
            for line in lines:
                yield (line.rstrip("\n"),)
