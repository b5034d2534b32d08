"""A journal whose present state is also kept in a database of this machine, for processes that only read.

The process that looks ahead reads jobs from there, as it does where the database is the store. Nothing rests on it: it
is made anew when the journal is read, and one that cannot be written is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainmaster.engine.ports import Commit, StoredState, StoreError
from trainmaster.stores.journal import Blobs, JournalStore
from trainmaster.stores.memory import encoded
from trainmaster.stores.sqlite import SqliteStore


class MirroredJournal(JournalStore):
    def __init__(self, blobs: Blobs, writer: str, mirror: Path) -> None:
        self._path = mirror
        self._mirror: SqliteStore | None = None
        super().__init__(blobs, writer)

    def commit(self, commit: Commit) -> None:
        delta = encoded(commit)  # once for both
        self._keep(delta)
        self._reflect(lambda mirror: mirror.keep(delta.jobs, commit.ended, delta.meta))

    def load_active(self) -> StoredState:
        stored_state = super().load_active()
        self._begin(stored_state)
        return stored_state

    def close(self) -> None:
        super().close()
        self._give_up()

    def _begin(self, stored_state: StoredState) -> None:
        self._give_up()
        try:
            self._mirror = SqliteStore(self._path, durable=False)
        except StoreError:
            return
        if stored_state.meta is not None:
            whole = Commit(stored_state.jobs, {}, stored_state.meta)
            self._reflect(lambda mirror: mirror.commit(whole))

    def _reflect(self, write: Callable[[SqliteStore], None]) -> None:
        if self._mirror is None:
            return
        try:
            write(self._mirror)
        except StoreError:
            self._give_up()

    def _give_up(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                self._path.with_name(self._path.name + suffix).unlink()
