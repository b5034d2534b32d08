"""A journal with a copy in a database: the copy says what the journal says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainmaster.engine.ports import Commit, StoredState
from trainmaster.stores.mirror import MirroredJournal
from trainmaster.stores.sqlite import read_active


class Blobs(dict[str, bytes]):
    def create(self, name: str, data: bytes) -> None:
        assert name not in self
        self[name] = data

    def read(self, name: str) -> bytes | None:
        return self.get(name)

    def read_all(self) -> dict[str, bytes]:
        return dict(self)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.pop(name, None)


def _same(stored_state: StoredState, path: Path) -> bool:
    copy = read_active(path, set())
    return (copy.jobs, copy.meta) == (stored_state.jobs, stored_state.meta)


def test_the_copy_follows_every_commit_and_is_made_anew_from_the_journal(tmp_path: Path) -> None:
    blobs, path = Blobs(), tmp_path / "mirror.db"
    store = MirroredJournal(blobs, "w", path)
    store.load_active()
    spec = {"name": "n", "entity": "e", "submit_ms": 0}
    store.commit(Commit({"a": {"spec": spec, "x": 1}, "b": {"spec": spec, "x": float("inf")}}, {}, {"now_ms": 1}))
    store.commit(Commit({"a": None}, {"a": {"phase": 7, "spec": spec}}, {"now_ms": 2, "memo": {"p": 0.5}}))
    stored_state = MirroredJournal(blobs, "other", tmp_path / "other.db").load_active()
    assert set(stored_state.jobs) == {"b"}
    assert _same(stored_state, path)
    assert _same(stored_state, tmp_path / "other.db")
    store.close()
    assert not path.exists()
