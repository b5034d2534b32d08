"""Nodes by free devices: which node has how many whole devices free, without a walk over all of them.

For each accelerator type a tree over the nodes; an entry says which numbers of whole free devices occur below it.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.codes import MOST_TOLD_APART
from trainmaster.core.int_list import Ints, new_ints


class NodeIndex:
    """`whole_of_type` and `milli_of_type`: whole devices, and thousandths of devices, that are free by type."""

    def __init__(self, type_of: Ints, n_types: int, milli: Ints, whole: Ints) -> None:
        self.type_of = type_of
        self.n_types, self.n_nodes, self.n_leaves = n_types, len(type_of), 1
        while self.n_leaves < self.n_nodes:
            self.n_leaves *= 2
        self.tree = np.zeros((n_types, 2 * self.n_leaves), np.int64)
        self.whole_of_type, self.milli_of_type = new_ints(n_types), new_ints(n_types)
        self._fill(milli, whole)

    def _fill(self, milli: Ints, whole: Ints) -> None:
        for node in range(self.n_nodes):
            kind = self.type_of[node]
            self.whole_of_type[kind] += whole[node]
            self.tree[kind, self.n_leaves + node] = class_of(whole[node])
            for device in range(milli.shape[1]):
                self.milli_of_type[kind] += milli[node, device]
        for kind in range(self.n_types):
            for at in range(self.n_leaves - 1, 0, -1):
                self.tree[kind, at] = self.tree[kind, 2 * at] | self.tree[kind, 2 * at + 1]

    def change(self, node: int, whole: int, more_whole: int, more_milli: int) -> None:
        """A node has `whole` devices free now; that is `more_whole` more than before."""
        kind, at = self.type_of[node], self.n_leaves + node
        self.milli_of_type[kind] += more_milli
        if more_whole == 0:
            return
        self.whole_of_type[kind] += more_whole
        self.tree[kind, at] = class_of(whole)
        at >>= 1
        while at > 0:
            below = self.tree[kind, 2 * at] | self.tree[kind, 2 * at + 1]
            if below == self.tree[kind, at]:
                return
            self.tree[kind, at] = below
            at >>= 1

    def next_node(self, kind: int, classes: int, begin: int) -> int:
        """The first node of a type, not before `begin`, whose class is one of these; -1: none."""
        if begin >= self.n_nodes:
            return -1
        at = self.n_leaves + begin
        if self.tree[kind, at] & classes:
            return begin
        while at > 1:
            if at & 1 == 0 and self.tree[kind, at + 1] & classes:
                at += 1
                while at < self.n_leaves:
                    at = 2 * at
                    if self.tree[kind, at] & classes == 0:
                        at += 1
                return at - self.n_leaves
            at >>= 1
        return -1

    def classes(self, kind: int) -> int:
        """Which classes of nodes of a type there are."""
        return self.tree[kind, 1]


def class_of(whole: int) -> int:
    """The class of nodes with so many whole devices free, as a bit."""
    one = 1
    return one << min(whole, MOST_TOLD_APART)
