"""The machines as arrays, and which of them are up."""

from __future__ import annotations

import numpy as np

from trainmaster.core.int_list import Bools, Ints


class ClusterArrays:
    """By node: accelerator type, devices, rack, and whether it is up."""

    def __init__(self, type_of: Ints, gpus: Ints, rack_of: Ints, n_types: int, up: Bools) -> None:
        self.type_of, self.gpus, self.rack_of = type_of, gpus, rack_of
        self.up = up.view(np.uint8)
        self.changes = 0
        """Grows whenever a node goes up or down."""
        self.n_nodes, self.n_types = len(type_of), n_types
        self.n_racks = int(rack_of.max()) + 1 if len(rack_of) else 0
