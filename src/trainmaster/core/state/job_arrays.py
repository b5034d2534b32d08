"""State of the jobs: one array per column of the schema, what each job is given and occupies, and the order of arrival.

A job index is given on arrival, kept for life and reused afterwards. Arrays are replaced when they grow: read them
through this bundle each time.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.codes import MS_PER_S, RUNNING, STOPPING
from trainmaster.core.int_list import Bools, Floats, IntList, Ints
from trainmaster.core.schema import FLOAT_COLUMNS, INT_COLUMNS

INFINITE = float("inf")


class JobArrays:
    """See the module's text. `ints`, `floats`, `throughput`, `throughput_spread` and `allowed` are NumPy arrays over
    the same memory; the columns of the schema are attributes for compiled code."""

    def __init__(self, prices: Floats) -> None:
        self.version = 0
        self.capacity = 0
        self.n_types = len(prices)
        self.prices = prices
        self.ints: dict[str, Ints] = {}
        self.floats: dict[str, Floats] = {}
        self.int_block: Ints = np.zeros((len(INT_COLUMNS), 0), np.int64)
        self.float_block: Floats = np.zeros((len(FLOAT_COLUMNS), 0))
        self.throughput: Floats = np.zeros((0, self.n_types))
        self.throughput_spread: Floats = np.zeros((0, self.n_types))
        self.allowed: Bools = np.zeros((0, self.n_types), np.bool_)
        self.width = 16
        self.allocation, self.physical = IntList(0), IntList(0)
        """What the plan gives a job, and what processes of its live attempt may occupy: the gang of job i begins at
        `i * width`; 0 there: nothing."""
        self.order = IntList(64)
        """Jobs in order of arrival; -1 where one has gone."""
        self.n_jobs = 0
        self.unused = IntList(64)
        """Indices without a job."""
        self.n_arrivals = 0
        self.phase_log, self.logs_phases = IntList(64), False
        """Jobs that came, or began or ceased to wait, since a pass looked last; kept when a pass follows them."""
        self.memo: dict[str, Floats] = {}
        """What policies remember of jobs, by name."""
        self.resize(64)

    def resize(self, capacity: int) -> None:
        """Make room for so many jobs."""
        extra = capacity - self.capacity
        self.int_block = np.concatenate([self.int_block, np.zeros((len(INT_COLUMNS), extra), np.int64)], axis=1)
        self.float_block = np.concatenate([self.float_block, np.zeros((len(FLOAT_COLUMNS), extra))], axis=1)
        for k, name in enumerate(INT_COLUMNS):
            self.ints[name] = self.int_block[k]
        for k, name in enumerate(FLOAT_COLUMNS):
            self.floats[name] = self.float_block[k]
        self.throughput = np.concatenate([self.throughput, np.zeros((extra, self.n_types))])
        self.throughput_spread = np.concatenate([self.throughput_spread, np.zeros((extra, self.n_types))])
        self.allowed = np.concatenate([self.allowed, np.zeros((extra, self.n_types), np.bool_)])
        for packed in (self.allocation, self.physical):
            values = np.zeros(capacity * self.width, np.int64)
            values[: self.capacity * self.width] = packed.values
            packed.values = values
            packed.n = len(values)
        self.unused.reserve(capacity)
        for i in range(capacity - 1, self.capacity - 1, -1):
            self.unused.append(i)
        self.order.reserve(2 * capacity)
        self.capacity = capacity
        self._bind()

    def grow(self) -> None:
        """Make room for as many jobs again."""
        self.resize(2 * self.capacity)

    def widen(self, width: int) -> None:
        """Make room for gangs of so many integers."""
        if width <= self.width:
            return
        wider = max(width, 2 * self.width)
        for packed in (self.allocation, self.physical):
            rows = np.zeros((self.capacity, wider), np.int64)
            rows[:, : self.width] = np.asarray(packed.values).reshape(self.capacity, self.width)
            packed.values = rows.reshape(-1)
            packed.n = rows.size
        self.width = wider

    def scaled_rate(self, i: int, base: float, workers: int, servers: int) -> float:
        """Steps per second at another size than the reference, where `base` are done; curves are known to a
        subclass."""
        return base

    def _bind(self) -> None:
        """Let the compiled attributes name the arrays as they are now."""
        ints, floats = self.ints, self.floats
        self.submit_ms, self.arrival = ints["submit_ms"], ints["arrival"]
        self.workers_min, self.workers_max = ints["workers_min"], ints["workers_max"]
        self.servers_min, self.servers_max = ints["servers_min"], ints["servers_max"]
        self.workers_ref, self.servers_ref = ints["workers_ref"], ints["servers_ref"]
        self.devices_each, self.share_milli = ints["devices_each"], ints["share_milli"]
        self.worker_gpu_milli, self.worker_cpu_milli = ints["worker_gpu_milli"], ints["worker_cpu_milli"]
        self.worker_mem_mib, self.server_cpu_milli = ints["worker_mem_mib"], ints["server_cpu_milli"]
        self.server_mem_mib, self.preemptible = ints["server_mem_mib"], ints["preemptible"]
        self.deadline_ms = ints["deadline_ms"]
        self.phase, self.generation, self.attempts = ints["phase"], ints["generation"], ints["attempts"]
        self.failures, self.preemptions, self.held_type = ints["failures"], ints["preemptions"], ints["held_type"]
        self.workers, self.servers, self.nodes_held = ints["workers"], ints["servers"], ints["nodes_held"]
        self.first_start_ms, self.as_of_ms = ints["first_start_ms"], ints["as_of_ms"]
        self.productive_ms, self.waiting_since_ms = ints["productive_ms"], ints["waiting_since_ms"]
        self.not_before_ms, self.reason, self.blocker = ints["not_before_ms"], ints["reason"], ints["blocker"]
        self.after_stop = ints["after_stop"]
        self.workers_ask, self.servers_ask = ints["workers_ask"], ints["servers_ask"]
        self.ask_gpu_milli, self.held_gpu_milli = ints["ask_gpu_milli"], ints["held_gpu_milli"]
        self.max_attempts, self.hidden, self.number = ints["max_attempts"], ints["hidden"], ints["number"]
        self.pending_kind, self.pending_seq = ints["pending_kind"], ints["pending_seq"]
        self.pending_sent_ms, self.pending_why = ints["pending_sent_ms"], ints["pending_why"]
        self.last_seq, self.place, self.node_set = ints["last_seq"], ints["place"], ints["node_set"]
        self.elastic, self.touched, self.reasoned = ints["elastic"], ints["touched"], ints["reasoned"]
        self.work_total = floats["work_total"]
        self.work_done, self.work_saved = floats["work_done"], floats["work_saved"]
        self.rate, self.service_gpu_s, self.run_s = floats["rate"], floats["service_gpu_s"], floats["run_s"]
        self.cost = floats["cost"]
        self.int_rows, self.float_rows = self.int_block, self.float_block
        self.speed, self.speed_spread = self.throughput, self.throughput_spread
        self.may_use = self.allowed.view(np.uint8)


def take_index(jobs: JobArrays) -> int:
    """An index for a job that arrives, last in the order; there must be room."""
    unused, order = jobs.unused, jobs.order
    unused.n -= 1
    i = unused.values[unused.n]
    if order.n == len(order.values):
        close_gaps(jobs)
    jobs.place[i] = order.n
    order.append(i)
    jobs.n_jobs += 1
    jobs.n_arrivals += 1
    log_phase(jobs, i)
    return i


def log_phase(jobs: JobArrays, i: int) -> None:
    """The job came, or began or ceased to wait."""
    if jobs.logs_phases:
        jobs.phase_log.reserve(jobs.phase_log.n + 1)
        jobs.phase_log.append(i)


def free_index(jobs: JobArrays, i: int) -> None:
    """The job is gone."""
    jobs.order.values[jobs.place[i]] = -1
    jobs.allocation.values[i * jobs.width] = 0
    jobs.physical.values[i * jobs.width] = 0
    jobs.n_jobs -= 1
    jobs.unused.append(i)


def close_gaps(jobs: JobArrays) -> None:
    """Leave no gaps in the order of arrival."""
    order, n = jobs.order, 0
    if order.n == jobs.n_jobs:
        return
    for k in range(order.n):
        i = order.values[k]
        if i >= 0:
            order.values[n] = i
            jobs.place[i] = n
            n += 1
    order.n = n


def settle(jobs: JobArrays, i: int, now_ms: int) -> None:
    """Bring a running job's work, run time and GPU service up to now, at its estimated rate."""
    as_of = jobs.as_of_ms[i]
    if as_of == now_ms:
        return
    jobs.as_of_ms[i] = now_ms
    if not RUNNING <= jobs.phase[i] <= STOPPING:
        return
    jobs.work_done[i] = _work_since(jobs, i, as_of, now_ms)
    held_s = (now_ms - as_of) / MS_PER_S
    service = held_s * jobs.held_gpu_milli[i] / 1000.0
    jobs.service_gpu_s[i] += service
    gpu_type = jobs.held_type[i]
    if gpu_type >= 0:
        jobs.cost[i] += service / 3600.0 * jobs.prices[gpu_type]
    jobs.run_s[i] += held_s


def _work_since(jobs: JobArrays, i: int, as_of: int, now_ms: int) -> float:
    """Work at `now_ms`: what was last known plus the estimated rate since, never beyond the total."""
    done = jobs.work_done[i]
    since = max(as_of, jobs.productive_ms[i])
    if now_ms > since:
        done += jobs.rate[i] * (now_ms - since) / MS_PER_S
        if done > jobs.work_total[i]:
            done = jobs.work_total[i]
    return done


def work_now(jobs: JobArrays, i: int, now_ms: int) -> float:
    if RUNNING <= jobs.phase[i] <= STOPPING:
        return _work_since(jobs, i, jobs.as_of_ms[i], now_ms)
    return jobs.work_done[i]


def service_now(jobs: JobArrays, i: int, now_ms: int) -> float:
    """GPU-seconds attained."""
    attained = jobs.service_gpu_s[i]
    if RUNNING <= jobs.phase[i] <= STOPPING:
        attained += jobs.held_gpu_milli[i] / 1000.0 * (now_ms - jobs.as_of_ms[i]) / MS_PER_S
    return attained


def remaining_now(jobs: JobArrays, i: int, now_ms: int) -> float:
    """Seconds left at the asked size on the fastest acceptable type; infinite where unknown."""
    best = 0.0
    for gpu_type in range(jobs.n_types):
        if jobs.may_use[i, gpu_type] and jobs.speed[i, gpu_type] > best:
            best = jobs.speed[i, gpu_type]
    left = jobs.work_total[i] - work_now(jobs, i, now_ms)
    return left / best if best > 0.0 and left == left else INFINITE


def work_done_column(jobs: JobArrays, which: Ints, now_ms: int) -> Floats:
    out = np.empty(len(which))
    write_column(jobs, which, now_ms, 0, out)
    return out


def remaining_column(jobs: JobArrays, which: Ints, now_ms: int) -> Floats:
    out = np.empty(len(which))
    write_column(jobs, which, now_ms, 1, out)
    return out


def service_column(jobs: JobArrays, which: Ints, now_ms: int) -> Floats:
    out = np.empty(len(which))
    write_column(jobs, which, now_ms, 2, out)
    return out


def write_column(jobs: JobArrays, which: Ints, now_ms: int, what: int, out: Floats) -> None:
    """Of each job, what follows from its columns and the time: work (0), seconds left (1) or GPU-seconds (2)."""
    for k in range(len(which)):
        if what == 0:
            out[k] = work_now(jobs, which[k], now_ms)
        elif what == 1:
            out[k] = remaining_now(jobs, which[k], now_ms)
        else:
            out[k] = service_now(jobs, which[k], now_ms)
