"""Placement strategies: on which devices of which nodes a gang goes. Shared by every policy.

`pack`       fewest nodes, the fullest ones first, one rack if possible
`spread`     one worker at a time on the emptiest node
`first-fit`  nodes in order
`best-fit`   like pack, judged by what is left of GPUs, CPU and memory together
`count`      GPUs are only counted: workers may be split anywhere, CPU and memory do not matter

The kernels work on the arrays of a `Ledger`; they write what they take and undo a gang that does not fit.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import njit

from trainmaster.model.errors import InputError
from trainmaster.model.gangs import HEAD, PART
from trainmaster.model.units import GPU_MILLI

_WHOLE = GPU_MILLI
_CAPACITY, _SHAPE, _NO_NODE = 1, 3, 8
"""Reasons (`Why`) as the kernels know them (checked by a test)."""


class Strategy(IntEnum):
    PACK = 0
    SPREAD = 1
    FIRST_FIT = 2
    BEST_FIT = 3
    COUNT = 4


_NAMES = {
    "pack": Strategy.PACK,
    "spread": Strategy.SPREAD,
    "first-fit": Strategy.FIRST_FIT,
    "best-fit": Strategy.BEST_FIT,
    "count": Strategy.COUNT,
}
STRATEGY_NAMES = tuple(_NAMES)


def parse_strategy(name: str) -> Strategy:
    if name not in _NAMES:
        raise InputError(f"unknown placement '{name}'", expected="one of " + ", ".join(STRATEGY_NAMES))
    return _NAMES[name]


def strategy_name(strategy: Strategy) -> str:
    return next(name for name, value in _NAMES.items() if value == strategy)


@njit(cache=True)
def _room(node, devices_each, share, cpu_each, mem_each, device_milli, whole, cpu_free, mem_free):
    """How many workers fit on a node now."""
    room = np.int64(1) << 40
    if devices_each > 0:
        if share == _WHOLE:
            room = whole[node] // devices_each
        else:
            fitting = 0
            for device in range(device_milli.shape[1]):
                fitting += device_milli[node, device] // share
            room = fitting // devices_each
    if cpu_each > 0:
        room = min(room, cpu_free[node] // cpu_each)
    if mem_each > 0:
        room = min(room, mem_free[node] // mem_each)
    return max(room, 0)


@njit(cache=True)
def _take_devices(node, n_devices, share, device_milli, whole, out_device, n_out):
    """Take devices of one node: whole ones lowest first; a fraction the fullest device that has room."""
    for _ in range(n_devices):
        best = -1
        for device in range(device_milli.shape[1]):
            left = device_milli[node, device]
            if left < share:
                continue
            if best < 0 or left < device_milli[node, best]:
                best = device
                if left == share:
                    break
        if device_milli[node, best] == _WHOLE:
            whole[node] -= 1
        device_milli[node, best] -= share
        out_device[n_out] = best
        n_out += 1
    return n_out


@njit(cache=True)
def _node_order(strategy, rooms, whole, cpu_free, mem_free, rack_of, workers):
    """Nodes with room, in the order in which a strategy fills them (`spread` is handled apart)."""
    candidates = np.flatnonzero(rooms > 0)
    if strategy == 2 or strategy == 4 or candidates.size <= 1:
        return candidates
    fitting = rooms[candidates] >= workers
    if fitting.any():
        # One node suffices: the tightest one.
        best = -1
        best_left = 0.0
        for k in range(candidates.size):
            if not fitting[k]:
                continue
            node = candidates[k]
            left = float(whole[node])
            if strategy == 3:
                # GPUs decide, CPU and memory break ties (scaled so that they cannot outweigh a GPU).
                left += 1e-9 * min(float(cpu_free[node]), 1e7) / 1e3 + 1e-12 * min(float(mem_free[node]), 1e8)
            if best < 0 or left < best_left:
                best = node
                best_left = left
        out = np.empty(1, np.int64)
        out[0] = best
        return out
    # Several nodes: the roomiest first; pack stays in the rack with most room if that is enough.
    order = candidates[np.argsort(-rooms[candidates], kind="mergesort")]
    if strategy == 0:
        n_racks = rack_of.max() + 1
        if n_racks > 1:
            per_rack = np.zeros(n_racks, np.int64)
            for k in range(order.size):
                per_rack[rack_of[order[k]]] += rooms[order[k]]
            best_rack = -1
            for rack in range(n_racks):
                if per_rack[rack] >= workers and (best_rack < 0 or per_rack[rack] < per_rack[best_rack]):
                    best_rack = rack
            if best_rack >= 0:
                kept = np.empty(order.size, np.int64)
                n_kept = 0
                for k in range(order.size):
                    if rack_of[order[k]] == best_rack:
                        kept[n_kept] = order[k]
                        n_kept += 1
                order = kept[:n_kept]
    return order


@njit(cache=True)
def place_gang(
    strategy, usable, workers, devices_each, share, cpu_each, mem_each, servers, server_cpu, server_mem,
    rack_of, device_milli, whole, cpu_free, mem_free, any_node,
    out_node, out_workers, out_servers, out_n_devices, out_device,
):  # fmt: skip
    """Place one gang on nodes where `usable`; servers on any node where `any_node`.

    Returns (parts, devices) written to the out arrays, or (-1, 0) with the ledger as it was.
    """
    n_nodes = whole.size
    counting = strategy == 4 and share == _WHOLE and devices_each > 0
    gang = workers
    if counting:  # a worker is as good as its GPUs, wherever they are
        workers = workers * devices_each
        devices_each = 1
    rooms = np.zeros(n_nodes, np.int64)
    total = np.int64(0)
    for node in range(n_nodes):
        if usable[node]:
            rooms[node] = _room(node, devices_each, share, cpu_each, mem_each, device_milli, whole, cpu_free, mem_free)
            total += min(rooms[node], workers)
            if total >= workers and (strategy == 2 or strategy == 4):
                break
    if total < workers:
        return -1, 0
    taken = np.zeros(n_nodes, np.int64)
    if strategy == 1:
        left = workers
        while left > 0:
            best = -1
            for node in range(n_nodes):
                if rooms[node] - taken[node] > 0 and (
                    best < 0
                    or taken[node] < taken[best]
                    or (taken[node] == taken[best] and rooms[node] - taken[node] > rooms[best] - taken[best])
                ):
                    best = node
            taken[best] += 1
            left -= 1
        order = np.flatnonzero(taken > 0)
    else:
        order = _node_order(strategy, rooms, whole, cpu_free, mem_free, rack_of, workers)
        left = workers
        for k in range(order.size):
            if left == 0:
                break
            node = order[k]
            taken[node] = min(rooms[node], left)
            left -= taken[node]
        if left > 0:
            return -1, 0
        order = np.flatnonzero(taken > 0)
    hosting = np.zeros(n_nodes, np.int64)
    if servers > 0:
        left = servers
        # Beside the workers first, then anywhere, in node order.
        for beside in (True, False):
            for node in range(n_nodes):
                if left == 0:
                    break
                if (taken[node] > 0) != beside or not any_node[node]:
                    continue
                room = left
                if server_cpu > 0:
                    room = min(room, (cpu_free[node] - taken[node] * cpu_each) // server_cpu)
                if server_mem > 0:
                    room = min(room, (mem_free[node] - taken[node] * mem_each) // server_mem)
                if room > 0:
                    hosting[node] = room
                    left -= room
        if left > 0:
            return -1, 0
    n_parts = 0
    n_devices = 0
    for node in range(n_nodes):
        if taken[node] == 0 and hosting[node] == 0:
            continue
        before = n_devices
        n_devices = _take_devices(node, taken[node] * devices_each, share, device_milli, whole, out_device, n_devices)
        if not counting:
            cpu_free[node] -= taken[node] * cpu_each + hosting[node] * server_cpu
            mem_free[node] -= taken[node] * mem_each + hosting[node] * server_mem
        out_node[n_parts] = node
        if counting:
            out_workers[n_parts] = gang if n_parts == 0 else 0
        else:
            out_workers[n_parts] = taken[node]
        out_servers[n_parts] = hosting[node]
        out_n_devices[n_parts] = n_devices - before
        n_parts += 1
    return n_parts, n_devices


@njit(cache=True)
def _preferred(slot, allowed, throughput, tried):
    """The fastest accelerator type not tried yet; the lower index on ties; -1 when none is left."""
    best = -1
    for kind in range(allowed.shape[1]):
        if allowed[slot, kind] and not tried[kind] and (best < 0 or throughput[slot, kind] > throughput[slot, best]):
            best = kind
    return best


@njit(cache=True)
def _shortage(slot, need_milli, allowed, type_of, up, device_milli):
    """Why a gang did not fit: no node of its types is up, too little is free, or it is free in the wrong places."""
    free = np.zeros(allowed.shape[1], np.int64)
    any_up = False
    for node in range(type_of.size):
        if up[node] and allowed[slot, type_of[node]]:
            any_up = True
            for device in range(device_milli.shape[1]):
                free[type_of[node]] += device_milli[node, device]
    if not any_up:
        return _NO_NODE
    return _SHAPE if free.max() >= need_milli else _CAPACITY


@njit(cache=True)
def place_in_order(
    slots, wanted_type, stop_at_first_failure, strategy,
    workers, servers, devices_each, share, cpu_each, mem_each, server_cpu, server_mem, worker_gpu_milli,
    allowed, throughput, type_of, up, rack_of, device_milli, whole, cpu_free, mem_free,
):  # fmt: skip
    """Place gangs one after the other, each on its fastest type with room, or on the wanted one.

    `slots` index the job columns; `wanted_type` has a type for each of them, or is empty. Returns the positions
    (in `slots`) of the gangs placed, where each begins in the last array, why each position was not placed (0: it
    was, or no types are wanted), the first that was not (-1: none), and the gangs as integers (see `model.gangs`).
    """
    n_nodes, n_types = whole.size, allowed.shape[1]
    free = np.zeros(n_types, np.int64)
    for node in range(n_nodes):
        if up[node]:
            free[type_of[node]] += whole[node]
    usable = np.zeros(n_nodes, np.bool_)
    tried = np.zeros(n_types, np.bool_)
    out_node, out_workers = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.int64)
    out_servers, out_n_devices = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.int64)
    out_device = np.empty(device_milli.size, np.int64)
    placed, first = np.empty(slots.size, np.int64), np.empty(slots.size, np.int64)
    why = np.zeros(slots.size, np.int64)
    flat = np.empty(64, np.int64)
    n_placed = n_flat = 0
    first_failure = -1
    for position in range(slots.size):
        slot = slots[position]
        need = workers[slot] * devices_each[slot]
        whole_share = share[slot] == _WHOLE
        success = False
        if not (whole_share and need > free.max()):
            if need > out_device.size:
                out_device = np.empty(need, np.int64)
            tried[:] = False
            while True:
                if wanted_type.size == 0:
                    kind = _preferred(slot, allowed, throughput, tried)
                else:
                    kind = wanted_type[position]
                    if tried[kind] or not allowed[slot, kind]:
                        break
                if kind < 0:
                    break
                tried[kind] = True
                if whole_share and need > free[kind]:
                    continue
                for node in range(n_nodes):
                    usable[node] = up[node] and type_of[node] == kind
                parts, devices = place_gang(
                    strategy, usable, workers[slot], devices_each[slot], share[slot], cpu_each[slot], mem_each[slot],
                    servers[slot], server_cpu[slot], server_mem[slot], rack_of, device_milli, whole, cpu_free,
                    mem_free, up, out_node, out_workers, out_servers, out_n_devices, out_device,
                )  # fmt: skip
                if parts < 0:
                    continue
                length = HEAD + PART * parts + devices
                if n_flat + length > flat.size:
                    more = np.empty(2 * (n_flat + length), np.int64)
                    more[:n_flat] = flat[:n_flat]
                    flat = more
                placed[n_placed] = position
                first[n_placed] = n_flat
                n_placed += 1
                flat[n_flat], flat[n_flat + 1], flat[n_flat + 2] = parts, kind, share[slot]
                n_flat += HEAD
                for k in range(parts):
                    flat[n_flat], flat[n_flat + 1] = out_node[k], out_workers[k]
                    flat[n_flat + 2], flat[n_flat + 3] = out_servers[k], out_n_devices[k]
                    n_flat += PART
                for k in range(devices):
                    flat[n_flat] = out_device[k]
                    n_flat += 1
                if whole_share:
                    free[kind] -= need
                else:
                    free[kind] = 0
                    for node in range(n_nodes):
                        if usable[node]:
                            free[kind] += whole[node]
                success = True
                break
        if not success:
            if wanted_type.size:
                need_milli = workers[slot] * worker_gpu_milli[slot]
                why[position] = _shortage(slot, need_milli, allowed, type_of, up, device_milli)
            if first_failure < 0:
                first_failure = position
            if stop_at_first_failure:
                break
    return placed[:n_placed], first[:n_placed], why, first_failure, flat[:n_flat]
