"""On which devices of which nodes a gang goes (the strategies: `trainmaster.model.placement`)."""

from __future__ import annotations

import numpy as np

from trainmaster.core.codes import (
    BEST_FIT,
    CAPACITY,
    COUNT,
    FIRST_FIT,
    HEAD,
    MOST_TOLD_APART,
    NO_NODE,
    PACK,
    PART,
    SHAPE,
    SPREAD,
    WHOLE,
)
from trainmaster.core.int_list import Bools, IntList, Ints, new_floats, new_ints
from trainmaster.core.node_index import class_of
from trainmaster.core.sorting import sort_by
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.free_resources import FreeResources, add_gang, give_gang, index_of
from trainmaster.core.state.job_arrays import JobArrays


class Demand:
    """What one gang asks for: workers of `devices_each` devices with `share` thousandths of each, and servers."""

    def __init__(self) -> None:
        self.workers = self.devices_each = self.share = self.cpu_each = self.mem_each = 0
        self.servers = self.server_cpu = self.server_mem = 0


class Placer:
    """Places gangs one after the other and writes them to `flat`: that of `placed[k]` begins at `first[k]`. Keeps its
    working arrays from one decision to the next. Nodes must be `open` to workers and servers."""

    def __init__(self, strategy: int, cluster: ClusterArrays) -> None:
        self.strategy, self.cluster = strategy, cluster
        n = cluster.n_nodes
        self.free_of_type, self.per_rack = new_ints(cluster.n_types), new_ints(cluster.n_racks)
        self.rooms, self.taken, self.hosting = new_ints(n), new_ints(n), new_ints(n)
        self.keys = new_floats(n)
        self.open, self.chosen = np.zeros(n, np.uint8), np.ones(n, np.uint8)
        self.usable, self.tried = np.zeros(n, np.uint8), np.zeros(cluster.n_types, np.uint8)
        self.order, self.spare = IntList(n), IntList(n)
        self.placed, self.first, self.why = IntList(64), IntList(64), IntList(64)
        self.flat = IntList(1024)
        self.failure = -1
        self.demand = Demand()
        self.masks = np.ones((1, n), np.uint8)
        """By set of nodes (`JobArrays.node_set`): which belong to it."""
        self.closed, self.down = IntList(n), IntList(n)
        """Nodes that are not open, and those that are not up."""
        self.opened, self.opened_after = -1, -1
        """The set that is open, and after how many changes of nodes it was."""
        self.by_devices_alone = cluster.n_racks <= 1 and (n == 0 or _largest(cluster.gpus) <= MOST_TOLD_APART)
        """Gangs on several nodes go where most devices are free, whatever the rack."""

    def set_masks(self, masks: Bools) -> None:
        self.masks = masks.view(np.uint8)
        self.opened = -1

    def open_set(self, node_set: int) -> None:
        """The nodes of a set that are up may be used; of a set without a mask, all."""
        if self.opened == node_set and self.opened_after == self.cluster.changes:
            return
        self.opened, self.opened_after = node_set, self.cluster.changes
        self.closed.n = self.down.n = 0
        masked = node_set < self.masks.shape[0]
        for node in range(self.cluster.n_nodes):
            self.open[node] = self.cluster.up[node] and (not masked or self.masks[node_set, node])
            if not self.open[node]:
                self.closed.append(node)
            if not self.cluster.up[node]:
                self.down.append(node)

    def most_workers(self, jobs: JobArrays, i: int, node: int) -> int:
        """How many workers of job i the devices of a node could take if nobody else had any; 0 where it is not open."""
        gpu_type = self.cluster.type_of[node]
        if not self.open[node] or not jobs.may_use[i, gpu_type]:
            return 0
        if jobs.devices_each[i] == 0 or jobs.share_milli[i] < WHOLE:
            return jobs.workers_ask[i]  # type: ignore
        if self.strategy == COUNT:  # its devices may be anywhere
            return self.cluster.gpus[node]  # type: ignore
        return self.cluster.gpus[node] // jobs.devices_each[i]  # type: ignore

    def count_up(self, free: FreeResources, whole: Ints, milli: Ints) -> None:
        """Count what is free on nodes that are up, by type: whole devices, and thousandths of devices."""
        if self.opened < 0 or self.opened_after != self.cluster.changes:
            self.open_set(max(self.opened, 0))
        index, type_of = index_of(free, self.cluster), self.cluster.type_of
        for gpu_type in range(self.cluster.n_types):
            whole[gpu_type], milli[gpu_type] = index.whole_of_type[gpu_type], index.milli_of_type[gpu_type]
        for k in range(self.down.n):
            node = self.down.values[k]
            whole[type_of[node]] -= free.free_whole[node]
            for device in range(free.milli.shape[1]):
                milli[type_of[node]] -= free.milli[node, device]

    def open_only(self, workers_on: Bools | None) -> None:
        """Workers go on these nodes alone (None: on any that is open)."""
        if workers_on is None:
            self.chosen[:] = 1
            return
        mask = workers_on.view(np.uint8)
        for node in range(self.cluster.n_nodes):
            self.chosen[node] = mask[node]

    def begin(self) -> None:
        """Forget what was placed before."""
        self.placed.n = self.first.n = self.why.n = self.flat.n = 0
        self.failure = -1

    def place_list(
        self,
        jobs: JobArrays,
        which: IntList,
        begin: int,
        end: int,
        wanted: IntList,
        strict: bool,
        workers: Ints,
        servers: Ints,
        free: FreeResources,
    ) -> None:
        """Place the jobs `which[begin:end]`, each on its fastest type with room, or on the wanted one (`wanted`: a type
        for each, or empty), at the sizes `workers` and `servers` by job. Adds to what is placed. `why` says why each
        was not placed (0: it was, or no types are wanted), `failure` is the first that was not (a position in `which`;
        -1: none). When `strict`, that is the end."""
        self.placed.reserve(self.placed.n + end - begin)
        self.first.reserve(self.first.n + end - begin)
        self.why.reserve(self.why.n + end - begin)
        node_set = -1
        for k in range(begin, end):
            i = which.values[k]
            if jobs.node_set[i] != node_set:
                node_set = jobs.node_set[i]
                self.open_set(node_set)  # type: ignore
                self._count_free(free)
            self.ask(jobs, i, workers[i], servers[i])  # type: ignore
            done = self._place_anywhere(jobs, i, wanted.values[k] if wanted.n else -1, free)
            self.why.append(0)
            if done:
                self.placed.append(k)
                continue
            if wanted.n:
                need_milli = workers[i] * jobs.worker_gpu_milli[i]
                self.why.values[self.why.n - 1] = self.shortage(jobs, i, need_milli, free)  # type: ignore
            if self.failure < 0:
                self.failure = k
            if strict:
                return

    def ask(self, jobs: JobArrays, i: int, workers: int, servers: int) -> None:
        """Write what job i needs at a size."""
        demand = self.demand
        demand.workers, demand.servers = workers, servers
        demand.devices_each, demand.share = jobs.devices_each[i], jobs.share_milli[i]
        demand.cpu_each, demand.mem_each = jobs.worker_cpu_milli[i], jobs.worker_mem_mib[i]
        demand.server_cpu, demand.server_mem = jobs.server_cpu_milli[i], jobs.server_mem_mib[i]

    def _count_free(self, free: FreeResources) -> None:
        index, type_of = index_of(free, self.cluster), self.cluster.type_of
        for gpu_type in range(self.cluster.n_types):
            self.free_of_type[gpu_type] = index.whole_of_type[gpu_type]
        for k in range(self.closed.n):
            self.free_of_type[type_of[self.closed.values[k]]] -= free.free_whole[self.closed.values[k]]

    def _place_anywhere(self, jobs: JobArrays, i: int, wanted: int, free: FreeResources) -> bool:
        """On the wanted type, or on the fastest one that has room (-1: none is wanted)."""
        need = self.demand.workers * self.demand.devices_each
        whole_share = self.demand.share == WHOLE
        if whole_share and need > _largest(self.free_of_type):
            return False
        self.tried[:] = 0
        while True:
            gpu_type = self._preferred(jobs, i) if wanted < 0 else wanted
            if gpu_type < 0 or self.tried[gpu_type] or not jobs.may_use[i, gpu_type]:
                return False
            self.tried[gpu_type] = 1
            if whole_share and need > self.free_of_type[gpu_type]:
                continue
            begin = self.flat.n
            if self.place_gang(gpu_type, free):
                self.first.append(begin)
                self._recount(gpu_type, need, whole_share, free)
                return True

    def _recount(self, gpu_type: int, need: int, whole_share: bool, free: FreeResources) -> None:
        if whole_share:
            self.free_of_type[gpu_type] -= need
        else:
            self._count_free(free)

    def _preferred(self, jobs: JobArrays, i: int) -> int:
        """The fastest accelerator type not tried yet; the lower index on ties; -1 when none is left."""
        best = -1
        for gpu_type in range(self.cluster.n_types):
            if (
                jobs.may_use[i, gpu_type]
                and not self.tried[gpu_type]
                and (best < 0 or jobs.speed[i, gpu_type] > jobs.speed[i, best])
            ):
                best = gpu_type
        return best

    def place_gang(self, gpu_type: int, free: FreeResources) -> bool:
        """Place the gang of `demand` on open nodes of a type, its servers on any open node, and take what it needs."""
        demand, cluster, strategy = self.demand, self.cluster, self.strategy
        if strategy == PACK and demand.share == WHOLE and demand.devices_each > 0 and demand.servers == 0:
            node = self._tightest(gpu_type, free)
            if node >= 0:
                self._write_on_one(node, gpu_type, free)
                return True
            if self.by_devices_alone and demand.cpu_each == 0 and demand.mem_each == 0 and demand.workers > 0:
                return self._place_on_several(gpu_type, free)
        workers, devices_each = demand.workers, demand.devices_each
        counting = strategy == COUNT and demand.share == WHOLE and devices_each > 0
        if counting:  # a worker is as good as its GPUs, wherever they are
            workers = workers * devices_each
            devices_each = 1
        total = 0
        self.rooms[:] = 0
        for node in range(cluster.n_nodes):
            if self.open[node] and self.chosen[node] and cluster.type_of[node] == gpu_type:
                self.rooms[node] = self._room(node, devices_each, free)
                total += min(self.rooms[node], workers)
                if total >= workers and (strategy in (FIRST_FIT, COUNT)):
                    break
        if total < workers:
            return False
        self.taken[:] = 0
        self.hosting[:] = 0
        done = self._spread_out(workers) if strategy == SPREAD else self._fill(workers, free)
        if not done or not self._host(free):
            return False
        self.flat.reserve(self.flat.n + HEAD + PART * cluster.n_nodes + workers * devices_each)
        self._write_gang(gpu_type, devices_each, counting, free)
        return True

    def _tightest(self, gpu_type: int, free: FreeResources) -> int:
        """The node with fewest whole devices free that has room for the gang of `demand`, without servers; -1: none."""
        index, demand, best = index_of(free, self.cluster), self.demand, -1
        need = demand.workers * demand.devices_each
        for whole in range(min(need, MOST_TOLD_APART), MOST_TOLD_APART + 1):
            if index.classes(gpu_type) & class_of(whole) == 0:
                continue
            node = index.next_node(gpu_type, class_of(whole), 0)
            while node >= 0:
                if free.free_whole[node] >= need and self._suits(node, free):
                    if whole < MOST_TOLD_APART:
                        return node
                    if best < 0 or free.free_whole[node] < free.free_whole[best]:
                        best = node
                node = index.next_node(gpu_type, class_of(whole), node + 1)
        return best

    def _suits(self, node: int, free: FreeResources) -> bool:
        """Whether a node is open to workers and has CPU and memory for all of `demand`."""
        demand = self.demand
        cpu, mem = demand.workers * demand.cpu_each, demand.workers * demand.mem_each
        if not self.open[node] or not self.chosen[node]:
            return False
        return (cpu <= 0 or free.free_cpu[node] >= cpu) and (mem <= 0 or free.free_mem[node] >= mem)

    def _place_on_several(self, gpu_type: int, free: FreeResources) -> bool:
        """Place the gang of `demand`, which asks for whole devices alone and fits on no single node: the roomiest nodes
        first."""
        order, left = self.order, self.demand.workers
        order.clear()
        room = MOST_TOLD_APART // self.demand.devices_each
        while room > 0 and left > 0:
            left = self._take_roomy(gpu_type, room, left, free)
            room -= 1
        if left > 0:
            return False
        for k in range(order.n):
            self.keys[order.values[k]] = float(order.values[k])
        sort_by(order, self.keys, self.spare)
        self._write_parts(gpu_type, free)
        return True

    def _take_roomy(self, gpu_type: int, room: int, left: int, free: FreeResources) -> int:
        """Fill nodes that have room for so many workers, and list them in `order`; returns how many workers are
        left."""
        index, each, classes = index_of(free, self.cluster), self.demand.devices_each, 0
        for whole in range(room * each, min(room * each + each, MOST_TOLD_APART + 1)):
            classes |= class_of(whole)
        if index.classes(gpu_type) & classes == 0:
            return left
        node = index.next_node(gpu_type, classes, 0)
        while node >= 0 and left > 0:
            if self.open[node] and self.chosen[node]:
                self.taken[node] = min(room, left)
                left -= self.taken[node]
                self.order.append(node)
            node = index.next_node(gpu_type, classes, node + 1)
        return left

    def _write_parts(self, gpu_type: int, free: FreeResources) -> None:
        """Take the devices that `taken` says of the nodes in `order`, and write them."""
        flat, order, demand = self.flat, self.order, self.demand
        flat.reserve(flat.n + HEAD + PART * order.n + demand.workers * demand.devices_each)
        flat.append(order.n)
        flat.append(gpu_type)
        flat.append(demand.share)
        for k in range(order.n):
            node = order.values[k]
            flat.append(node)
            flat.append(self.taken[node])  # type: ignore
            flat.append(0)
            flat.append(self.taken[node] * demand.devices_each)  # type: ignore
        for k in range(order.n):
            node = order.values[k]
            self._take_devices(node, self.taken[node] * demand.devices_each, demand.share, free)  # type: ignore

    def _write_on_one(self, node: int, gpu_type: int, free: FreeResources) -> None:
        """Take what the gang of `demand` needs of one node, and write it."""
        flat, demand = self.flat, self.demand
        need = demand.workers * demand.devices_each
        flat.reserve(flat.n + HEAD + PART + need)
        flat.append(1)
        flat.append(gpu_type)
        flat.append(demand.share)
        flat.append(node)
        flat.append(demand.workers)
        flat.append(0)
        flat.append(need)
        free.free_cpu[node] -= demand.workers * demand.cpu_each
        free.free_mem[node] -= demand.workers * demand.mem_each
        self._take_devices(node, need, demand.share, free)

    def _room(self, node: int, devices_each: int, free: FreeResources) -> int:
        """How many workers fit on a node now."""
        demand = self.demand
        room = 1 << 40
        if devices_each > 0:
            if demand.share == WHOLE:
                room = free.free_whole[node] // devices_each
            else:
                fitting = 0
                for device in range(free.milli.shape[1]):
                    fitting += free.milli[node, device] // demand.share
                room = fitting // devices_each
        if demand.cpu_each > 0:
            room = min(room, free.free_cpu[node] // demand.cpu_each)
        if demand.mem_each > 0:
            room = min(room, free.free_mem[node] // demand.mem_each)
        return max(room, 0)

    def _spread_out(self, workers: int) -> bool:
        """One worker at a time on the emptiest node."""
        rooms, taken = self.rooms, self.taken
        for _ in range(workers):
            best = -1
            for node in range(self.cluster.n_nodes):
                if rooms[node] - taken[node] > 0 and (
                    best < 0
                    or taken[node] < taken[best]
                    or (taken[node] == taken[best] and rooms[node] - taken[node] > rooms[best] - taken[best])
                ):
                    best = node
            taken[best] += 1
        return True

    def _fill(self, workers: int, free: FreeResources) -> bool:
        """Nodes in the strategy's order, each as far as it has room."""
        self._order_nodes(workers, free)
        left = workers
        for k in range(self.order.n):
            if left == 0:
                break
            node = self.order.values[k]
            self.taken[node] = min(self.rooms[node], left)
            left -= self.taken[node]
        return left <= 0  # type: ignore

    def _host(self, free: FreeResources) -> bool:
        """Servers beside the workers first, then anywhere, in node order."""
        demand, left = self.demand, self.demand.servers
        for turn in range(2):
            for node in range(self.cluster.n_nodes):
                if left <= 0:
                    return True
                if (self.taken[node] > 0) != (turn == 0) or not self.open[node]:
                    continue
                room = left
                if demand.server_cpu > 0:
                    spare = free.free_cpu[node] - self.taken[node] * demand.cpu_each
                    room = min(room, spare // demand.server_cpu)
                if demand.server_mem > 0:
                    spare = free.free_mem[node] - self.taken[node] * demand.mem_each
                    room = min(room, spare // demand.server_mem)
                if room > 0:
                    self.hosting[node] = room
                    left -= room
        return left <= 0

    def _order_nodes(self, workers: int, free: FreeResources) -> None:
        """Nodes with room, in the order in which a strategy fills them."""
        order, rooms, strategy = self.order, self.rooms, self.strategy
        order.clear()
        best, best_left = -1, 0.0
        for node in range(self.cluster.n_nodes):
            if rooms[node] <= 0:
                continue
            order.append(node)
            if rooms[node] >= workers:  # one node suffices: the tightest one
                left = float(free.free_whole[node])
                if strategy == BEST_FIT:
                    # GPUs decide, CPU and memory break ties (scaled so that they cannot outweigh a GPU).
                    cpu, mem = float(free.free_cpu[node]), float(free.free_mem[node])
                    left += 1e-9 * min(cpu, 1e7) / 1e3 + 1e-12 * min(mem, 1e8)
                if best < 0 or left < best_left:
                    best, best_left = node, left
        if strategy in (FIRST_FIT, COUNT) or order.n <= 1:
            return
        if best >= 0:
            order.clear()
            order.append(best)
            return
        for node in range(self.cluster.n_nodes):
            self.keys[node] = -float(rooms[node])
        sort_by(order, self.keys, self.spare)  # several nodes: the roomiest first
        if strategy == PACK and self.cluster.n_racks > 1:
            self._stay_in_one_rack(workers)

    def _stay_in_one_rack(self, workers: int) -> None:
        """Leave only the nodes of the rack with least room, of those that have enough."""
        order, per_rack, rack_of = self.order, self.per_rack, self.cluster.rack_of
        per_rack[:] = 0
        for k in range(order.n):
            node = order.values[k]
            per_rack[rack_of[node]] += self.rooms[node]
        best = -1
        for rack in range(self.cluster.n_racks):
            if per_rack[rack] >= workers and (best < 0 or per_rack[rack] < per_rack[best]):
                best = rack
        if best < 0:
            return
        kept = 0
        for k in range(order.n):
            if rack_of[order.values[k]] == best:
                order.values[kept] = order.values[k]
                kept += 1
        order.n = kept

    def _write_gang(self, gpu_type: int, devices_each: int, counting: bool, free: FreeResources) -> None:
        """Take what `taken` and `hosting` say, and write it behind what is in `flat` already."""
        flat, taken, hosting, demand = self.flat, self.taken, self.hosting, self.demand
        begin = flat.n
        flat.append(0)
        flat.append(gpu_type)
        flat.append(demand.share)
        for node in range(self.cluster.n_nodes):
            if taken[node] == 0 and hosting[node] == 0:
                continue
            flat.append(node)
            if counting:
                flat.append(demand.workers if flat.values[begin] == 0 else 0)
            else:
                flat.append(taken[node])
                free.free_cpu[node] -= taken[node] * demand.cpu_each + hosting[node] * demand.server_cpu
                free.free_mem[node] -= taken[node] * demand.mem_each + hosting[node] * demand.server_mem
            flat.append(hosting[node])
            flat.append(taken[node] * devices_each)
            flat.values[begin] += 1
        for node in range(self.cluster.n_nodes):
            if taken[node]:
                self._take_devices(node, taken[node] * devices_each, demand.share, free)

    def _take_devices(self, node: int, n_devices: int, share: int, free: FreeResources) -> None:
        """Take devices of one node: whole ones lowest first; a fraction the fullest device that has room."""
        whole_before = free.free_whole[node]
        for _ in range(n_devices):
            best = -1
            for device in range(free.milli.shape[1]):
                left = free.milli[node, device]
                if left < share:
                    continue
                if best < 0 or left < free.milli[node, best]:
                    best = device
                    if left == share:
                        break
            if free.milli[node, best] == WHOLE:
                free.free_whole[node] -= 1
            free.milli[node, best] -= share
            self.flat.append(best)
        if free.index is not None:
            whole = free.free_whole[node]
            free.index.change(node, whole, whole - whole_before, -share * n_devices)

    def take_back(self, jobs: JobArrays, i: int, at: int, free: FreeResources) -> None:
        """Undo the placement of job i's gang, which begins at `at` of `flat`."""
        if self.strategy == COUNT and jobs.share_milli[i] == WHOLE and jobs.devices_each[i] > 0:
            add_gang(free, self.flat, at, 1, 0, 0, 0, 0)  # only GPUs were counted
        else:
            give_gang(free, self.flat, at, i, jobs)

    def shortage(self, jobs: JobArrays, i: int, need_milli: int, free: FreeResources) -> int:
        """Why a gang did not fit: no node of its types is up, too little is free, or it is free in the wrong places."""
        cluster, any_up, most = self.cluster, False, 0
        for gpu_type in range(cluster.n_types):
            left = 0
            for node in range(cluster.n_nodes):
                if cluster.type_of[node] == gpu_type and self.open[node] and jobs.may_use[i, gpu_type]:
                    any_up = True
                    for device in range(free.milli.shape[1]):
                        left += free.milli[node, device]
            most = max(most, left)
        if not any_up:
            return NO_NODE
        return SHAPE if most >= need_milli else CAPACITY


def _largest(values: Ints) -> int:
    largest = values[0]
    for k in range(1, len(values)):
        largest = max(largest, values[k])
    return largest
