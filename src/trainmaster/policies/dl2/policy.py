"""DL2 as a policy: sizes of elastic jobs chosen by the shipped network, or by other weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.estimate.speed_fit import fit_speed
from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.scaling import Scaling
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies import registry
from trainmaster.policies.dl2.growth import AbsurdScores, Candidates, grow
from trainmaster.policies.dl2.speed_profiles import learn_speeds
from trainmaster.policies.dl2.waiting_order import Turns, take_turns
from trainmaster.policies.dl2.weights import load_once
from trainmaster.policies.registry import register
from trainmaster.policies.shared.arrival_order import decide_by_arrival
from trainmaster.policies.shared.could_run import could_run
from trainmaster.policies.shared.node_capacity import JobSizes, Room
from trainmaster.policies.shared.optimus_estimates import TERMS, Estimates, believe
from trainmaster.policies.shared.pools import Demands, Pools, capacity, demands, free_pools, sizes_when_giving_way
from trainmaster.policies.shared.sizing import Sizes, apply_sizes, elastic_rows, resizable_rows, smallest_servers

SLOT_S = 1200.0
"""Times are measured in slots of the paper's length when the run has no rounds."""
GRANTS_MAX = 400
PROFILE_POINTS_MAX = 1000


@register("dl2")
@dataclass(frozen=True)
class Dl2:
    """A learned network gives each worker and server to the job where it pays, shorter jobs first."""

    weights: str = field(default="", metadata={"help": "a weights file; empty: the one that is shipped"})
    teacher: str = field(default="drf", metadata={"help": "decides when the network's answer cannot be used"})
    error: float = field(default=0.0, metadata={"help": "relative error of the estimates, or of a profiled point"})
    fitted: bool = field(default=False, metadata={"help": "fit speed curves instead of believing the job"})
    profile_points: int = field(default=8, metadata={"help": "sizes at which a new job is profiled (fitted)"})
    pooled: bool = field(default=True, metadata={"help": "fit all jobs of a model together (fitted)"})
    between_slots: bool = field(
        default=False, metadata={"help": "also decide when jobs come and go within a round, not only at its start"}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.error < 1:
            raise InputError(f"option 'error' of policy 'dl2' is {self.error}", "a fraction from 0 to below 1")
        if not 1 <= self.profile_points <= PROFILE_POINTS_MAX:
            found = f"option 'profile_points' of policy 'dl2' is {self.profile_points}"
            raise InputError(found, f"1 to {PROFILE_POINTS_MAX}")
        if self.teacher.partition(":")[0] == "dl2":
            raise InputError("option 'teacher' of policy 'dl2' is 'dl2'", "another policy, such as drf")
        registry.parse(self.teacher)  # a slip is told now, not when the teacher is needed
        load_once(self.weights)

    @property
    def traits(self) -> PolicyTraits:
        return PolicyTraits(own_rounds=self.between_slots)

    def decide(self, view: Snapshot) -> Plan:
        return decide_by_arrival(view, self._decide)

    def _decide(self, view: Snapshot) -> Plan:
        jobs = view.jobs
        waiting, resizable = view.waiting_rows(), resizable_rows(view)
        # What would not find room in an empty cluster has no turn: nothing may be counted or kept free for it.
        waiting = waiting[could_run(view, waiting, jobs.workers_min, smallest_servers(view))]
        ready = np.zeros(len(jobs), np.bool_)
        ready[waiting] = True
        growable = (ready & elastic_rows(view)) | resizable
        beliefs = believe(
            view,
            np.flatnonzero(growable),
            self.error,
            self.fitted,
            self.profile_points,
            0.01,
            learn_speeds if self.pooled else None,
        )
        try:
            sizes, turns = self._sizes(view, beliefs, waiting, growable)
        except AbsurdScores as absurd:
            plan = registry.create(self.teacher).decide(view)
            return replace(plan, notes=(*plan.notes, f"dl2: the network gave {absurd}; {self.teacher} decided"))
        builder = view.draft()
        kept_for = np.array([turns.kept_for]) if turns.kept_for >= 0 else None
        apply_sizes(builder, sizes, np.concatenate([np.flatnonzero(resizable), turns.rows]), kept_for)
        # Remaining times shrink while nothing else happens: the sizes are looked at again in the next slot.
        slot_ms = view.round_ms or int(SLOT_S * MS_PER_S)
        wake_at_ms = (view.now_ms // slot_ms + 1) * slot_ms if growable.any() else None
        return builder.plan(memo=beliefs.memo, wake_at_ms=wake_at_ms)

    def _sizes(
        self, view: Snapshot, beliefs: Estimates, waiting: Ints, growable: npt.NDArray[np.bool_]
    ) -> tuple[Sizes, Turns]:
        start_servers = smallest_servers(view)
        need, pools, total = demands(view), free_pools(view), capacity(view)
        sizes = Sizes(*sizes_when_giving_way(view, growable & view.jobs.holding, start_servers, need, pools))
        turns = Turns(waiting, -1)
        trial = Sizes(sizes.workers.copy(), sizes.servers.copy(), sizes.gpu_type.copy())
        if not _begin(view, Pools(*(free.copy() for free in pools)), need, waiting, start_servers, trial):
            turns = take_turns(view, waiting, beliefs, growable, need, total, start_servers)
        kept_for = turns.kept_for
        if kept_for >= 0 and not _begin(view, pools, need, turns.rows[:1], start_servers, sizes):
            for free in (pools.whole, pools.milli, pools.cpu, pools.mem):
                free[view.jobs.allowed[kept_for]] = 0.0
            sizes.workers[kept_for], sizes.servers[kept_for] = view.jobs.workers_min[kept_for], start_servers[kept_for]
        _begin(view, pools, need, turns.rows[0 if kept_for < 0 else 1 :], start_servers, sizes)
        rows = np.flatnonzero(growable & (sizes.workers > 0) & (sizes.gpu_type >= 0))
        if len(rows):
            grow(
                load_once(self.weights).network,
                _candidates(view, beliefs, rows, sizes.gpu_type, need, total, start_servers),
                pools,
                need,
                total,
                sizes.workers,
                sizes.servers,
                GRANTS_MAX,
            )
        return sizes, turns


def _begin(view: Snapshot, pools: Pools, need: Demands, waiting: Ints, start_servers: Ints, sizes: Sizes) -> bool:
    """The smallest size for each in this order, where it fits; whether all have one."""
    jobs = view.jobs
    rows = JobSizes(
        sizes.workers,
        sizes.servers,
        sizes.gpu_type,
        jobs.workers_min,
        jobs.workers_max,
        start_servers,
        jobs.servers_max,
        jobs.allowed,
        jobs.throughput,
    )
    rows.start_small(Room(pools, need), waiting, np.zeros(jobs.allowed.shape[1], np.bool_))
    return bool((sizes.gpu_type[waiting] >= 0).all())


def _candidates(
    view: Snapshot, beliefs: Estimates, rows: Ints, gpu_type: Ints, need: Demands, total: Floats, start_servers: Ints
) -> Candidates:
    jobs = view.jobs
    slot_s = view.round_ms / MS_PER_S if view.round_ms else SLOT_S
    age_s = (view.now_ms - jobs.submit_ms[rows]) / MS_PER_S
    gpu_types = np.maximum(gpu_type[rows], 0)
    scale = np.maximum(beliefs.scale[rows, gpu_types], 1e-12)
    coefficients = beliefs.coefficients[rows].copy()
    for i in np.flatnonzero(beliefs.table[rows] >= 0).tolist():
        coefficients[i] = _smooth(jobs.scaling(int(rows[i])))
    remaining = beliefs.remaining[rows]
    # Work of unknown amount: as long again as it has run so far, a slot at least.
    unknown = ~np.isfinite(remaining)
    remaining = np.where(unknown, np.maximum(jobs.run_s[rows], slot_s) * scale, remaining)
    whole = np.where(unknown, np.inf, np.maximum(jobs.work_total[rows], 1e-12))
    worker_cost = np.maximum.reduce([need.gpu[rows] / total[0], need.cpu[rows] / total[1], need.mem[rows] / total[2]])
    server_cost = np.maximum(need.server_cpu[rows] / total[1], need.server_mem[rows] / total[2])
    return Candidates(
        row=rows,
        gpu_type=gpu_type[rows],
        coefficients=coefficients,
        work_slots=np.maximum(remaining, 0.0) / scale / slot_s,
        age_slots=np.maximum(age_s, 0.0) / slot_s,
        done=np.clip(1.0 - remaining / whole, 0.0, 1.0),
        workers_least=jobs.workers_min[rows],
        servers_least=start_servers[rows],
        workers_max=jobs.workers_max[rows],
        servers_max=jobs.servers_max[rows],
        worker_cost=worker_cost,
        server_cost=np.where(jobs.servers_max[rows] > 0, server_cost, worker_cost),
    )


@lru_cache(maxsize=256)
def _smooth(curve: Scaling) -> Floats:
    """Coefficients of the formula nearest to a curve that is given as measured points."""
    fitted = fit_speed([(workers, 0, speed) for workers, speed in curve.points if workers > 0 and speed > 0]).scaling
    return np.array([getattr(fitted, term) for term in TERMS])
