"""The contract of a store, executable: any implementation of `Archive` must pass `check_store`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmaster.engine.ports import Archive, Commit, EndedFilter, JsonObject, LogEntry, StoredState, StoreError

New = Callable[[], Archive]
Reopen = Callable[[Archive], Archive]


class ContractBroken(AssertionError):
    """A store does not do what the port promises; the message says which promise."""


def check_store(
    new: New, reopen: Reopen = lambda store: store, write_newer: Callable[[Archive], Callable[[], object]] | None = None
) -> None:
    """Run every check. `new` makes an empty store, `reopen` what a restarted process would open. `write_newer` marks
    what a store has written as that of a later version, and returns what reads all of it as it is; None: nothing
    outlives the process."""
    for check in (
        _starts_empty,
        _keeps_everything,
        _replaces_and_forgets,
        _history_stays,
        _is_atomic,
        _is_isolated,
        _pages_history,
        _pages_log,
        _keeps_requests,
        _keeps_documents,
        _writes_the_log_with_the_rest,
        _forgets_when_told,
    ):
        check(new, reopen)
    if write_newer is not None:
        _refuses_a_later_version(new, reopen, write_newer)


def _expect(truth: bool, promise: str) -> None:
    if not truth:
        raise ContractBroken(promise)


def _commit(store: Archive, jobs: dict[str, Any], ended: dict[str, Any] | None = None, **meta: Any) -> None:
    store.commit(Commit(jobs, ended or {}, meta))


def _starts_empty(new: New, reopen: Reopen) -> None:
    _expect(reopen(new()).load() == StoredState({}, {}, None), "a new store holds nothing, and no meta")


def _keeps_everything(new: New, reopen: Reopen) -> None:
    store = new()
    record = {
        "text": "ü\n'\"",
        "int": 2**62,
        "float": 0.1 + 0.2,
        "none": None,
        "list": [1, [2, {}]],
        "flag": True,
    }
    _commit(store, {"a": record}, {"z": {"phase": 8}}, now_ms=5, name="m")
    loaded = reopen(store).load()
    _expect(loaded.jobs == {"a": record}, "a record comes back as it was written, to the last digit")
    _expect(loaded.ended == {"z": {"phase": 8}}, "an ended job's record comes back")
    _expect(loaded.meta == {"now_ms": 5, "name": "m"}, "the meta comes back")


def _replaces_and_forgets(new: New, reopen: Reopen) -> None:
    store = new()
    _commit(store, {"a": {"n": 1}, "b": {"n": 1}}, n=1)
    _commit(store, {"a": {"n": 2}, "b": None, "never": None}, n=2)
    loaded = reopen(store).load()
    _expect(loaded.jobs == {"a": {"n": 2}}, "a later record replaces the earlier; None forgets; the rest stays")
    _expect(loaded.meta == {"n": 2}, "the last meta holds")
    _commit(store, {}, n=3)
    _expect(reopen(store).load().jobs == {"a": {"n": 2}}, "jobs that a commit does not mention stay")


def _history_stays(new: New, reopen: Reopen) -> None:
    store = new()
    _commit(store, {"a": {"n": 1}}, n=1)
    _commit(store, {"a": None}, {"a": {"phase": 8}}, n=2)
    _commit(store, {"b": {"n": 1}}, {"c": {"phase": 9}}, n=3)
    loaded = reopen(store).load()
    _expect(loaded.ended == {"a": {"phase": 8}, "c": {"phase": 9}}, "ended jobs are never forgotten")
    _expect(loaded.jobs == {"b": {"n": 1}}, "a job that has ended is no longer active")


def _is_atomic(new: New, reopen: Reopen) -> None:
    store = new()
    _commit(store, {"a": {"n": 1}}, {"z": {"phase": 8}}, n=1)
    before = reopen(store).load()
    cannot = {"bad": object()}
    for jobs, ended, meta in (
        ({"a": {"n": 2}, "b": cannot}, {}, {}),
        ({"a": {"n": 2}}, {"y": cannot}, {}),
        ({"a": None}, {"y": {"phase": 9}}, cannot),
    ):
        try:
            store.commit(Commit(jobs, ended, meta))
        except Exception:
            _expect(reopen(store).load() == before, "a commit that fails changes nothing at all")
        else:
            raise ContractBroken("what cannot be written must raise")


def _is_isolated(new: New, reopen: Reopen) -> None:
    store = new()
    record: dict[str, Any] = {"list": [1]}
    _commit(store, {"a": record}, n=1)
    record["list"].append(2)
    _expect(reopen(store).load().jobs == {"a": {"list": [1]}}, "later changes of a committed object do not show")
    store.load().jobs["a"]["list"].append(3)
    _expect(reopen(store).load().jobs == {"a": {"list": [1]}}, "changes of a loaded object do not show")


def _ended(
    number: int, phase: int, name: str = "", entity: str = "", ended_ms: int = 0, namespace: str | None = None
) -> dict[str, JsonObject]:
    job_id = f"job-{number}"
    spec = {"id": job_id, "name": name, "entity": entity, "payload": {"namespace": namespace}}
    return {job_id: {"spec": spec, "phase": phase, "ended_ms": ended_ms}}


def _log(*kinds: str, job_id: str | None = None, at_ms: int = 0) -> list[LogEntry]:
    return [LogEntry(at_ms, kind, job_id, f"text of {kind}", {"kind": kind, "n": [1, {}]}) for kind in kinds]


def _ids(records: list[JsonObject]) -> list[str]:
    return [record["spec"]["id"] for record in records]


def _pages_history(new: New, reopen: Reopen) -> None:
    store = new()
    for number in (10, 2, 9, 1):  # by number, not by text nor by time of commit
        record = _ended(number, 8 + number % 2, f"n{number % 2}", "red", 100 - number, "a" if number > 8 else "b")
        store.commit(Commit({}, record, {}))
    store = reopen(store)
    everything = EndedFilter()
    _expect(_ids(store.ended_page(-1, 9, everything)) == ["job-1", "job-2", "job-9", "job-10"], "history is by number")
    _expect(
        _ids(store.ended_page(1, 2, everything)) == ["job-2", "job-9"], "a page begins above `after` and is limited"
    )
    odd = EndedFilter(phases=frozenset({9}), name="n1", entity="red")
    _expect(_ids(store.ended_page(-1, 9, odd)) == ["job-1", "job-9"], "phase, name and entity choose")
    _expect(store.count_ended(odd) == 2, "a count knows the same filter")
    inside = EndedFilter(namespaces=frozenset({"a", "c"}))
    _expect(_ids(store.ended_page(-1, 1, inside)) == ["job-9"], "a page is filled with what the filter lets through")
    _expect(store.count_ended(inside) == 2, "namespaces choose")
    _expect(_ids(store.latest_ended(2, everything)) == ["job-1", "job-2"], "the latest come first and are limited")
    _expect(_ids(store.latest_ended(9, odd)) == ["job-1", "job-9"], "the latest know the same filter")
    _expect(store.count_ended(EndedFilter(entity="blue")) == 0, "an unknown team has no jobs")
    found = store.find_ended("job-9")
    _expect(found is not None and found["phase"] == 9, "an ended job is found by its id")
    _expect(store.find_ended("job-3") is None, "a job that never ended is not found")
    _expect(dict(store.load_active().ended)["job-10"] == {"phase": 8}, "an engine is told ids and phases")


def _pages_log(new: New, reopen: Reopen) -> None:
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


def _keeps_requests(new: New, reopen: Reopen) -> None:
    store = new()
    store.commit(Commit({}, {}, {}, requests={"r": {"id": "job-1", "ids": ["job-1"]}}))
    store = reopen(store)
    _expect(store.find_request("r") == {"id": "job-1", "ids": ["job-1"]}, "an answer comes back")
    _expect(store.find_request("s") is None, "an unknown request has no answer")


def _keeps_documents(new: New, reopen: Reopen) -> None:
    store = new()
    store.commit(Commit({}, {}, {"n": 1}, documents={"profiles": {"v": 1}}))
    store.commit(Commit({}, {}, {"n": 2}))
    store = reopen(store)
    _expect(store.document("profiles") == {"v": 1}, "a document stays until it is replaced")
    store.commit(Commit({}, {}, {"n": 3}, documents={"profiles": {"v": 2}}))
    _expect(reopen(store).document("profiles") == {"v": 2}, "the last document counts")
    _expect(store.document("other") is None, "an unknown document is none")
    _expect(store.load().meta == {"n": 3}, "documents are apart from the engine's state")


def _writes_the_log_with_the_rest(new: New, reopen: Reopen) -> None:
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


def _forgets_when_told(new: New, reopen: Reopen) -> None:
    store = new()
    for number in range(1, 6):
        store.commit(
            Commit(
                {},
                _ended(number, 8, ended_ms=number * 10),
                {"now_ms": number * 10},
                _log("k", at_ms=number * 10),
                {f"r{number}": {}},
            )
        )
    last = store.last_log_number()
    forgotten = store.prune(before_ms=20, keep_ended=3, keep_log=2)
    _expect(sorted(forgotten) == ["job-1", "job-2"], "pruning names the jobs that it forgets")
    _expect(store.prune(before_ms=20, keep_ended=3, keep_log=2) == [], "what is forgotten is not named again")
    store = reopen(store)
    _expect(_ids(store.ended_page(-1, 9, EndedFilter())) == ["job-3", "job-4", "job-5"], "old and surplus history goes")
    _expect(len(store.log_page(0, 9)) == 2, "old and surplus log goes")
    _expect(store.find_request("r1") is None and store.find_request("r2") is not None, "old answers go")
    store.commit(Commit({}, {}, {}, _log("next")))
    _expect(store.last_log_number() == last + 1, "numbers are never given twice")


def _refuses_a_later_version(new: New, reopen: Reopen, write_newer: Callable[[Archive], Callable[[], object]]) -> None:
    store = new()
    _commit(store, {"a": {"n": 1}}, n=1)
    read_all = write_newer(store)
    before = read_all()
    try:
        reopen(store).load()
    except StoreError as error:
        _expect("version" in str(error), "a refusal says that the version is the reason")
    else:
        raise ContractBroken("what a later version wrote is refused")
    _expect(read_all() == before, "what a later version wrote is left as it is")
