"""DAS as a policy: down the learned scores, what fits starts where it has most affinity, and the first that does not
is held for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.errors import InputError
from trainmaster.model.placement import Strategy
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI
from trainmaster.policies import registry
from trainmaster.policies.das.backfill_reservation import hold_for
from trainmaster.policies.das.features import (
    Scene,
    job_features,
    machine_features,
    machines_for,
    pair_features,
    phi_of,
)
from trainmaster.policies.das.gaussian import walk_features
from trainmaster.policies.das.observed_jobs import ObservedJobs
from trainmaster.policies.das.view import gang_rooms, scene_of
from trainmaster.policies.das.weights import Weights, load_once
from trainmaster.policies.registry import register
from trainmaster.policies.shared.arrival_order import decide_by_arrival
from trainmaster.policies.shared.could_run import could_run

ABSURD = 1e6
"""Scores and affinities beyond this are those of a network gone wrong."""


LOOK_AGAIN_MIN_S = 60.0
AS_FAST = 0.99
"""Types whose speeds differ by less are as fast as each other."""


class AbsurdOutput(Exception):
    """The agents gave numbers that nothing can be decided by."""


@register("das")
@dataclass(frozen=True)
class Das:
    """Two learned agents: one orders the waiting jobs, the other chooses machines; nothing is stopped."""

    weights: str = field(default="", metadata={"help": "a weights file; empty: the one that is shipped"})
    durations: str = field(
        default="declared", metadata={"help": "declared: by the job; history: only what like jobs took before"}
    )
    fallback: str = field(default="sjf", metadata={"help": "decides when the agents' answer cannot be used"})

    def __post_init__(self) -> None:
        if self.durations not in ("declared", "history"):
            raise InputError(f"option 'durations' of policy 'das' is '{self.durations}'", "declared or history")
        if self.fallback.partition(":")[0] == "das":
            raise InputError("option 'fallback' of policy 'das' is 'das'", "another policy, such as sjf")
        registry.parse(self.fallback)  # a slip is told now, not when it is needed
        load_once(self.weights)

    def decide(self, view: Snapshot) -> Plan:
        return decide_by_arrival(view, self._decide)

    def _decide(self, view: Snapshot) -> Plan:
        weights = load_once(self.weights)
        beliefs = ObservedJobs.recall(view, weights.kernel, declared=self.durations == "declared")
        if weights.agents.models_speed:
            beliefs.observe(view)
        memo = PolicyState(beliefs.to_json())
        builder = view.draft()
        try:
            look_again_s = _place(builder, weights, beliefs)
        except AbsurdOutput as absurd:
            plan = registry.create(self.fallback).decide(view)
            note = f"das: the agents gave {absurd}; {self.fallback} decided"
            return replace(plan, memo=memo, notes=(*plan.notes, note))
        wake_at_ms = view.now_ms + int(1000 * max(look_again_s, LOOK_AGAIN_MIN_S)) if look_again_s < np.inf else None
        return builder.plan(memo=memo, wake_at_ms=wake_at_ms)


def _place(builder: PlanBuilder, weights: Weights, beliefs: ObservedJobs) -> float:
    """Start what is to start. Returns after how many seconds to look again if nothing has happened by then: somebody
    waits by choice for the end of another, which may have been expected too early."""
    view, agents = builder.view, weights.agents
    waiting = view.waiting_rows()
    if not len(waiting):
        return np.inf
    scene = scene_of(view, waiting, beliefs)
    scores = _sane(agents.scores(job_features(scene), machine_features(scene)), "scores")
    jobs = view.jobs
    plain = (jobs.devices_each > 0) & (jobs.servers_ask == 0) & (view.placement != Strategy.COUNT)
    walks: dict[tuple[bytes, int], Floats] = {}
    dear: dict[bytes, Floats] = {}
    hold, held_row, look_again_s = None, -1, np.inf
    for place in np.argsort(-scores, kind="stable").tolist():
        row = int(waiting[place])
        if not plain[row]:
            builder.place(row)
            scene.free[:] = builder.free_capacity.whole * view.up
            continue
        if not scene.free.any() and int(jobs.share_milli[row]) == GPU_MILLI:
            continue  # the plan says that capacity is short
        anywhere = gang_rooms(builder, row)
        room = np.where(scene.usable[place][scene.type_of] > 0, anywhere, 0)
        barred = hold.bars(scene, place) if hold is not None else np.zeros(len(room), np.bool_)
        whole_only, workers = bool(scene.whole_only[place]), int(jobs.workers_ask[row])
        if not _takes(np.where(barred, 0, room), workers, scene.type_of, whole_only):
            if _takes(room, workers, scene.type_of, whole_only):
                builder.wait(row, Why.BEHIND, held_row)
            elif _takes(anywhere, workers, scene.type_of, whole_only=False):
                builder.wait(row, Why.SHAPE)  # on several machines, or on a slower type, it would end later
            if hold is None and could_run(view, np.array([row]), jobs.workers_ask, jobs.servers_ask)[0]:
                hold, held_row = hold_for(scene, place), row
            if hold is not None and _takes(anywhere, workers, scene.type_of, whole_only=False):
                look_again_s = hold.until_s
            continue
        log_speed = None
        if agents.models_speed:
            log_speed = _expected_speed(scene, place, row, view, weights, beliefs, walks)
        affinity = _sane(agents.affinities(pair_features(scene, place), log_speed), "affinities")
        kind = scene.speed[place].tobytes()
        if kind not in dear:
            dear[kind] = np.where(dearer(scene.speed[place], view.cluster.prices)[scene.type_of], ABSURD, 0.0)
        affinity = affinity - dear[kind]
        found = machines_for(np.where(barred, 0, room), workers, scene.type_of, affinity, whole_only)
        assert found is not None
        nodes = np.zeros(len(room), np.bool_)
        nodes[found[1]] = True
        before = scene.free.copy()
        if not builder.place(row, accelerator=found[0], nodes=nodes, strategy=Strategy.FIRST_FIT):
            builder.place(
                row
            )  # its workers lie on the machines otherwise than counted; anywhere, or states what is short
        scene.free[:] = builder.free_capacity.whole * view.up
        taken = before - scene.free
        if taken.any():
            scene.note_start(place, taken)
            if hold is not None:
                hold.note_start(scene, place, taken)
    return look_again_s


def dearer(speed: Floats, price: Floats) -> npt.NDArray[np.bool_]:
    """Types beside which another is as fast for a job and costs less. The agents are told no prices, and a job should
    not pay more for nothing. Unknown prices (NaN) compare with none."""
    as_fast = (speed[None, :] >= AS_FAST * speed[:, None]) & (speed[:, None] > 0)
    cheaper = price[None, :] < price[:, None]
    return np.asarray((as_fast & cheaper).any(axis=1))


def _takes(room: Ints, workers: int, type_of: Ints, whole_only: bool) -> bool:
    """Whether a gang finds room, in terms of its workers by machine."""
    if int(room.max(initial=0)) >= workers:
        return True
    return not whole_only and bool(np.bincount(type_of, weights=room).max(initial=0.0) >= workers)


def _expected_speed(
    scene: Scene,
    place: int,
    row: int,
    view: Snapshot,
    weights: Weights,
    beliefs: ObservedJobs,
    walks: dict[tuple[bytes, int], Floats],
) -> Floats:
    """Posterior mean of the log-speed on every machine. Jobs that look alike share the walk, until one is placed."""
    need = int(scene.need[place])
    speed = scene.speed[place][scene.type_of]
    key = (speed.tobytes() + scene.free.tobytes(), need)
    if key not in walks:
        phi = phi_of(speed, scene.free, np.zeros_like(scene.free), scene.gpus, need)
        walks[key] = walk_features(phi, scene.rack_of, weights.kernel)
    return beliefs.history.expect(view.jobs.spec(row).model, walks[key])[0]


def _sane(values: Floats, what: str) -> Floats:
    if not np.isfinite(values).all():
        raise AbsurdOutput(f"{what} that are not finite")
    if len(values) and float(np.abs(values).max()) > ABSURD:
        raise AbsurdOutput(f"{what} as large as {np.abs(values).max():.3g}")
    return values
