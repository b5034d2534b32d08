"""A store in one SQLite file: what was committed survives `kill -9` and a loss of power.

Write-ahead log with `synchronous=FULL`: a commit returns when it is on the disk. The cost is one flush for
each commit, which the service shares among all requests that wait at that moment. A database that is
locked for longer than `busy_ms`, or a disk that is full, raises `StoreError`, and nothing was changed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import sqlite

from trainmaster.engine.ports import Commit, EndedFilter, JsonObject, LogEntry, StoredState, StoreError, order_of
from trainmaster.model.codec import spec_from_json
from trainmaster.model.job import JobSpec
from trainmaster.stores import tables as t
from trainmaster.stores.migrate import migrate

_ENGINE_KEY = "engine"
_DOCUMENT = "document:"
_BEGIN = "BEGIN IMMEDIATE"


class SqliteStore:
    """See `trainmaster.engine.ports.Archive`. One thread at a time; other processes may read the file."""

    def __init__(self, path: Path, *, busy_ms: int = 2_000, durable: bool = True) -> None:
        """`durable=False` leaves the flushing to the operating system: for simulations only."""
        self.path = path
        with _typed(self):
            # Statements outside `_transaction` read, each by itself; nothing but `_transaction` locks the file.
            self._reader = _connect(path, busy_ms, durable)
            self._writer = _connect(path, busy_ms, durable)
            event.listen(self._writer, "begin", _begin_immediate)
            with self._transaction() as connection:
                migrate(connection)

    def close(self) -> None:
        for connection in (self._reader, self._writer):
            connection.close()
            connection.engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """All of it or nothing."""
        with self._writer.begin():
            yield self._writer

    # -- the engine's side ---------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        jobs = {job_id: None if record is None else _encode(record) for job_id, record in commit.jobs.items()}
        documents = [{"key": _DOCUMENT + name, "value": _encode(body)} for name, body in commit.documents.items()]
        now_ms = int(commit.meta.get("now_ms", 0))
        log = [_log_row(entry) for entry in commit.log]
        answers = [{"id": key, "at_ms": now_ms, "answer": _encode(value)} for key, value in commit.requests.items()]
        rows = self._state_rows(jobs, commit.ended, _encode(commit.meta))
        self._write(*rows, (_UPSERT_META, documents), (_INSERT_LOG, log), (_UPSERT_REQUEST, answers))

    def keep(self, jobs: Mapping[str, str | None], ended: Mapping[str, JsonObject], meta: str) -> None:
        """What a commit changes in the jobs and the engine's state, of which somebody has the text already."""
        self._write(*self._state_rows(jobs, ended, meta))

    def _state_rows(
        self, jobs: Mapping[str, str | None], ended: Mapping[str, JsonObject], meta: str
    ) -> tuple[tuple[str, list[dict[str, Any]]], ...]:
        return (
            (_DELETE_JOB, [{"id": job_id} for job_id, text in jobs.items() if text is None]),
            (_UPSERT_JOB, [{"id": job_id, "record": text} for job_id, text in jobs.items() if text is not None]),
            (_UPSERT_ENDED, [_ended_row(job_id, record) for job_id, record in ended.items()]),
            (_UPSERT_META, [{"key": _ENGINE_KEY, "value": meta}]),
        )

    def _write(self, *statements: tuple[str, list[dict[str, Any]]]) -> None:
        """By the driver alone: a round through SQLAlchemy costs more than a row."""
        with _typed(self):
            cursor = self._writer.connection.cursor()
            cursor.execute(_BEGIN)
            try:
                for statement, rows in statements:
                    if rows:
                        cursor.executemany(statement, rows)
                cursor.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have done so by itself
                    cursor.execute("ROLLBACK")
                raise

    def load(self) -> StoredState:
        with _typed(self):
            ended = self._reader.execute(sa.select(t.ended.c.id, t.ended.c.record).order_by(t.ended.c.id))
            return self._stored_state({job_id: _job_record(record) for job_id, record in ended})

    def load_active(self) -> StoredState:
        with _typed(self):
            ended = self._reader.execute(sa.select(t.ended.c.id, t.ended.c.phase).order_by(t.ended.c.id))
            return self._stored_state({job_id: {"phase": phase} for job_id, phase in ended})

    def _stored_state(self, ended: Mapping[str, JsonObject]) -> StoredState:
        jobs = self._reader.execute(sa.select(t.job.c.id, t.job.c.record).order_by(t.job.c.id))
        found = {job_id: _job_record(record) for job_id, record in jobs}
        meta = self._reader.execute(sa.select(t.meta.c.value).where(t.meta.c.key == _ENGINE_KEY)).scalar()
        return StoredState(found, ended, None if meta is None else json.loads(meta))

    # -- the past ------------------------------------------------------------------------------------

    def find_request(self, request_id: str) -> JsonObject | None:
        return self._one(_FIND_REQUEST, request_id)

    def document(self, name: str) -> JsonObject | None:
        return self._one(_FIND_META, _DOCUMENT + name)

    def find_ended(self, job_id: str) -> JsonObject | None:
        found = self._text(_FIND_ENDED, job_id)
        return None if found is None else _ended_record(job_id, found)

    def _one(self, query: str, key: str) -> JsonObject | None:
        found = self._text(query, key)
        return None if found is None else json.loads(found)

    def _text(self, query: str, key: str) -> str | None:
        with _typed(self):
            cursor = self._reader.connection.cursor()
            cursor.execute(query, {"id": key})
            found = cursor.fetchone()
        return None if found is None else found[0]

    def ended_page(self, after: int, limit: int, where: EndedFilter) -> list[JsonObject]:
        query = _narrow(_ENDED, where).where(t.ended.c.number > after)
        with _typed(self):
            rows = self._reader.execute(query.order_by(t.ended.c.number, t.ended.c.id).limit(limit))
            return [_ended_record(*row) for row in rows]

    def latest_ended(self, limit: int, where: EndedFilter) -> list[JsonObject]:
        latest = (t.ended.c.ended_ms.desc(), t.ended.c.number.desc(), t.ended.c.id.desc())
        with _typed(self):
            rows = self._reader.execute(_narrow(_ENDED, where).order_by(*latest).limit(limit))
            return [_ended_record(*row) for row in rows]

    def count_ended(self, where: EndedFilter) -> int:
        with _typed(self):
            return int(self._reader.execute(_narrow(sa.select(sa.func.count()), where)).scalar() or 0)

    def log_page(self, after: int, limit: int, job_id: str | None = None) -> list[LogEntry]:
        query = sa.select(t.log).where(t.log.c.number > after)
        if job_id is not None:
            query = query.where(t.log.c.job_id == job_id)
        with _typed(self):
            rows = self._reader.execute(query.order_by(t.log.c.number).limit(limit)).mappings()
            return [LogEntry(**{**row, "details": _details(row["details"])}) for row in rows]

    def last_log_number(self) -> int:
        with _typed(self):
            return int(self._reader.execute(sa.select(sa.func.max(t.log.c.number))).scalar() or 0)

    def prune(self, before_ms: int, keep_ended: int, keep_log: int) -> list[str]:
        oldest_ended = (
            sa.select(t.ended.c.id).order_by(t.ended.c.ended_ms.desc(), t.ended.c.number.desc()).offset(keep_ended)
        )
        gone = sa.or_(t.ended.c.ended_ms < before_ms, t.ended.c.id.in_(oldest_ended.limit(-1)))
        with _typed(self), self._transaction() as connection:
            newest = int(connection.execute(sa.select(sa.func.max(t.log.c.number))).scalar() or 0)
            forgotten = connection.execute(sa.delete(t.ended).where(gone).returning(t.ended.c.id)).scalars().all()
            stale = sa.or_(t.log.c.at_ms < before_ms, t.log.c.number <= newest - keep_log)
            connection.execute(sa.delete(t.log).where(stale))
            connection.execute(sa.delete(t.request).where(t.request.c.at_ms < before_ms))
        return sorted(forgotten)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """One moment of the file of a service that may be running; `StoreError` if it cannot be read."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError(f"database {path}: {error}") from error


def read_active(path: Path, also: Set[str] = frozenset()) -> StoredState:
    """What an engine needs to go on. Of ended jobs, only those that active ones wait for, and `also` these."""
    with _reading(path) as connection:
        jobs = {key: json.loads(record) for key, record in connection.execute("SELECT id, record FROM job")}
        row = connection.execute("SELECT value FROM meta WHERE key = ?", (_ENGINE_KEY,)).fetchone()
        ended = {}
        awaited = {name for record in jobs.values() for name in record["spec"].get("after", ())}
        for job_id in sorted(awaited | also):
            found = connection.execute("SELECT phase FROM ended WHERE id = ?", (job_id,)).fetchone()
            if found is not None:
                ended[job_id] = {"phase": found[0]}
    return StoredState(jobs, ended, None if row is None else json.loads(row[0]))


def read_recent(path: Path, count: int) -> list[JobSpec]:
    """The jobs that ended last."""
    with _reading(path) as connection:
        rows = connection.execute("SELECT record FROM ended ORDER BY ended_ms DESC LIMIT ?", (count,)).fetchall()
    return [spec_from_json(json.loads(record)["spec"]) for (record,) in rows]


class History(NamedTuple):
    ended: list[JsonObject]
    log: list[LogEntry]
    documents: list[JsonObject]


def read_history(path: Path, count: int, kinds: Sequence[str], documents: str) -> History:
    """The records of the jobs that ended last, the log's entries of these kinds in their order, and documents whose
    names begin so, read from the file of a service that may be running."""
    with _reading(path) as connection:
        latest = "SELECT id, record FROM ended ORDER BY ended_ms DESC LIMIT ?"
        ended = [_ended_record(*row) for row in connection.execute(latest, (count,))]
        wanted = f"kind IN ({', '.join('?' for _ in kinds)}) ORDER BY number"
        rows = connection.execute(
            f"SELECT at_ms, kind, job_id, text, details, number FROM log WHERE {wanted}", tuple(kinds)
        ).fetchall()
        prefix = _DOCUMENT + documents
        named = "SELECT value FROM meta WHERE substr(key, 1, ?) = ?"
        kept = [_object(text) for (text,) in connection.execute(named, (len(prefix), prefix))]
    log = [
        LogEntry(at_ms, kind, job_id, text, _details(details), number)
        for at_ms, kind, job_id, text, details, number in rows
    ]
    return History(ended, log, [body for body in kept if body is not None])


def _connect(path: Path, busy_ms: int, durable: bool) -> sa.Connection:
    options = {"check_same_thread": False, "timeout": busy_ms / 1000.0, "isolation_level": None}
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.pool.NullPool, connect_args=options)
    connection = engine.connect()
    for pragma in ("journal_mode=WAL", f"synchronous={'FULL' if durable else 'OFF'}"):
        connection.exec_driver_sql(f"PRAGMA {pragma}")
    connection.rollback()
    return connection


def _begin_immediate(connection: sa.Connection) -> None:
    """Take the write lock at once: a transaction that begins by reading could not get it later."""
    connection.exec_driver_sql(_BEGIN)


def _upsert(table: sa.Table, key: str = "id") -> str:
    statement = sqlite.insert(table)
    changed = {column.name: statement.excluded[column.name] for column in table.columns if column.name != key}
    return _compiled(statement.on_conflict_do_update(index_elements=[key], set_=changed))


def _compiled(statement: Any) -> str:
    """As text, once: these run in every commit, and what they say never changes."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


_DELETE_JOB = _compiled(sa.delete(t.job).where(t.job.c.id == sa.bindparam("id")))
_UPSERT_JOB, _UPSERT_ENDED, _UPSERT_REQUEST = _upsert(t.job), _upsert(t.ended), _upsert(t.request)
_ENDED = sa.select(t.ended.c.id, t.ended.c.record)
_FIND_REQUEST = _compiled(sa.select(t.request.c.answer).where(t.request.c.id == sa.bindparam("id")))
_FIND_ENDED = _compiled(sa.select(t.ended.c.record).where(t.ended.c.id == sa.bindparam("id")))
_FIND_META = _compiled(sa.select(t.meta.c.value).where(t.meta.c.key == sa.bindparam("id")))
_UPSERT_META = _upsert(t.meta, "key")
_INSERT_LOG = _compiled(sa.insert(t.log).values({c.name: sa.bindparam(c.name) for c in t.log.c if c.name != "number"}))


def _narrow(query: Any, where: EndedFilter) -> Any:
    query = query.select_from(t.ended)
    if where.phases is not None:
        query = query.where(t.ended.c.phase.in_(sorted(where.phases)))
    if where.name is not None:
        query = query.where(t.ended.c.name == where.name)
    if where.entity is not None:
        query = query.where(t.ended.c.entity == where.entity)
    if where.namespaces is not None:
        namespace = sa.func.json_extract(t.ended.c.record, "$.spec.payload.namespace")
        query = query.where(namespace.in_(sorted(where.namespaces)))
    return query


def _ended_row(job_id: str, record: JsonObject) -> dict[str, Any]:
    spec = record.get("spec") or {}
    return {
        "id": job_id,
        "number": order_of(job_id, int(spec.get("submit_ms", 0))),
        "name": spec.get("name", ""),
        "entity": spec.get("entity", ""),
        "phase": int(record["phase"]),
        "ended_ms": int(record.get("ended_ms", 0)),
        "record": _encode(record),
    }


def _job_record(text: str) -> JsonObject:
    """A record; one that is damaged is handed on as it is, and set aside by the control plane."""
    record = _object(text)
    return {"unreadable": str(text)} if record is None else record


def _ended_record(job_id: str, text: str) -> JsonObject:
    """One that is damaged has its id and nothing else, so that whoever reads it can name it."""
    record = _object(text) or {}
    spec = record.get("spec")
    return record if isinstance(spec, dict) and spec.get("id") == job_id else {"spec": {"id": job_id}}


def _details(text: str) -> JsonObject:
    """Of a log entry; of a damaged one nothing."""
    return _object(text) or {}


def _object(text: str) -> JsonObject | None:
    """None: it is damaged."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def _log_row(entry: LogEntry) -> dict[str, Any]:
    return {
        "at_ms": entry.at_ms,
        "kind": entry.kind,
        "job_id": entry.job_id,
        "text": entry.text,
        "details": _encode(entry.details),
    }


# A policy may remember NaN or infinity; Python's JSON reads back what it writes of them.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


@contextmanager
def _typed(store: SqliteStore) -> Iterator[None]:
    """Faults of the database as `StoreError`, with what to do about them."""
    try:
        yield
    except (exc.DBAPIError, sqlite3.Error) as error:
        cause = str(getattr(error, "orig", None) or error)
        raise StoreError(f"database {store.path}: {cause}{_remedy(cause)}") from error


def _remedy(cause: str) -> str:
    if "locked" in cause or "busy" in cause:
        return "; another process holds it: end that one (a backup, a shell), then try again"
    if "full" in cause:
        return "; there is no space left: free some, then try again"
    if "readonly" in cause or "unable to open" in cause:
        return "; check that the folder exists and may be written"
    if "malformed" in cause or "not a database" in cause:
        return "; the file is damaged: restore it from a backup"
    return ""
