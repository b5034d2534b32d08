"""The memory store keeps the contract; and the contract notices stores that do not."""

from __future__ import annotations

import copy

import pytest

from trainmaster.engine.ports import Commit, StoredState
from trainmaster.stores.memory import MemoryStore
from trainmaster.testing.store_contract import ContractBroken, check_store


def test_contract() -> None:
    check_store(MemoryStore)


class _Leaky:
    """Keeps references."""

    def __init__(self) -> None:
        self.stored_state = StoredState({}, {}, None)

    def commit(self, commit: Commit) -> None:
        copy.deepcopy((commit.jobs, commit.ended, commit.meta))
        for record in (*commit.jobs.values(), *commit.ended.values(), commit.meta):
            if record and any(type(value) is object for value in record.values()):
                raise TypeError
        jobs = {k: v for k, v in {**self.stored_state.jobs, **commit.jobs}.items() if v is not None}
        self.stored_state = StoredState(jobs, {**self.stored_state.ended, **commit.ended}, commit.meta)

    def load(self) -> StoredState:
        return self.stored_state


class _Torn(MemoryStore):
    """Writes jobs before it knows that the rest can be written."""

    def commit(self, commit: Commit) -> None:
        super().commit(Commit(commit.jobs, {}, {}))
        super().commit(commit)


class _Forgetful(MemoryStore):
    """Forgets those that have ended."""

    def commit(self, commit: Commit) -> None:
        self._ended.clear()
        super().commit(commit)


@pytest.mark.parametrize("broken", [_Leaky, _Torn, _Forgetful])
def test_the_contract_notices(broken: type) -> None:
    with pytest.raises(ContractBroken):
        check_store(broken)
