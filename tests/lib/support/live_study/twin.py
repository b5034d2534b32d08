"""The same jobs in the simulator, with the speeds and costs that were measured live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from support.live_study.live import LiveRun, Note
from support.live_study.workload import StudyJob
from trainmaster.engine.records import Ended, Settings
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import DeadlineKind, JobSpec, Phase
from trainmaster.model.scaling import Scaling
from trainmaster.policies.registry import create
from trainmaster.sim.run import RunResult, simulate
from trainmaster.sim.truth import TruthOptions

SETTLED_S = 1.0
"""After a change of size nothing is measured for so long."""
OUTAGE_MS = 1_000


@dataclass(frozen=True)
class Agreement:
    policy: str
    live_jct_s: float
    twin_jct_s: float
    otherwise: tuple[str, ...]
    """Jobs that ended in another way than in the simulation."""
    resizes: int
    preemptions: int
    miscounted: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.live_jct_s / self.twin_jct_s


def measured_speeds(jobs: Sequence[StudyJob], runs: Sequence[LiveRun]) -> dict[tuple[str, str, str, int], float]:
    """Steps per second by (model, way, GPU type, workers): work over time of all stretches at that size."""
    kind_of = {job.name: (job.model, job.way) for job in jobs}
    work: dict[tuple[str, str, str, int], float] = defaultdict(float)
    time_s: dict[tuple[str, str, str, int], float] = defaultdict(float)
    for run in runs:
        for name, notes in run.notes.items():
            for stretch in _stretches(notes):
                first, last = stretch[0], stretch[-1]
                key = (*kind_of[name], first.gpu_type, first.workers)
                work[key] += last.work - first.work
                time_s[key] += last.at_s - first.at_s
    return {key: work[key] / time_s[key] for key in sorted(work) if time_s[key] >= 3.0 and work[key] > 0}


def _stretches(notes: Sequence[Note]) -> list[list[Note]]:
    """Notes at one size of one attempt, from a while after the size changed."""
    found: list[list[Note]] = [[]]
    for note in notes:
        last = found[-1][-1] if found[-1] else note
        if (note.gpu_type, note.workers, note.attempt) != (last.gpu_type, last.workers, last.attempt):
            found.append([])
        found[-1].append(note)
    settled = [[n for n in stretch if n.at_s >= stretch[0].at_s + SETTLED_S] for stretch in found if stretch]
    return [stretch for stretch in settled if len(stretch) >= 2]


def twin_of(
    jobs: Sequence[StudyJob], run: LiveRun, policy: str, cluster: Cluster, round_s: float | None,
    speeds: Mapping[tuple[str, str, str, int], float],
) -> RunResult:  # fmt: skip
    later_ms = round((round_s or 10.0) * 1000)
    epoch_ms = min(end.spec.submit_ms for end in run.ended.values()) - later_ms
    specs = [_twin_spec(job, run.ended[job.name], epoch_ms, cluster, speeds) for job in jobs]
    costs = run.costs
    outages: tuple[tuple[int, int, int], ...] = ()
    if run.outage is not None:
        outages = ((run.outage[0], round(run.outage[1] * 1000) + later_ms, OUTAGE_MS),)
    truth = TruthOptions(
        launch_ms=costs.launch_ms, restart_cost_ms=max(0, costs.restart_ms - costs.launch_ms), stop_ms=costs.stop_ms,
        resize_cost_ms=costs.resize_ms, exit_ms=costs.exit_ms, outages=outages,
    )  # fmt: skip
    settings = Settings(round_ms=None if round_s is None else round(round_s * 1000), elastic_fill=True)
    return simulate(specs, cluster, create(policy), settings, truth, record_history=True)


def _twin_spec(
    job: StudyJob, end: Ended, epoch_ms: int, cluster: Cluster, speeds: Mapping[tuple[str, str, str, int], float]
) -> JobSpec:
    """The job as submitted, `steps_per_s` at its largest size and its curve replaced by what was measured."""
    spec, most = end.spec, end.spec.workers_max
    by_type: dict[str, float] = {}
    for gpu_type in cluster.types:
        declared = spec.steps_per_s[gpu_type]
        seen = {w: speeds[key] for w in range(1, most + 1) if (key := (job.model, job.way, gpu_type, w)) in speeds}
        off = mean(v / (declared * _relative(job, w)) for w, v in seen.items()) if seen else 1.0
        by_type[gpu_type] = seen.get(most, declared * off)
    points = []
    for workers in range(1, most + 1):
        ratios = [
            speeds[key] / by_type[gpu_type]
            for gpu_type in cluster.types
            if (key := (job.model, job.way, gpu_type, workers)) in speeds
        ]
        points.append((workers, mean(ratios) if ratios else _relative(job, workers)))
    deadline_ms = spec.deadline_ms - epoch_ms if spec.deadline_kind != DeadlineKind.NONE else spec.deadline_ms
    return replace(
        spec, submit_ms=spec.submit_ms - epoch_ms, deadline_ms=deadline_ms, steps_per_s=by_type, payload={},
        node_set="", scaling=Scaling(points=tuple(points)),
    )  # fmt: skip


def _relative(job: StudyJob, workers: int) -> float:
    return job.steps_per_s(workers) / job.steps_per_s(job.workers[1])


def compared(run: LiveRun, twin: RunResult, wrong: Sequence[str]) -> Agreement:
    simulated = {end.spec.id: end for end in twin.ended}
    otherwise, live_s, twin_s = [], [], []
    for name, end in run.ended.items():
        other = simulated[end.spec.id]
        if end.phase != other.phase:
            otherwise.append(f"{name}: {end.phase.name.lower()}, simulated {other.phase.name.lower()}")
        elif end.phase == Phase.FINISHED:
            live_s.append((end.ended_ms - end.spec.submit_ms) / 1000)
            twin_s.append((other.ended_ms - other.spec.submit_ms) / 1000)
    sizes: dict[str, list[int]] = defaultdict(list)
    for sample in run.samples:
        if not sizes[sample.job] or sizes[sample.job][-1] != sample.workers:
            sizes[sample.job].append(sample.workers)
    resizes = sum(len(seen) - 1 for seen in sizes.values())
    return Agreement(
        run.policy, float(np.mean(live_s)), float(np.mean(twin_s)), tuple(otherwise), resizes,
        sum(end.preemptions for end in run.ended.values()), tuple(wrong),
    )  # fmt: skip
