"""The SQLite store keeps both contracts; it survives `kill -9`, a held lock and a full disk without losing anything."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine.ports import Archive, Commit, LogEntry, StoreError
from trainmaster.stores import migrate, tables
from trainmaster.stores.memory import MemoryStore
from trainmaster.stores.sqlite import SqliteStore
from trainmaster.testing.store_contract import check_store


def commit(n: int, **more: object) -> Commit:
    return Commit({"a": {"n": n}}, {}, {"n": n}, [LogEntry(n, "k", "a", f"entry {n}")], **more)  # type: ignore[arg-type]


def _write_newer(store: Archive) -> Callable[[], bytes]:
    assert isinstance(store, SqliteStore)
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    return store.path.read_bytes


def test_contract(tmp_path: Path) -> None:
    names = itertools.count()
    check_store(
        lambda: SqliteStore(tmp_path / f"{next(names)}.db"),
        lambda store: SqliteStore(store.path),  # type: ignore[attr-defined]
        _write_newer,
    )


_KILLED = """
import sys
from pathlib import Path
from trainmaster.engine.ports import Archive, Commit, LogEntry
from trainmaster.stores.memory import MemoryStore
from trainmaster.stores.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
n = 0
while True:
    n += 1
    jobs = {f"job-{k}": {"n": n} for k in range(20)}
    store.commit(Commit(jobs, {}, {"n": n}, [LogEntry(n, "k", None, "t")]))
    print(n, flush=True)
"""


def test_what_was_committed_survives_kill_9_whole(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    for kill_after in (3, 11):
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(path)], stdout=subprocess.PIPE, text=True, env=env
        )
        assert process.stdout is not None
        told = 0
        for _ in range(kill_after):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        store = SqliteStore(path)
        stored_state = store.load()
        assert stored_state.meta is not None
        assert stored_state.meta["n"] >= told, "a commit that returned is there"
        assert {record["n"] for record in stored_state.jobs.values()} == {stored_state.meta["n"]}, (
            "and no commit is there in part"
        )
        store.close()


def test_a_lock_that_another_process_holds(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, busy_ms=100)
    store.commit(commit(1))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"locked.*another process"):
        store.commit(commit(2))
    assert store.load().meta == {"n": 1}, "reading goes on"
    other.execute("ROLLBACK")
    store.commit(commit(3))
    assert store.load().meta == {"n": 3}
    assert [entry.at_ms for entry in store.log_page(0, 9)] == [1, 3]


def test_a_lock_that_is_soon_released_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, busy_ms=10_000)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
    release.start()
    store.commit(commit(1))
    release.join()
    assert store.load().meta == {"n": 1}


def _fill(store: SqliteStore, big: str) -> int:
    """Commit until it fails; returns the last that succeeded."""
    for n in range(1, 10_000):
        try:
            store.commit(Commit({f"job-{n}": {"text": big}}, {}, {"n": n}))
        except StoreError as error:
            if "full" not in str(error) or "free some" not in str(error):
                raise
            return n - 1
    raise AssertionError("it never became full")


def test_a_full_database(tmp_path: Path) -> None:
    """`max_page_count` makes SQLite report what a full disk makes it report."""
    store = SqliteStore(tmp_path / "store.db")
    for connection in (store._writer, store._reader):
        connection.exec_driver_sql("PRAGMA max_page_count=60")
        connection.rollback()
    last = _fill(store, "x" * 3000)
    again = SqliteStore(tmp_path / "store.db")
    stored_state = again.load()
    assert stored_state.meta == {"n": last}
    assert set(stored_state.jobs) == {f"job-{n}" for n in range(1, last + 1)}, (
        "nothing committed is lost, nothing else is there"
    )
    again.commit(Commit({"after": {}}, {}, {"n": -1}))
    assert "after" in again.load().jobs, "with room again it goes on"


def test_a_really_full_disk(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        store = SqliteStore(mount / "store.db")
        last = _fill(store, "x" * 3000)
        assert store.load().meta == {"n": last}
        store.close()
        again = SqliteStore(mount / "store.db")
        assert set(again.load().jobs) == {f"job-{n}" for n in range(1, last + 1)}
        again.close()
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(path)


def test_migrations_make_the_tables_that_the_code_knows(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "migrated.db")
    store.close()
    plain = sa.create_engine(f"sqlite:///{tmp_path / 'plain.db'}")
    tables.metadata.create_all(plain)

    def schema(engine: sa.Engine) -> dict[str, object]:
        inspector = sa.inspect(engine)
        return {
            name: (
                [(column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns(name)],
                sorted((index["name"], tuple(index["column_names"])) for index in inspector.get_indexes(name)),
                inspector.get_pk_constraint(name)["constrained_columns"],
            )
            for name in inspector.get_table_names()
            if name != "alembic_version"
        }

    assert schema(sa.create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")) == schema(plain)
    folder = Path(migrate.__file__).parent / "migrations" / "versions"
    assert max(path.name[1:5] for path in folder.glob("v*.py")) == migrate.HEAD


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    store.close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="schema 9999"):
        SqliteStore(tmp_path / "store.db")


_IDS = st.sampled_from([f"job-{n}" for n in range(1, 7)])
_COMMITS = st.lists(
    st.tuples(
        st.dictionaries(_IDS, st.one_of(st.none(), st.integers())),
        st.dictionaries(_IDS, st.sampled_from([8, 9, 10])),
        st.integers(0, 3),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(commits=_COMMITS)
def test_it_agrees_with_the_memory_store(commits: list[tuple[dict, dict, int]], tmp_path_factory: object) -> None:
    path = Path(str(tmp_path_factory.mktemp("agree"))) / "store.db"  # type: ignore[attr-defined]
    ours, model = SqliteStore(path, durable=False), MemoryStore()
    for n, (jobs, ended, lines) in enumerate(commits):
        one = Commit(
            {job_id: None if value is None else {"n": value} for job_id, value in jobs.items()},
            {job_id: {"spec": {"id": job_id}, "phase": phase, "ended_ms": n} for job_id, phase in ended.items()},
            {"now_ms": n},
            [LogEntry(n, "k", None, f"{n}.{k}") for k in range(lines)],
        )
        ours.commit(one)
        model.commit(one)
    assert ours.load() == model.load()
    assert ours.load_active() == model.load_active()
    assert ours.log_page(0, 100) == model.log_page(0, 100)
    ours.close()
