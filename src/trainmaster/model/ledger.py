"""Who has what: free devices, CPU and memory per node, as arrays that placement works on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import Cluster
from trainmaster.model.gangs import add_gang, gang_fits
from trainmaster.model.job import Demand
from trainmaster.model.units import GPU_MILLI

Ints = npt.NDArray[np.int64]


@njit(cache=True)
def give_slot(slot, gangs, cpu_each, mem_each, server_cpu, server_mem, device_milli, whole, cpu_free, mem_free):
    """Give back what one slot holds."""
    add_gang(
        gangs[slot], 0, 1, cpu_each[slot], mem_each[slot], server_cpu[slot], server_mem[slot], device_milli, whole,
        cpu_free, mem_free,
    )  # fmt: skip


@njit(cache=True)
def give_slots(
    slots, gangs, cpu_each, mem_each, server_cpu, server_mem, device_milli, whole, cpu_free, mem_free
):  # fmt: skip
    """Give back what the slots hold (`gangs`: see `model.gangs`)."""
    for k in range(slots.size):
        give_slot(
            slots[k], gangs, cpu_each, mem_each, server_cpu, server_mem, device_milli, whole, cpu_free, mem_free
        )  # fmt: skip


@njit(cache=True)
def take_fitting_slots(
    slots, gangs, cpu_each, mem_each, server_cpu, server_mem, device_milli, whole, cpu_free, mem_free
):  # fmt: skip
    """Take what the slots hold, one after the other, where it fits; says where it did."""
    taken = np.zeros(slots.size, np.bool_)
    for k in range(slots.size):
        s = slots[k]
        if gang_fits(
            gangs[s], 0, cpu_each[s], mem_each[s], server_cpu[s], server_mem[s], device_milli, cpu_free, mem_free
        ):  # fmt: skip
            add_gang(
                gangs[s], 0, -1, cpu_each[s], mem_each[s], server_cpu[s], server_mem[s], device_milli, whole,
                cpu_free, mem_free,
            )  # fmt: skip
            taken[k] = True
    return taken


@dataclass
class Ledger:
    """Free capacity. `device_milli[n, d]` is what is left of device d of node n (0 where there is none);
    `whole[n]` counts the devices of node n that are entirely free."""

    device_milli: npt.NDArray[np.int64]
    whole: npt.NDArray[np.int64]
    cpu_milli: npt.NDArray[np.int64]
    mem_mib: npt.NDArray[np.int64]

    @classmethod
    def full(cls, cluster: Cluster) -> Ledger:
        """Everything free."""
        width = int(cluster.gpus.max()) if len(cluster.nodes) else 0
        present = np.arange(width)[None, :] < cluster.gpus[:, None]
        return cls(
            device_milli=np.where(present, GPU_MILLI, 0).astype(np.int64),
            whole=cluster.gpus.copy(),
            cpu_milli=cluster.cpu_milli.copy(),
            mem_mib=cluster.mem_mib.copy(),
        )

    @property
    def arrays(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.device_milli, self.whole, self.cpu_milli, self.mem_mib

    def copy(self) -> Ledger:
        return Ledger(self.device_milli.copy(), self.whole.copy(), self.cpu_milli.copy(), self.mem_mib.copy())

    def take(self, allocation: Allocation, worker: Demand, server: Demand) -> None:
        self._add(allocation, worker, server, -1)

    def give(self, allocation: Allocation, worker: Demand, server: Demand) -> None:
        self._add(allocation, worker, server, 1)

    def _add(self, allocation: Allocation, worker: Demand, server: Demand, sign: int) -> None:
        share = sign * allocation.share_milli
        cpu_each, mem_each = sign * worker.cpu_milli, sign * worker.mem_mib
        for node, workers, servers, devices in allocation.parts:
            if devices:
                row = self.device_milli[node]
                if allocation.share_milli == GPU_MILLI:
                    for device in devices:
                        row[device] += share
                    self.whole[node] += sign * len(devices)
                else:
                    for device in devices:
                        was = row[device]
                        row[device] = was + share
                        self.whole[node] += int(was + share == GPU_MILLI) - int(was == GPU_MILLI)
            if cpu_each or mem_each:
                self.cpu_milli[node] += workers * cpu_each
                self.mem_mib[node] += workers * mem_each
            if servers:
                self.cpu_milli[node] += sign * servers * server.cpu_milli
                self.mem_mib[node] += sign * servers * server.mem_mib

    def give_slot(self, slot: int, gangs: Ints, ints: Mapping[str, Ints]) -> None:
        """Give back what one slot of the job columns holds."""
        give_slot(
            slot, gangs, ints["worker_cpu_milli"], ints["worker_mem_mib"], ints["server_cpu_milli"],
            ints["server_mem_mib"], self.device_milli, self.whole, self.cpu_milli, self.mem_mib,
        )  # fmt: skip

    def give_rows(self, slots: Ints, gangs: Ints, ints: Mapping[str, Ints]) -> None:
        """Give back what these slots of the job columns hold."""
        give_slots(
            slots, gangs, ints["worker_cpu_milli"], ints["worker_mem_mib"], ints["server_cpu_milli"],
            ints["server_mem_mib"], self.device_milli, self.whole, self.cpu_milli, self.mem_mib,
        )  # fmt: skip

    def take_fitting(self, slots: Ints, gangs: Ints, ints: Mapping[str, Ints]) -> npt.NDArray[np.bool_]:
        """Take what these slots hold again, one after the other, as far as it is free; says which were."""
        return take_fitting_slots(
            slots, gangs, ints["worker_cpu_milli"], ints["worker_mem_mib"], ints["server_cpu_milli"],
            ints["server_mem_mib"], self.device_milli, self.whole, self.cpu_milli, self.mem_mib,
        )  # fmt: skip

    def fits(self, allocation: Allocation, worker: Demand, server: Demand) -> bool:
        """Whether it could be taken now."""
        share = allocation.share_milli
        for node, workers, servers, devices in allocation.parts:
            row = self.device_milli[node]
            if share < GPU_MILLI and len(set(devices)) < len(devices):
                # Several members of one gang may share a device: what they need of it adds up.
                if any(row[device] < devices.count(device) * share for device in set(devices)):
                    return False
            else:
                for device in devices:
                    if row[device] < share:
                        return False
            if workers * worker.cpu_milli + servers * server.cpu_milli > self.cpu_milli[node]:
                return False
            if workers * worker.mem_mib + servers * server.mem_mib > self.mem_mib[node]:
                return False
        return True


def union(old: Allocation, new: Allocation) -> Allocation:
    """What both need together: held while a resize is under way. Where the shares differ, the larger."""
    by_node: dict[int, tuple[int, int, tuple[int, ...]]] = {}
    for node, workers, servers, devices in (*old.parts, *new.parts):
        w, s, d = by_node.get(node, (0, 0, ()))
        # As multisets: members with fractions of a GPU may share a device.
        both = Counter(d) | Counter(devices)
        by_node[node] = (max(w, workers), max(s, servers), tuple(sorted(both.elements())))
    parts = tuple(Part(node, w, s, d) for node, (w, s, d) in sorted(by_node.items()))
    return Allocation(new.accelerator, parts, max(old.share_milli, new.share_milli))
