"""The journal of blobs keeps the store's contracts, and lets only one of two writers get on."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence

import pytest

from trainmaster.engine.ports import Commit, StoreError
from trainmaster.stores import journal
from trainmaster.stores.journal import BlobTaken, Damaged, JournalStore, Overtaken
from trainmaster.testing.store_contract import check_store


class InMemory:
    """Blobs in a dictionary. `lose_answer`: the next creation happens, and is not confirmed."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.lose_answer = False

    def create(self, name: str, data: bytes) -> None:
        if name in self.blobs:
            raise BlobTaken(name)
        self.blobs[name] = data
        if self.lose_answer:
            self.lose_answer = False
            raise StoreError("no answer")

    def read(self, name: str) -> bytes | None:
        return self.blobs.get(name)

    def read_all(self) -> dict[str, bytes]:
        return dict(self.blobs)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.blobs.pop(name, None)


class Bench:
    def __init__(self, **options: int) -> None:
        self.options = options
        self.count = 0

    def new(self) -> JournalStore:
        return self._open(InMemory())

    def _open(self, blobs: InMemory) -> JournalStore:
        self.count += 1
        return JournalStore(blobs, f"w{self.count}", **self.options)

    def reopen(self, store: JournalStore) -> JournalStore:
        store.close()
        return self._open(store._blobs)  # type: ignore[arg-type]

    def write_newer(self, store: JournalStore) -> Callable[[], dict[str, bytes]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "FORMAT", journal.FORMAT + 1)
            store.commit(Commit({"a": {"n": 2}}, {}, {"n": 2}))
            store.close()
        return store._blobs.read_all


def test_contracts() -> None:
    bench = Bench()
    check_store(bench.new, bench.reopen, bench.write_newer)  # type: ignore[arg-type]


def test_contracts_with_a_snapshot_after_every_entry() -> None:
    bench = Bench(snapshot_entries=1)
    check_store(bench.new, bench.reopen, bench.write_newer)  # type: ignore[arg-type]


def test_large_commits_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PART_BYTES", 40)
    bench = Bench(snapshot_entries=3)
    check_store(bench.new, bench.reopen, bench.write_newer)  # type: ignore[arg-type]


def test_the_second_of_two_writers_is_overtaken() -> None:
    blobs = InMemory()
    one, two = JournalStore(blobs, "one"), JournalStore(blobs, "two")
    one.commit(Commit({"a": {"n": 1}}, {}, {"n": 1}))
    with pytest.raises(Overtaken):
        two.commit(Commit({"a": {"n": 2}}, {}, {"n": 2}))
    assert two.load().jobs == {"a": {"n": 1}}
    two.commit(Commit({"a": {"n": 3}}, {}, {"n": 3}))
    with pytest.raises(Overtaken):
        one.commit(Commit({"a": {"n": 4}}, {}, {"n": 4}))
    assert JournalStore(blobs, "three").load().jobs == {"a": {"n": 3}}


def test_a_claim_overtakes_whoever_wrote_before() -> None:
    blobs = InMemory()
    one, two = JournalStore(blobs, "one"), JournalStore(blobs, "two")
    one.commit(Commit({"a": {"n": 1}}, {}, {"n": 1}))
    two.claim()
    assert two.load_active().jobs == {"a": {"n": 1}}
    with pytest.raises(Overtaken):
        one.commit(Commit({"a": {"n": 2}}, {}, {"n": 2}))


def test_an_entry_whose_answer_was_lost_is_found_again() -> None:
    blobs = InMemory()
    store = JournalStore(blobs, "one")
    blobs.lose_answer = True
    with pytest.raises(StoreError):
        store.commit(Commit({"a": {"n": 1}}, {}, {"n": 1}))
    # The same once more is the entry that is there; another one is not.
    store.commit(Commit({"a": {"n": 1}}, {}, {"n": 1}))
    assert JournalStore(blobs, "two").load().jobs == {"a": {"n": 1}}


def test_snapshots_leave_little_behind() -> None:
    blobs = InMemory()
    store = JournalStore(blobs, "one", snapshot_entries=10)
    for n in range(55):
        store.commit(Commit({"a": {"n": n}}, {}, {"n": n}))
        store.close()  # waits for a snapshot that is under way
    assert len(blobs.blobs) <= 11
    assert JournalStore(blobs, "two").load().jobs == {"a": {"n": 54}}


def test_a_journal_without_a_format_is_that_of_the_first_version() -> None:
    blobs = InMemory()
    entry = {"commit": {"jobs": {"a": '{"n":1}'}, "ended": {}, "meta": '{"n":1}', "log": [[5, "k", "a", "t", "{}"]],
             "requests": {}, "documents": {}, "now_ms": 5}, "writer": "old"}  # fmt: skip
    blobs.create("j-000000000001", zlib.compress(json.dumps(entry).encode()))
    store = JournalStore(blobs, "new")
    assert store.load().jobs == {"a": {"n": 1}}
    store.commit(Commit({"a": {"n": 2}}, {}, {"n": 2}))
    assert JournalStore(blobs, "newer").load().jobs == {"a": {"n": 2}}


def _written(n: int, monkeypatch: pytest.MonkeyPatch, **options: int) -> InMemory:
    """A journal of `n` entries, each of a job of its own, in parts."""
    monkeypatch.setattr(journal, "PART_BYTES", 40)
    blobs = InMemory()
    store = JournalStore(blobs, "one", **options)
    for k in range(n):
        store.commit(Commit({f"job-{k}": {"n": k}}, {}, {"n": k}))
        store.close()
    return blobs


@pytest.mark.parametrize("snapshot_entries", [0, 5])
def test_whatever_single_blob_is_missing_or_spoilt_no_job_is_lost_silently(
    snapshot_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = _written(8, monkeypatch, snapshot_entries=snapshot_entries)
    whole = JournalStore(blobs, "reader").load().jobs
    assert len(whole) == 8
    for name in sorted(blobs.blobs):
        if name == "j-000000000008":
            continue  # the last one: nothing tells that it was there, but to those who had seen it
        for content in (None, b"", b"spoilt", b'{"parts": 3}'):
            hurt = InMemory()
            hurt.blobs = {**blobs.blobs, name: content or b""}
            if content is None:
                del hurt.blobs[name]
            before = dict(hurt.blobs)
            with pytest.raises(Damaged, match="Restore it from a backup"):
                JournalStore(hurt, "reader").claim()
            assert hurt.blobs == before, "left as it is"


def test_a_reader_notices_that_the_last_entry_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = _written(3, monkeypatch)
    store = JournalStore(blobs, "two")
    del blobs.blobs["j-000000000003"]
    with pytest.raises(Damaged, match="ends with entry 2"):
        store.load()


def test_a_claim_that_is_always_overtaken_gives_up() -> None:
    blobs = InMemory()
    store, busy = JournalStore(blobs, "one"), JournalStore(blobs, "busy")
    writes, create = 0, blobs.create

    def race(name: str, data: bytes) -> None:
        nonlocal writes
        blobs.create = create  # type: ignore[method-assign]
        busy.load()
        busy.commit(Commit({"a": {"n": writes}}, {}, {"n": writes}))
        writes += 1
        blobs.create = race  # type: ignore[method-assign]
        create(name, data)

    blobs.create = race  # type: ignore[method-assign]
    with pytest.raises(Overtaken, match="more than one"):
        store.claim()


def test_a_snapshot_that_lacks_a_part_is_passed_over_while_its_entries_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blobs = _written(3, monkeypatch)
    blobs.create("s-000000000002", b'{"parts": ["p-000000000002-one-99"]}')
    assert len(JournalStore(blobs, "two").load().jobs) == 3
