"""Stable sorts by key."""

from __future__ import annotations

from trainmaster.core.int_list import Floats, IntList, Ints


def sort_by(items: IntList, key_of: Floats, spare: IntList) -> None:
    """Sort whole numbers by `key_of[item]`; equal ones stay in their order. `spare` has as much room as `items`."""
    _sort(items, key_of, None, spare)


def sort_by_two(items: IntList, key_of: Floats, tie_of: Ints, spare: IntList) -> None:
    """The same by `key_of[item]` and, where that is equal, `tie_of[item]`: the outcome does not depend on the order
    before, and a list that is nearly in order is sorted quickly."""
    _sort(items, key_of, tie_of, spare)


def _sort(items: IntList, key_of: Floats, tie_of: Ints | None, spare: IntList) -> None:
    values, n = items.values, items.n
    for begin in range(0, n, 16):
        for k in range(begin + 1, min(begin + 16, n)):
            value, at = values[k], k
            while at > begin and _comes_first(value, values[at - 1], key_of, tie_of):
                values[at] = values[at - 1]
                at -= 1
            values[at] = value
    width = 16
    while width < n:
        for begin in range(0, n, 2 * width):
            middle, end = min(begin + width, n), min(begin + 2 * width, n)
            if middle < end and _comes_first(values[middle], values[middle - 1], key_of, tie_of):
                _merge(values, begin, middle, end, key_of, tie_of, spare.values)
        width *= 2


def _comes_first(a: int, b: int, key_of: Floats, tie_of: Ints | None) -> bool:
    if key_of[a] != key_of[b]:
        return key_of[a] < key_of[b]
    return tie_of is not None and tie_of[a] < tie_of[b]


def _merge(source: Ints, begin: int, middle: int, end: int, key_of: Floats, tie_of: Ints | None, spare: Ints) -> None:
    """Merge two sorted neighbours; of equal ones that of the left comes first."""
    for k in range(begin, middle):
        spare[k] = source[k]
    left, right, out = begin, middle, begin
    while left < middle:
        if right < end and _comes_first(source[right], spare[left], key_of, tie_of):
            source[out] = source[right]
            right += 1
        else:
            source[out] = spare[left]
            left += 1
        out += 1
