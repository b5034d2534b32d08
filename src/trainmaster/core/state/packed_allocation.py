"""Gangs as rows of integers: `[parts, type, share_milli, (node, workers, servers, devices) per part, device, ...]`, the
devices of the first part first. A gang is named by the list that holds it and where it begins."""

from __future__ import annotations

from trainmaster.core.codes import GPU_TYPE, HEAD, N_PARTS, PART, SHARE
from trainmaster.core.int_list import IntList


def gang_length(packed: IntList, at: int) -> int:
    """How many integers a gang takes."""
    return HEAD + PART * packed.values[at] + _total(packed, at, 3)


def gang_workers(packed: IntList, at: int) -> int:
    return _total(packed, at, 1)


def gang_servers(packed: IntList, at: int) -> int:
    return _total(packed, at, 2)


def gang_devices(packed: IntList, at: int) -> int:
    return _total(packed, at, 3)


def _total(packed: IntList, at: int, field: int) -> int:
    total = 0
    for k in range(packed.values[at]):
        total += packed.values[at + HEAD + PART * k + field]
    return total


def gang_hosts(packed: IntList, at: int) -> int:
    """On how many nodes it has workers."""
    total = 0
    for k in range(packed.values[at]):
        if packed.values[at + HEAD + PART * k + 1] > 0:
            total += 1
    return total


def is_on(packed: IntList, at: int, node: int) -> bool:
    """Whether a gang has a part on a node."""
    for k in range(packed.values[at]):
        if packed.values[at + HEAD + PART * k] == node:
            return True
    return False


def same_place(a: IntList, at: int, b: IntList, begin: int) -> bool:
    """Whether two gangs have the same type and parts, whatever their share."""
    length = gang_length(a, at)
    if length != gang_length(b, begin):
        return False
    for k in range(length):
        if k != SHARE and a.values[at + k] != b.values[begin + k]:
            return False
    return True


def share_a_device(a: IntList, at: int, b: IntList, begin: int) -> bool:
    """Whether some device belongs to both gangs."""
    device = at + HEAD + PART * a.values[at]
    for k in range(a.values[at]):
        node, n_devices = a.values[at + HEAD + PART * k], a.values[at + HEAD + PART * k + 3]
        other = begin + HEAD + PART * b.values[begin]
        for j in range(b.values[begin]):
            n_other = b.values[begin + HEAD + PART * j + 3]
            if b.values[begin + HEAD + PART * j] == node:
                for x in range(device, device + n_devices):
                    for y in range(other, other + n_other):
                        if a.values[x] == b.values[y]:
                            return True
            other += n_other
        device += n_devices
    return False


def _count(packed: IntList, begin: int, n: int, device: int) -> int:
    found = 0
    for k in range(begin, begin + n):
        if packed.values[k] == device:
            found += 1
    return found


def union_gang(old: IntList, at: int, new: IntList, begin: int, out: IntList) -> None:
    """What both need together, written to `out`: held while a resize is under way. Where the shares differ, the larger.
    Devices count as multisets: members with fractions of a GPU may share one."""
    out.clear()
    n_old, n_new = old.values[at], new.values[begin]
    out.reserve(2 * HEAD + PART * (n_old + n_new) + gang_devices(old, at) + gang_devices(new, begin))
    i = j = parts = 0
    while i < n_old or j < n_new:  # the parts first: both lists are in the order of their nodes
        a, b = at + HEAD + PART * i, begin + HEAD + PART * j
        if j >= n_new or (i < n_old and old.values[a] < new.values[b]):
            _put_part(out, parts, old.values[a], old.values[a + 1], old.values[a + 2])
            i += 1
        elif i >= n_old or new.values[b] < old.values[a]:
            _put_part(out, parts, new.values[b], new.values[b + 1], new.values[b + 2])
            j += 1
        else:
            workers, servers = max(old.values[a + 1], new.values[b + 1]), max(old.values[a + 2], new.values[b + 2])
            _put_part(out, parts, old.values[a], workers, servers)
            i += 1
            j += 1
        parts += 1
    out.values[N_PARTS], out.values[GPU_TYPE] = parts, new.values[begin + GPU_TYPE]
    out.values[SHARE] = max(old.values[at + SHARE], new.values[begin + SHARE])
    out.n = HEAD + PART * parts
    for k in range(parts):
        _put_devices(old, at, new, begin, out, k)


def _put_part(out: IntList, k: int, node: int, workers: int, servers: int) -> None:
    part = HEAD + PART * k
    out.values[part], out.values[part + 1], out.values[part + 2], out.values[part + 3] = node, workers, servers, 0


def _part_on(packed: IntList, at: int, node: int) -> int:
    """Which part of a gang is on a node; -1: none."""
    for k in range(packed.values[at]):
        if packed.values[at + HEAD + PART * k] == node:
            return k
    return -1


def _first_device(packed: IntList, at: int, part: int) -> int:
    """Where the devices of a part begin."""
    device = at + HEAD + PART * packed.values[at]
    for k in range(part):
        device += packed.values[at + HEAD + PART * k + 3]
    return device


def _put_devices(old: IntList, at: int, new: IntList, begin: int, out: IntList, k: int) -> None:
    """Devices of part k of the union, in order."""
    node = out.values[HEAD + PART * k]
    a, b = _part_on(old, at, node), _part_on(new, begin, node)
    n_a = old.values[at + HEAD + PART * a + 3] if a >= 0 else 0
    n_b = new.values[begin + HEAD + PART * b + 3] if b >= 0 else 0
    first_a = _first_device(old, at, a) if a >= 0 else 0
    first_b = _first_device(new, begin, b) if b >= 0 else 0
    largest = -1
    for x in range(first_a, first_a + n_a):
        largest = max(largest, old.values[x])
    for x in range(first_b, first_b + n_b):
        largest = max(largest, new.values[x])
    for device in range(largest + 1):
        times = max(_count(old, first_a, n_a, device), _count(new, first_b, n_b, device))
        for _ in range(times):
            out.append(device)
            out.values[HEAD + PART * k + 3] += 1
