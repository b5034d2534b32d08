"""What the processes of live incarnations may occupy, by slot; mostly just what the plan gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping

from trainmaster.model.allocation import Allocation
from trainmaster.model.gangs import AllocationColumn


class Held(MutableMapping[int, Allocation]):
    """A mapping from slots to allocations. Where the same is planned and held, only that is noted, so that
    nobody has to make an object of what lies in the columns."""

    def __init__(self, planned: AllocationColumn) -> None:
        self._planned = planned
        self._of: dict[int, Allocation | None] = {}
        """None: what is planned."""

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def __contains__(self, slot: object) -> bool:
        return slot in self._of

    def __getitem__(self, slot: int) -> Allocation:
        held = self._of[slot]
        if held is None:
            held = self._planned[slot]
            assert held is not None
        return held

    def get(self, slot: int, default: Allocation | None = None) -> Allocation | None:  # type: ignore[override]
        return self[slot] if slot in self._of else default  # the inherited one raises and catches

    def __setitem__(self, slot: int, allocation: Allocation) -> None:
        self._of[slot] = allocation

    def __delitem__(self, slot: int) -> None:
        del self._of[slot]

    def as_planned(self, slots: Iterable[int]) -> None:
        """These hold what is planned for them."""
        self._of.update(dict.fromkeys(slots))

    def all_as_planned(self, slots: Iterable[int]) -> None:
        """These hold what is planned for them, and no others hold anything."""
        self._of = dict.fromkeys(slots)

    def is_as_planned(self, slot: int) -> bool:
        return self._of.get(slot, self) is None

    def before_replanning(self, slot: int) -> None:
        """Its plan is about to change; what it holds stays."""
        if self._of.get(slot, self) is None:
            self._of[slot] = self[slot]

    def forget(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._of.pop(slot, None)
