"""The store keeps every field, survives locks and full disks, and refuses what it cannot read."""

import sqlite3
import threading
from contextlib import closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.accounting.record import RequestRecord
from headstart.accounting.store import _MIGRATIONS, RequestStore, read_records
from headstart.errors import StoreUnavailable
from headstart.wire.usage import Usage

FULL = RequestRecord(
    request_id="r-1",
    time_s=1_700_000_000.25,
    path="/v1/chat/completions",
    model="m",
    tenant="acme",
    business_line="support",
    template="support-agent@7",
    replica="a100-1",
    is_stream=True,
    status=200,
    error_code="upstream_error",
    usage=Usage(1200, 1024, 0, 50),
    ttft_s=0.1,
    tpot_s=0.02,
    total_s=1.1,
    queue_s=0.2,
    retries=1,
    policy="prefix_hash",
    reason="ring owner",
    body_changes=("stream_options", "template"),
    matched_tokens=1000,
)
EMPTY = RequestRecord(request_id="r-2", time_s=1_700_000_001.0, path="/v1/models")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "headstart.db"


@pytest.fixture
def store(path):
    with closing(RequestStore(path)) as store:
        yield store


def test_every_field_comes_back(store, path):
    """A row holds the whole record; unknown figures are NULL and come back as None."""
    store.write([FULL, EMPTY])
    assert read_records(path) == [FULL, EMPTY]


@pytest.mark.parametrize("num_rows", [0, 1, 31, 32, 33, 64, 100])
def test_a_batch_of_any_size_comes_back_in_order(store, path, num_rows):
    """Most rows are inserted many to a statement."""
    records = [msgspec.structs.replace(FULL, request_id=f"r-{n}") for n in range(num_rows)]
    store.write(records)
    assert read_records(path) == records


def test_no_field_of_the_full_record_has_its_default():
    """Else the test above would not notice a column that is missing."""
    others = ("is_stream", "dispatch")  # a dispatch is written as a receipt, which is read apart
    fields = [field for field in msgspec.structs.fields(FULL) if field.name not in others]
    assert not [f.name for f in fields if f.default == getattr(FULL, f.name)]


def test_what_is_unknown_is_null_and_zero_is_zero(store, path):
    """SQL sums and averages leave NULL out, as they must."""
    store.write([FULL, EMPTY])
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT written_tokens FROM requests ORDER BY id").fetchall()
    assert rows == [(0,), (None,)]


def test_a_reopened_store_goes_on(path):
    """The second opening applies no migration again and keeps the rows."""
    for record in (FULL, EMPTY):
        with closing(RequestStore(path)) as store:
            store.write([record])
    assert read_records(path) == [FULL, EMPTY]


def test_a_batch_is_kept_whole_or_not_at_all(store, path):
    """The recorder repeats a failed batch; half of one would be kept twice."""
    bad = msgspec.structs.replace(EMPTY, request_id=None)  # NOT NULL refuses it
    with pytest.raises(StoreUnavailable):
        store.write([FULL, bad])
    store.write([FULL])
    assert read_records(path) == [FULL]


def test_a_locked_database_refuses_and_then_takes_the_same_batch(store, path):
    """Another process's lock is an error now and none later."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            store.write([FULL])
        other.execute("ROLLBACK")
    store.write([FULL])
    assert read_records(path) == [FULL]


def test_a_full_database_refuses_and_then_takes_the_same_batch(store, path):
    """SQLite's own page limit stands in for a full disk: the error is the same."""
    connection = store._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    records = [
        msgspec.structs.replace(FULL, request_id=f"{i}", reason="x" * 500) for i in range(200)
    ]
    with pytest.raises(StoreUnavailable, match="full"):
        store.write(records)
    connection.execute("PRAGMA max_page_count = 1000000")
    store.write(records)
    assert read_records(path) == records


def test_readers_see_rows_while_a_writer_is_in_a_transaction(store, path):
    """WAL: neither waits for the other."""
    store.write([FULL])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert read_records(path) == [FULL]
        other.execute("ROLLBACK")


def test_only_the_newest_are_read_oldest_first(store, path):
    """`limit` cuts the old end, `since_s` too."""
    records = [msgspec.structs.replace(EMPTY, request_id=f"{i}", time_s=float(i)) for i in range(5)]
    store.write(records)
    assert read_records(path, limit=2) == records[3:]
    assert read_records(path, since_s=2.0) == records[2:]


@pytest.mark.parametrize("attempt", range(8))
def test_several_may_open_a_new_store_together(path, attempt):
    """Whoever is second waits, and finds the tables there."""
    stores, errors = [], []

    def open_store():
        try:
            stores.append(RequestStore(path))
        except StoreUnavailable as error:
            errors.append(error)

    threads = [threading.Thread(target=open_store) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert not errors
    assert len(stores) == 4


def test_an_older_store_is_brought_up_to_date(path):
    """Its rows stay; what they could not say has the value that was true then."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(_MIGRATIONS[0])
        connection.execute("CREATE TABLE migrations (version INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO migrations (version) VALUES (1)")
        connection.execute(
            "INSERT INTO requests (request_id, time_s, path, model, tenant, business_line, replica,"
            " is_stream, status, total_s, retries, policy, reason, body_changes)"
            " VALUES ('r-2', 1700000001.0, '/v1/models', '', 'default', '', '', 0, 0, 0, 0,"
            " '', '', '')"
        )
    with closing(RequestStore(path)) as store:
        store.write([FULL])
    assert read_records(path) == [FULL, EMPTY]


def test_a_later_version_is_refused_with_both_numbers(path):
    """An older headstart must not write into what it does not understand."""
    RequestStore(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO migrations (version) VALUES (99)")
    with pytest.raises(StoreUnavailable, match=r"version 99.*upgrade headstart"):
        RequestStore(path)


def test_a_file_that_is_no_database_is_named(path):
    """The message says which file and what to do."""
    path.parent.mkdir()
    path.write_text("this is not a database, and long enough to be looked at as one" * 20)
    with pytest.raises(
        StoreUnavailable, match=r"headstart\.db: file is not a database.*--data-dir"
    ):
        RequestStore(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """`data_dir` below a file is a mistake in the configuration."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="--data-dir"):
        RequestStore(tmp_path / "file" / "headstart.db")


def test_reading_where_there_is_no_store_does_not_make_one(path):
    """A reader leaves nothing behind."""
    path.parent.mkdir()
    with pytest.raises(StoreUnavailable, match="unable to open"):
        read_records(path)
    assert not path.exists()


def test_any_text_of_a_client_can_be_kept(store, path):
    """A record that SQLite refused would be tried again forever, and with it its batch."""

    @given(text=st.text(st.characters(), max_size=600))
    def check(text):
        store.write(
            [msgspec.structs.replace(FULL, model=text, path=text, template=text, reason=text)]
        )
        (kept,) = read_records(path, limit=1)
        expected = text[:512].encode("utf-8", "replace").decode()
        assert kept.model == kept.path == kept.template == kept.reason == expected

    check()
