"""Capacity that is not ours: what others use of a node is withheld from planned and physical capacity.

Which devices others use does not matter where devices of a node are alike: the highest free ones are withheld. What
our own jobs hold or were given cannot be withheld; it is as soon as they give it back.
"""

from __future__ import annotations

from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.units import GPU_MILLI, UNLIMITED


def used(state: State, event: ev.NodeUsed) -> None:
    amounts = (event.gpus, event.cpu_milli, event.mem_mib)
    if state.used.get(event.node, (0, 0, 0)) != amounts:
        set_used(state, event.node, amounts)
        state.changed = True


def set_used(state: State, node: int, amounts: tuple[int, int, int]) -> None:
    _give_back(state, node)
    if any(amounts):
        state.used[node] = amounts
    else:
        state.used.pop(node, None)
    _subtract_foreign_usage(state, node)


def make_good(state: State) -> None:
    """Withhold what had been in use; called when something may have been given back."""
    for node in sorted(state.short):
        before = state.foreign_usage.get(node)
        set_used(state, node, state.used.get(node, (0, 0, 0)))
        if state.foreign_usage.get(node) != before:
            state.changed = True


def _give_back(state: State, node: int) -> None:
    devices, cpu_milli, mem_mib = state.foreign_usage.pop(node, ((), 0, 0))
    for free_capacity in (state.planned, state.physical):
        for device in devices:
            free_capacity.device_milli[node, device] = GPU_MILLI
        free_capacity.whole[node] += len(devices)
        free_capacity.index = None
        free_capacity.cpu_milli[node] += cpu_milli
        free_capacity.mem_mib[node] += mem_mib


def _subtract_foreign_usage(state: State, node: int) -> None:
    gpus, cpu_milli, mem_mib = state.used.get(node, (0, 0, 0))
    planned, physical = state.planned, state.physical
    both = (planned.device_milli[node] == GPU_MILLI) & (physical.device_milli[node] == GPU_MILLI)
    free = [device for device in range(len(both) - 1, -1, -1) if both[device]]
    devices = tuple(free[:gpus])
    cpu_taken = _at_most(cpu_milli, planned.cpu_milli[node], physical.cpu_milli[node])
    mem_taken = _at_most(mem_mib, planned.mem_mib[node], physical.mem_mib[node])
    for free_capacity in (planned, physical):
        for device in devices:
            free_capacity.device_milli[node, device] = 0
        free_capacity.whole[node] -= len(devices)
        free_capacity.index = None
        free_capacity.cpu_milli[node] -= cpu_taken
        free_capacity.mem_mib[node] -= mem_taken
    if devices or cpu_taken or mem_taken:
        state.foreign_usage[node] = (devices, cpu_taken, mem_taken)
    if len(devices) < min(gpus, state.cluster.gpus[node]) or cpu_taken < cpu_milli or mem_taken < mem_mib:
        state.short.add(node)
    else:
        state.short.discard(node)


def _at_most(wanted: int, planned: int, physical: int) -> int:
    free = min(int(planned), int(physical))
    return wanted if free >= UNLIMITED // 2 else max(0, min(wanted, free))
