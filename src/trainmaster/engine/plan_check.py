"""The rules of plan verification as one compiled pass over a plan's changes (`verify` says them in words)."""

from __future__ import annotations

from numba import njit

from trainmaster.model.gangs import HEAD, KIND, N_PARTS, PART, SHARE, add_gang, gang_fits, gang_length, gang_totals
from trainmaster.model.units import GPU_MILLI

# Phases as the kernel knows them (checked against `Phase` by a test).
PENDING, RESERVED, LAUNCHING, RUNNING, RESIZING = 0, 1, 2, 3, 4
BROKEN, SOUND, AT_ONCE, AT_ONCE_THEN_LOOK = 0, 1, 2, 3
"""Verdicts. `AT_ONCE`: sound, and nothing in it needs more than stopping and starting whole rigid gangs.
`AT_ONCE_THEN_LOOK`: the same, and jobs that are stopped may find room elsewhere, so the policy is asked again."""


@njit(cache=True)
def _same_place(row, at, other, other_at):
    """Whether two gangs have the same type and parts, whatever their share."""
    length = gang_length(row, at)
    if length != gang_length(other, other_at):
        return False
    for k in range(length):  # noqa: SIM110 - compiled
        if k != SHARE and row[at + k] != other[other_at + k]:
            return False
    return True


@njit(cache=True)
def _is_whole_gang(
    row, at, old, least, most, servers_least, servers_most, devices_each, share_milli, allowed, type_of, up, gpus,
    counting,
):  # fmt: skip
    """The rules for one gang: size in range, an accepted type, parts one per node in order, on nodes that are up or
    that it has already, devices that exist, none twice, as many as its workers need."""
    n_parts, kind, share = row[at + N_PARTS], row[at + KIND], row[at + SHARE]
    workers, servers, devices = gang_totals(row, at)
    if not (least <= workers <= most and servers_least <= servers <= servers_most):
        return False
    if not 0 <= kind < allowed.size or not allowed[kind]:
        return False
    if devices != workers * devices_each or share > share_milli or (devices_each > 0 and share <= 0):
        return False
    last = -1
    device = at + HEAD + PART * n_parts
    for k in range(n_parts):
        part = at + HEAD + PART * k
        node, n_devices = row[part], row[part + 3]
        if not last < node < type_of.size:
            return False
        last = node
        if not up[node]:
            present = False
            for other in range(old[N_PARTS]):
                present = present or old[HEAD + PART * other] == node
            if not present:
                return False
        if n_devices > 0 and type_of[node] != kind:
            return False
        if not counting and n_devices != row[part + 1] * devices_each:
            return False
        for i in range(device, device + n_devices):
            if not 0 <= row[i] < gpus[node]:
                return False
            if share_milli == GPU_MILLI:
                for j in range(device, i):
                    if row[j] == row[i]:
                        return False
        device += n_devices
    return True


@njit(cache=True)
def check_changes(
    slots, first, flat, gangs, phase, workers_min, workers_max, servers_min, servers_max, workers_ref, servers_ref,
    devices_each, share_milli, preemptible, cpu_each, mem_each, server_cpu, server_mem, allowed, type_of, up, gpus,
    counting, device_milli, whole, cpu_free, mem_free,
):  # fmt: skip
    """Check the changes of a plan (gang of `slots[k]` at `first[k]` of `flat`, -1: stop) and bring the ledger to the
    state after it. Returns a verdict; after `BROKEN` the ledger is of no use."""
    at_once = True
    look = stops = False
    for k in range(slots.size):
        s = slots[k]
        old, given, p = gangs[s], first[k] >= 0, phase[s]
        if p != PENDING and p != RESERVED and p != RUNNING and (given or (p != LAUNCHING and p != RESIZING)):
            return BROKEN
        if old[N_PARTS] == 0:
            if not given:
                return BROKEN
            at_once = at_once and p == PENDING
            continue
        elastic = workers_min[s] != workers_max[s] or servers_min[s] != servers_max[s]
        if p == RUNNING and preemptible[s] == 0:
            keeps = given and (
                elastic or (old[SHARE] != flat[first[k] + SHARE] and _same_place(flat, first[k], old, 0))
            )
            if not keeps:
                return BROKEN
        at_once = at_once and p == RUNNING and old[SHARE] == GPU_MILLI
        if given:
            at_once = at_once and not (elastic and old[KIND] == flat[first[k] + KIND])
        else:
            stops = True
            look = look or devices_each[s] == 0
        add_gang(
            old, 0, 1, cpu_each[s], mem_each[s], server_cpu[s], server_mem[s], device_milli, whole, cpu_free, mem_free
        )  # fmt: skip
    for k in range(slots.size):
        if first[k] < 0:
            continue
        s, at = slots[k], first[k]
        if not _is_whole_gang(
            flat, at, gangs[s], workers_min[s], workers_max[s], servers_min[s], servers_max[s], devices_each[s],
            share_milli[s], allowed[s], type_of, up, gpus, counting,
        ) or not gang_fits(
            flat, at, cpu_each[s], mem_each[s], server_cpu[s], server_mem[s], device_milli, cpu_free, mem_free
        ):  # fmt: skip
            return BROKEN
        add_gang(
            flat, at, -1, cpu_each[s], mem_each[s], server_cpu[s], server_mem[s], device_milli, whole, cpu_free,
            mem_free,
        )  # fmt: skip
        workers, servers, _ = gang_totals(flat, at)
        at_once = at_once and flat[at + SHARE] == GPU_MILLI and workers == workers_ref[s] and servers == servers_ref[s]
        for part in range(flat[at]):
            at_once = at_once and up[flat[at + HEAD + PART * part]]
    if not at_once:
        return SOUND
    return AT_ONCE_THEN_LOOK if stops and (look or device_milli.any()) else AT_ONCE
