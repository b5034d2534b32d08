# cython: cdivision=True
"""The slot simulator, compiled: begin a slot, grant one action, gather features, end a slot.

An episode b has room for `width` jobs; the job j of it is row b * width + j of every array by job. Time is in integer
milliseconds from the beginning of the trace.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import Bools, Floats, Ints, new_floats, new_ints
from trainmaster.policies.dl2.evidence_terms import N_TERM, PROGRESS_WEIGHT
from trainmaster.policies.dl2.features import JobFeatures, LogTimes, global_features
from trainmaster.policies.dl2.speed_evidence import add_point, drawn_part, likely_best, move, settle, size_near
from trainmaster.policies.dl2.waiting_order import discounted_area
from trainmaster.policies.shared.speed_curves import SpeedCurves

if TYPE_CHECKING:
    from trainmaster.learn.sizing.batch import SlotState

Singles = npt.NDArray[np.float32]
WORKER, SERVER, BOTH = 0, 1, 2


def _flat(array: npt.NDArray[Any]) -> Any:
    """Episodes one below the other, without a copy."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


class SlotWorld:
    """The arrays of `SlotState`, jobs of all episodes one below the other, and what happens to them."""

    def __init__(self, state: SlotState, floor: bool) -> None:
        self.floor, self.width, self.n_kinds = floor, state.work.shape[1], state.pools.shape[1]
        self.submit_ms, self.finish_ms = _flat(state.submit_ms), _flat(state.finish_ms)
        self.work, self.left, self.trained = _flat(state.work), _flat(state.left), _flat(state.trained)
        self.curve, self.believed = SpeedCurves(_flat(state.curve)), SpeedCurves(_flat(state.believed))
        self.kind, self.factor, self.held = _flat(state.kind), _flat(state.factor), _flat(state.held)
        self.workers, self.servers, self.rows = _flat(state.workers), _flat(state.servers), _flat(state.rows)
        self.ran, self.measured = _flat(state.ran), _flat(state.measured)
        self.sizes, self.near, self.noise = _flat(state.sizes), _flat(state.near), _flat(state.noise)
        self.evidence, self.job_factor = _flat(state.evidence), _flat(state.job_factor)
        self.pools, self.kind_curve = _flat(state.pools), _flat(state.kind_curve)
        self.feature_rows = _flat(state.features)
        self.features = JobFeatures(_flat(state.features), self.believed)
        self.learns, self.error, self.n_rows, self.n_jobs = state.learns, state.error, state.n_rows, state.n_jobs
        self.slot, self.slot_ms, self.gpus, self.cpus = state.slot, state.slot_ms, state.gpus, state.cpus
        self.server_cpus, self.workers_max, self.servers_max = state.server_cpus, state.workers_max, state.servers_max
        self.free_gpu, self.free_cpu = state.free_gpu, state.free_cpu
        self.log_times = [LogTimes(np.zeros(0), 0)] * len(state.n_jobs)
        self.present = self.progress = 0.0

    def begin_slot(self, b: int) -> bool:
        """Admit what has arrived, give everyone one worker and one server (while they last: see `_least_sizes`), and
        write the features of the first decision. Returns False when the trace is over."""
        first = b * self.width
        for j in range(first, first + self.n_jobs[b]):
            self.held[j] = self.workers[j] > 0
            self.workers[j] = 0
            self.servers[j] = 0
        next_ms = self._admit(b)
        if self.n_rows[b] == 0:
            if next_ms < 0:
                return False
            self.slot[b] = (next_ms + self.slot_ms[b] - 1) // self.slot_ms[b]
            self._admit(b)
        self._open_slot(b)
        return True

    def _admit(self, b: int) -> int:
        """List the jobs that are there now; returns when the next one comes, or -1."""
        first, now, n = b * self.width, self.slot[b] * self.slot_ms[b], 0
        next_ms = -1
        for j in range(self.n_jobs[b]):
            if self.finish_ms[first + j] >= 0:
                continue
            if self.submit_ms[first + j] <= now:
                self.rows[first + n] = j
                n += 1
            elif next_ms < 0 or self.submit_ms[first + j] < next_ms:
                next_ms = self.submit_ms[first + j]
        self.n_rows[b] = n
        return next_ms

    def _open_slot(self, b: int) -> None:
        n, first = self.n_rows[b], b * self.width
        if self.learns[b]:
            self._learn_speeds(b)
        self.free_gpu[b] = self.gpus[b]
        self.free_cpu[b] = self.cpus[b]
        least_p = min(1, self.servers_max[b])
        if self.floor:
            self._least_sizes(b, least_p)
        cost_w, cost_p = 1.0 / self.gpus[b], self._server_cost(b)
        slot_s = self.slot_ms[b] / 1000.0
        log_time = new_floats(n)
        for i in range(n):
            j = first + self.rows[first + i]
            time = self.left[j] * self.believed.step_time(j, 1, least_p) / slot_s
            log_time[i] = math.log(max(time, 1e-6))
        times = LogTimes(log_time, n)
        self.log_times[b] = times
        now = self.slot[b] * self.slot_ms[b]
        for i in range(n):
            j = first + self.rows[first + i]
            age = (now - self.submit_ms[j]) / float(self.slot_ms[b])
            done = 1.0 - self.left[j] / self.work[j]
            self.features.at_slot(j, log_time[i], age, done, cost_w, cost_p, times, i)
            self._resized(b, j)

    def _least_sizes(self, b: int, least_p: int) -> None:
        """One worker and one server each: whoever ran keeps them, those who wait follow in the order of the policy
        (`policies.dl2.waiting_order`) when there is not room for all."""
        n, first = self.n_rows[b], b * self.width
        room = int(self.gpus[b])
        if least_p > 0:
            room = min(room, int(self.cpus[b] / self.server_cpus[b]))
        turn = np.arange(n)
        if n > room:
            turn = self._turns(b, n, least_p)
        for k in range(min(n, room)):
            j = first + self.rows[first + turn[k]]
            self.workers[j] = 1
            self.servers[j] = least_p
            self.free_gpu[b] -= 1
            self.free_cpu[b] -= least_p * self.server_cpus[b]

    def _turns(self, b: int, n: int, least_p: int) -> Ints:
        first, now = b * self.width, self.slot[b] * self.slot_ms[b]
        time_s, waited_s, held = new_floats(n), new_floats(n), np.zeros(n, np.bool_)
        for i in range(n):
            j = first + self.rows[first + i]
            time_s[i] = self.left[j] * self.believed.step_time(j, 1, least_p)
            waited_s[i] = (now - self.submit_ms[j]) / 1000.0
            held[i] = self.held[j]
        key = np.where(held, -1.0, discounted_area(np.asarray(time_s), 1.0, np.asarray(waited_s)))
        return np.argsort(key, kind="stable")

    def _server_cost(self, b: int) -> float:
        """Share of the cluster; of jobs without servers the policy says that of a worker."""
        return self.server_cpus[b] / self.cpus[b] if self.servers_max[b] > 0 else 1.0 / self.gpus[b]

    def _resized(self, b: int, j: int) -> None:
        self.features.at_size(
            j,
            self.left[j] / (self.slot_ms[b] / 1000.0),
            self.workers[j],
            self.servers[j],
            self.workers_max[b],
            self.servers_max[b],
            1.0 / self.gpus[b],
            self._server_cost(b),
        )

    def legal(self, b: int, j: int, action: int) -> bool:
        """Whether one more worker, server or both can be given to the job of a row now."""
        w, p = self.workers[j], self.servers[j]
        if self.floor and w == 0:
            return False  # the floor did not reach it: there is no room
        if self.servers_max[b] == 0:  # "both" gives a worker alone to jobs without servers, as in the policy
            return action == BOTH and w < self.workers_max[b] and self.free_gpu[b] >= 1
        if action != SERVER and (w >= self.workers_max[b] or self.free_gpu[b] < 1):
            return False
        return not (action != WORKER and (p >= self.servers_max[b] or self.free_cpu[b] < self.server_cpus[b]))

    def any_legal(self, b: int) -> bool:
        first = b * self.width
        for i in range(self.n_rows[b]):
            for action in range(3):
                if self.legal(b, first + self.rows[first + i], action):
                    return True
        return False

    def grant(self, b: int, j: int, action: int) -> None:
        if action != SERVER:
            self.workers[j] += 1
            self.free_gpu[b] -= 1
        if action != WORKER and self.servers_max[b] > 0:
            self.servers[j] += 1
            self.free_cpu[b] -= self.server_cpus[b]
        self._resized(b, j)

    def end_slot(self, b: int) -> None:
        """Let the slot pass: progress at the true speeds. `present` (jobs-in-system time) and `progress`, both in
        slots, say what it brought."""
        first, now, slot_ms = b * self.width, self.slot[b] * self.slot_ms[b], self.slot_ms[b]
        present = progress = 0.0
        for i in range(self.n_rows[b]):
            j = first + self.rows[first + i]
            w, p = self.workers[j], self.servers[j]
            ran_ms = slot_ms
            done = 0.0
            if w > 0 and (p > 0 or self.servers_max[b] == 0):
                rate = self.factor[j] / self.curve.step_time(j, w, p)
                done = rate * slot_ms / 1000.0
                left_ms = math.ceil(self.left[j] * 1000.0 / rate)
                if left_ms <= slot_ms:
                    done = self.left[j]
                    ran_ms = int(left_ms)
                    self.finish_ms[j] = now + ran_ms
                    self.left[j] = 0.0
                else:
                    self.left[j] -= done
                    self.ran[j, 0], self.ran[j, 1] = w, p
            present += ran_ms / float(slot_ms)
            self.trained[j] = done / self.work[j]
            progress += self.trained[j]
        self.slot[b] += 1
        self.present, self.progress = present, progress

    def write_globals(self, b: int, out: Singles, row: int) -> None:
        n = self.n_rows[b]
        least = max(n / self.gpus[b], n * self._server_cost(b))
        free_gpu, free_cpu = self.free_gpu[b] / self.gpus[b], self.free_cpu[b] / self.cpus[b]
        global_features(out[row], free_gpu, free_cpu, n, self.log_times[b], least)

    def gather(self, episodes: Ints, rows: Singles, allowed: Bools, starts: Ints, seen: Singles, job: Ints) -> None:
        """Features of the episodes' present decisions, one below the other."""
        n = 0
        for k in range(len(episodes)):
            b = episodes[k]
            starts[k] = n
            for i in range(self.n_rows[b]):
                j = self.rows[b * self.width + i]
                at = b * self.width + j
                for f in range(rows.shape[1]):
                    rows[n, f] = self.feature_rows[at, f]
                job[n] = j
                for action in range(3):
                    allowed[n, action] = self.legal(b, at, action)
                n += 1
            self.write_globals(b, seen, k)

    def apply_choices(
        self,
        episodes: Ints,
        row: Ints,
        action: Ints,
        job: Ints,
        ended: Bools,
        present: Floats,
        progress: Floats,
        over: Bools,
    ) -> None:
        """Carry out one choice per episode. A slot ends when the choice is to stop or nothing more is possible; the
        next one begins at once."""
        for k in range(len(episodes)):
            b = episodes[k]
            ended[k] = False
            over[k] = False
            if row[k] >= 0:
                self.grant(b, b * self.width + job[row[k]], action[k])
                if self.any_legal(b):
                    continue
            ended[k] = True
            self.end_slot(b)
            present[k], progress[k] = self.present, self.progress
            while True:
                if not self.begin_slot(b):
                    over[k] = True
                    break
                if self.any_legal(b):
                    break
                self.end_slot(b)
                present[k] += self.present
                progress[k] += self.progress

    # -- speeds, learned as `policies.dl2.speed_profiles` learns them: a test holds the two together ---------------

    def _learn_speeds(self, b: int) -> None:
        """Progress of the last slot, profiles of the jobs that are new, then a curve for each job of the slot."""
        n, first, kinds = self.n_rows[b], b * self.width, b * self.n_kinds
        changed = np.zeros(self.n_kinds, np.bool_)
        for i in range(n):
            j = first + self.rows[first + i]
            if self.job_factor[j] > 0.0 and self._progressed(b, j):
                changed[self.kind[j]] = True
        for i in range(n):
            j = first + self.rows[first + i]
            if self.job_factor[j] == 0.0:
                self._profile(b, j)
                self.job_factor[j] = 1.0
                move(self.pools[kinds + self.kind[j]], self.evidence[j], 0.0, 1.0)
                changed[self.kind[j]] = True
        members = new_ints(n)
        for kind in range(self.n_kinds):
            if not changed[kind]:
                continue
            few = 0
            for i in range(n):
                j = first + self.rows[first + i]
                if self.kind[j] == kind:
                    members[few] = j
                    few += 1
            settle(
                self.pools[kinds + kind], self.evidence, self.job_factor, members, few, self.kind_curve[kinds + kind]
            )
            for i in range(few):
                j = members[i]
                for k in range(N_TERM):
                    self.believed.coefficients[j, k] = self.kind_curve[kinds + kind, k] * self.job_factor[j]

    def _progressed(self, b: int, j: int) -> bool:
        w, p = self.ran[j, 0], self.ran[j, 1]
        if w == 0 or (w == self.measured[j, 0] and p == self.measured[j, 1]):
            return False
        point = np.zeros((N_TERM + 1, N_TERM))
        add_point(point, w, p, self.factor[j] / self.curve.step_time(j, w, p), PROGRESS_WEIGHT)
        for i in range(N_TERM + 1):
            for k in range(N_TERM):
                self.evidence[j, i, k] += point[i, k]
        move(self.pools[b * self.n_kinds + self.kind[j]], point, 0.0, self.job_factor[j])
        self.measured[j, 0], self.measured[j, 1] = w, p
        return True

    def _profile(self, b: int, j: int) -> None:
        """Profiles are taken before a job runs, on a machine of its own: they do not know its hidden factor."""
        own, count = self.evidence[j], self.noise.shape[1]
        drawn = drawn_part(count)
        best_w = best_p = 1
        least_p = min(1, self.servers_max[b])
        for k in range(count):
            w, p = self.sizes[j, k, 0], self.sizes[j, k, 1]
            if k >= drawn:
                if k == drawn:
                    best_w, best_p = likely_best(
                        self.pools[b * self.n_kinds + self.kind[j]],
                        own,
                        1,
                        self.workers_max[b],
                        least_p,
                        self.servers_max[b],
                    )
                w = size_near(best_w, 1, self.workers_max[b], self.near[j, k, 0])
                p = size_near(best_p, least_p, self.servers_max[b], self.near[j, k, 1])
            speed = max(1.0 + self.error[b] * self.noise[j, k], 0.05) / self.curve.step_time(j, w, p)
            add_point(own, w, p, speed, 1.0)
