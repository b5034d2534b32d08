"""The contract of a store, executable: any implementation of the port must pass `check_store`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmaster.engine.ports import Commit, Image, Store


class ContractBroken(AssertionError):
    """A store does not do what the port promises; the message says which promise."""


def check_store(new: Callable[[], Store], reopen: Callable[[Store], Store] = lambda store: store) -> None:
    """Run every check. `new` makes an empty store, `reopen` what a restarted process would open."""
    for check in (
        _starts_empty,
        _keeps_everything,
        _replaces_and_forgets,
        _history_stays,
        _is_atomic,
        _is_isolated,
    ):
        check(new, reopen)


def _expect(truth: bool, promise: str) -> None:
    if not truth:
        raise ContractBroken(promise)


def _commit(store: Store, jobs: dict[str, Any], ended: dict[str, Any] | None = None, **meta: Any) -> None:
    store.commit(Commit(jobs, ended or {}, meta))


def _starts_empty(new: Callable[[], Store], reopen: Callable[[Store], Store]) -> None:
    _expect(reopen(new()).load() == Image({}, {}, None), "a new store holds nothing, and no meta")


def _keeps_everything(new: Callable[[], Store], reopen: Callable[[Store], Store]) -> None:
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


def _replaces_and_forgets(new: Callable[[], Store], reopen: Callable[[Store], Store]) -> None:
    store = new()
    _commit(store, {"a": {"n": 1}, "b": {"n": 1}}, n=1)
    _commit(store, {"a": {"n": 2}, "b": None, "never": None}, n=2)
    loaded = reopen(store).load()
    _expect(loaded.jobs == {"a": {"n": 2}}, "a later record replaces the earlier; None forgets; the rest stays")
    _expect(loaded.meta == {"n": 2}, "the last meta holds")
    _commit(store, {}, n=3)
    _expect(reopen(store).load().jobs == {"a": {"n": 2}}, "jobs that a commit does not mention stay")


def _history_stays(new: Callable[[], Store], reopen: Callable[[Store], Store]) -> None:
    store = new()
    _commit(store, {"a": {"n": 1}}, n=1)
    _commit(store, {"a": None}, {"a": {"phase": 8}}, n=2)
    _commit(store, {"b": {"n": 1}}, {"c": {"phase": 9}}, n=3)
    loaded = reopen(store).load()
    _expect(loaded.ended == {"a": {"phase": 8}, "c": {"phase": 9}}, "ended jobs are never forgotten")
    _expect(loaded.jobs == {"b": {"n": 1}}, "a job that has ended is no longer active")


def _is_atomic(new: Callable[[], Store], reopen: Callable[[Store], Store]) -> None:
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


def _is_isolated(new: Callable[[], Store], reopen: Callable[[Store], Store]) -> None:
    store = new()
    record: dict[str, Any] = {"list": [1]}
    _commit(store, {"a": record}, n=1)
    record["list"].append(2)
    _expect(reopen(store).load().jobs == {"a": {"list": [1]}}, "later changes of a committed object do not show")
    store.load().jobs["a"]["list"].append(3)
    _expect(reopen(store).load().jobs == {"a": {"list": [1]}}, "changes of a loaded object do not show")
