"""A stable sort by key."""

from __future__ import annotations

from trainmaster.core.int_list import Floats, IntList, Ints


def sort_by(items: IntList, key_of: Floats, spare: IntList) -> None:
    """Sort whole numbers by `key_of[item]`; equal ones stay in their order. `spare` has as much room as `items`."""
    values, n = items.values, items.n
    for begin in range(0, n, 16):
        for k in range(begin + 1, min(begin + 16, n)):
            value, key, at = values[k], key_of[values[k]], k
            while at > begin and key < key_of[values[at - 1]]:
                values[at] = values[at - 1]
                at -= 1
            values[at] = value
    width = 16
    while width < n:
        for begin in range(0, n, 2 * width):
            middle, end = min(begin + width, n), min(begin + 2 * width, n)
            if middle < end and key_of[values[middle]] < key_of[values[middle - 1]]:
                _merge(values, begin, middle, end, key_of, spare.values)
        width *= 2


def _merge(source: Ints, begin: int, middle: int, end: int, key_of: Floats, spare: Ints) -> None:
    """Merge two sorted neighbours; of equal ones that of the left comes first."""
    for k in range(begin, middle):
        spare[k] = source[k]
    left, right, out = begin, middle, begin
    while left < middle:
        if right < end and key_of[source[right]] < key_of[spare[left]]:
            source[out] = source[right]
            right += 1
        else:
            source[out] = spare[left]
            left += 1
        out += 1
