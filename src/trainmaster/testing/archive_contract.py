"""The contract of an archive (a store that tells of the past), executable; `check_store` is its other half."""

from __future__ import annotations

from collections.abc import Callable

from trainmaster.engine.ports import Archive, Commit, EndedFilter, JsonObject, LogEntry
from trainmaster.testing.store_contract import ContractBroken


def check_archive(new: Callable[[], Archive], reopen: Callable[[Archive], Archive] = lambda store: store) -> None:
    """Run every check. `new` makes an empty archive, `reopen` what a restarted process would open."""
    for check in (_pages_history, _pages_log, _keeps_requests, _keeps_documents, _is_atomic, _forgets_when_told):
        check(new, reopen)


def _expect(truth: bool, promise: str) -> None:
    if not truth:
        raise ContractBroken(promise)


def _ended(number: int, phase: int, name: str = "", entity: str = "", ended_ms: int = 0) -> dict[str, JsonObject]:
    job_id = f"job-{number}"
    spec = {"id": job_id, "name": name, "entity": entity}
    return {job_id: {"spec": spec, "phase": phase, "ended_ms": ended_ms}}


def _log(*kinds: str, job_id: str | None = None, at_ms: int = 0) -> list[LogEntry]:
    return [LogEntry(at_ms, kind, job_id, f"text of {kind}", {"kind": kind, "n": [1, {}]}) for kind in kinds]


def _ids(records: list[JsonObject]) -> list[str]:
    return [record["spec"]["id"] for record in records]


def _pages_history(new: Callable[[], Archive], reopen: Callable[[Archive], Archive]) -> None:
    store = new()
    for number in (10, 2, 9, 1):  # by number, not by text nor by time of commit
        store.commit(Commit({}, _ended(number, 8 + number % 2, f"n{number % 2}", "red", ended_ms=100 - number), {}))
    store = reopen(store)
    everything = EndedFilter()
    _expect(_ids(store.ended_page(-1, 9, everything)) == ["job-1", "job-2", "job-9", "job-10"], "history is by number")
    _expect(
        _ids(store.ended_page(1, 2, everything)) == ["job-2", "job-9"], "a page begins above `after` and is limited"
    )
    odd = EndedFilter(phases=frozenset({9}), name="n1", entity="red")
    _expect(_ids(store.ended_page(-1, 9, odd)) == ["job-1", "job-9"], "phase, name and entity choose")
    _expect(store.count_ended(odd) == 2, "a count knows the same filter")
    _expect(_ids(store.latest_ended(2, everything)) == ["job-1", "job-2"], "the latest come first and are limited")
    _expect(_ids(store.latest_ended(9, odd)) == ["job-1", "job-9"], "the latest know the same filter")
    _expect(store.count_ended(EndedFilter(entity="blue")) == 0, "an unknown team has no jobs")
    found = store.find_ended("job-9")
    _expect(found is not None and found["phase"] == 9, "an ended job is found by its id")
    _expect(store.find_ended("job-3") is None, "a job that never ended is not found")
    _expect(dict(store.load_active().ended)["job-10"] == {"phase": 8}, "an engine is told ids and phases")


def _pages_log(new: Callable[[], Archive], reopen: Callable[[Archive], Archive]) -> None:
    store = new()
    _expect(store.last_log_number() == 0, "a new log is at 0")
    store.commit(Commit({}, {}, {}, _log("a", "b", job_id="x")))
    store.commit(Commit({}, {}, {}, _log("c", at_ms=7)))
    store = reopen(store)
    page = store.log_page(0, 10)
    _expect([entry.kind for entry in page] == ["a", "b", "c"], "the log is in the order of commits")
    numbers = [entry.number for entry in page]
    _expect(numbers == sorted(set(numbers)) and numbers[0] > 0, "numbers rise")
    _expect(store.last_log_number() == numbers[-1], "the last number is known")
    _expect(page[2].at_ms == 7 and page[2].details == {"kind": "c", "n": [1, {}]}, "an entry comes back as written")
    _expect([entry.kind for entry in store.log_page(numbers[0], 1)] == ["b"], "a page begins above `after`")
    _expect([entry.kind for entry in store.log_page(0, 9, "x")] == ["a", "b"], "a job's entries can be chosen")


def _keeps_requests(new: Callable[[], Archive], reopen: Callable[[Archive], Archive]) -> None:
    store = new()
    store.commit(Commit({}, {}, {}, requests={"r": {"id": "job-1", "ids": ["job-1"]}}))
    store = reopen(store)
    _expect(store.find_request("r") == {"id": "job-1", "ids": ["job-1"]}, "an answer comes back")
    _expect(store.find_request("s") is None, "an unknown request has no answer")


def _keeps_documents(new: Callable[[], Archive], reopen: Callable[[Archive], Archive]) -> None:
    store = new()
    store.commit(Commit({}, {}, {"n": 1}, documents={"profiles": {"v": 1}}))
    store.commit(Commit({}, {}, {"n": 2}))
    store = reopen(store)
    _expect(store.document("profiles") == {"v": 1}, "a document stays until it is replaced")
    store.commit(Commit({}, {}, {"n": 3}, documents={"profiles": {"v": 2}}))
    _expect(reopen(store).document("profiles") == {"v": 2}, "the last document counts")
    _expect(store.document("other") is None, "an unknown document is none")
    _expect(store.load().meta == {"n": 3}, "documents are apart from the engine's state")


def _is_atomic(new: Callable[[], Archive], reopen: Callable[[Archive], Archive]) -> None:
    store = new()
    store.commit(Commit({"a": {"n": 1}}, {}, {"n": 1}, _log("first")))
    cannot = {"bad": object()}
    for log, requests in ((_log("second"), {"r": cannot}), ([LogEntry(0, "k", None, "t", cannot)], {})):
        try:
            store.commit(Commit({"a": {"n": 2}}, _ended(1, 8), {"n": 2}, log, requests))
        except Exception:
            again = reopen(store)
            kept = [entry.kind for entry in again.log_page(0, 9)]
            _expect(
                kept == ["first"] and again.find_request("r") is None, "a failed commit leaves no log and no answer"
            )
            _expect(again.load().jobs == {"a": {"n": 1}} and not again.load().ended, "a failed commit changes no job")
        else:
            raise ContractBroken("what cannot be written must raise")


def _forgets_when_told(new: Callable[[], Archive], reopen: Callable[[Archive], Archive]) -> None:
    store = new()
    for number in range(1, 6):
        store.commit(
            Commit(
                {}, _ended(number, 8, ended_ms=number * 10), {"now_ms": number * 10}, _log("k", at_ms=number * 10),
                {f"r{number}": {}},
            )
        )  # fmt: skip
    last = store.last_log_number()
    store.prune(before_ms=20, keep_ended=3, keep_log=2)
    store = reopen(store)
    _expect(_ids(store.ended_page(-1, 9, EndedFilter())) == ["job-3", "job-4", "job-5"], "old and surplus history goes")
    _expect(len(store.log_page(0, 9)) == 2, "old and surplus log goes")
    _expect(store.find_request("r1") is None and store.find_request("r2") is not None, "old answers go")
    store.commit(Commit({}, {}, {}, _log("next")))
    _expect(store.last_log_number() == last + 1, "numbers are never given twice")
