"""Places of an incarnation that its members fill, and which member stays when the places change. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainmaster.gang.protocol import SERVER, WORKER


@dataclass(frozen=True)
class Slot:
    """One member's place: its role, node and devices, and what that means for its process.

    `local_rank` counts the members of the role on the node; `env` is what the place adds to the
    environment; `cpus` are the cores it is bound to (none: any).
    """

    role: str
    node: str
    group_rank: int = 0
    local_rank: int = 0
    local_size: int = 1
    devices: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str, tuple[int, ...]]:
        """What a process cannot change while it lives."""
        return (self.role, self.node, tuple(sorted(self.devices)))


def slot_to_json(slot: Slot) -> dict[str, Any]:
    return asdict(slot)


def slot_from_json(data: Mapping[str, Any]) -> Slot:
    values = dict(data)
    values["devices"], values["cpus"] = tuple(values["devices"]), tuple(values["cpus"])
    return Slot(**values)


@dataclass(frozen=True)
class Change:
    """`stay` maps members to their slots in the new target; `leave` in order of seniority; `fill` is empty slots."""

    stay: Mapping[str, Slot]
    leave: tuple[str, ...]
    fill: tuple[Slot, ...]

    @property
    def workers_stay(self) -> bool:
        return any(slot.role == WORKER for slot in self.stay.values())


def change(present: Mapping[str, Slot], target: Sequence[Slot]) -> Change:
    """Which of the present members (senior first) stay: those whose place is also a place of the target."""
    open_slots = list(target)
    stay: dict[str, Slot] = {}
    for member, slot in present.items():
        match = next((candidate for candidate in open_slots if candidate.place == slot.place), None)
        if match is not None:
            open_slots.remove(match)
            stay[member] = match
    leave = tuple(member for member in present if member not in stay)
    return Change(stay, leave, tuple(open_slots))


def in_rank_order(slots: Sequence[Slot]) -> list[Slot]:
    """Workers before servers, each in the order given: as ranks are counted."""
    return [slot for role in (WORKER, SERVER) for slot in slots if slot.role == role]
