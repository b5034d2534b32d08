"""Reports and commands as rows of numbers, in the order in which they were written.

One row is one message (kinds: `core.state.message_kinds`); a field that its kind does not name is 0, -1 or NaN. Who
reads all rows clears the list. What has more to say than a row holds (lost nodes, inventories) is `OTHER`: an object in
`others`,
at index `extra`. `job` is the engine's job index; -1: a job that the engine no longer has.

    report        fields
    STARTED       job generation work at_ms (productive from then on)
    START_FAILED  job generation code (the node that could not be reached, or -1)
    RESIZED       job generation seq work at_ms (productive from then on)
    PROGRESSED    job generation work at_ms rate loss (NaN: not measured)
    EXITED        job generation code (exit code) work
    STOPPED       job generation work extra (first of the silent nodes in `numbers`) code (how many they are)
    OTHER         extra

    command       fields
    LAUNCH        job generation seq extra (its packed gang in `numbers`, or -1: the job's arrays have it)
    RESIZE        job generation seq extra
    STOP          job generation seq code (why, an index into the words of its writer)
"""

from __future__ import annotations

from typing import Any

from trainmaster.core.arrays import lengthen
from trainmaster.core.int_list import IntList, Ints, new_floats, new_ints
from trainmaster.core.state.message_kinds import OTHER

NOT_MEASURED = float("nan")
_INTS = ("kind", "job", "generation", "seq", "at_ms", "code", "extra")
_FLOATS = ("work", "rate", "loss")


class Messages:
    """The first `n` rows of its arrays."""

    def __init__(self, capacity: int = 64) -> None:
        self.n = 0
        self.capacity = capacity
        self.kind, self.job, self.generation = new_ints(capacity), new_ints(capacity), new_ints(capacity)
        self.seq, self.at_ms, self.code = new_ints(capacity), new_ints(capacity), new_ints(capacity)
        self.extra = new_ints(capacity)
        self.work, self.rate, self.loss = new_floats(capacity), new_floats(capacity), new_floats(capacity)
        self.numbers = IntList()
        self.others: list[Any] = []

    def clear(self) -> None:
        self.n = 0
        self.numbers.n = 0
        if self.others:
            self.others = []

    def add(self, kind: int, job: int, generation: int, seq: int) -> int:
        """A new row with these fields and no others; returns its index."""
        k = self.n
        if k == self.capacity:
            self._grow()
        self.n = k + 1
        self.kind[k], self.job[k], self.generation[k], self.seq[k] = kind, job, generation, seq
        self.at_ms[k], self.code[k], self.extra[k] = 0, -1, -1
        self.work[k] = self.rate[k] = self.loss[k] = NOT_MEASURED
        return k

    def add_other(self, message: Any) -> None:
        """A row that only points to an object."""
        k = self.add(OTHER, -1, 0, 0)
        self.extra[k] = len(self.others)
        self.others.append(message)

    def put_numbers(self, source: Ints, begin: int, count: int) -> int:
        """Copy numbers (a packed gang, nodes); returns where they begin here."""
        at = self.numbers.n
        self.numbers.reserve(at + count)
        for k in range(count):
            self.numbers.values[at + k] = source[begin + k]
        self.numbers.n = at + count
        return at

    def _grow(self) -> None:
        lengthen(self, _INTS, _FLOATS, self.capacity)
        self.capacity *= 2
