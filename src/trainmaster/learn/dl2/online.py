"""Learning on from what really happened: train in the background, promote only what wins in a shadow of recent
history against both the present weights and the teacher, roll back when the live figures say otherwise.

Nothing here reads a clock or talks to the service: the caller brings the jobs that have ended and asks now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trainmaster.engine.engine import Ended, Settings
from trainmaster.estimate.speed_fit import fit_speed
from trainmaster.learn.dl2.options import TrainOptions
from trainmaster.learn.sizing.job_types import ProfiledKind
from trainmaster.learn.sizing.trace import SizingSpec
from trainmaster.model.cluster import Cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec, Phase
from trainmaster.model.scaling import Scaling
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies import registry
from trainmaster.policies.dl2.weights import SHIPPED, load, shared_weights, to_bytes
from trainmaster.sim.run import simulate

FEWEST_JOBS = 20
"""With fewer finished jobs there is nothing to learn from, nor to judge by."""


def finished_specs(ended: Sequence[Ended], types: Sequence[str] = ()) -> list[JobSpec]:
    """Finished jobs as they would be submitted again, from time 0, in order of submission. Those that declared no
    speed get the one they ran at, on all of these types."""
    over = sorted((end for end in ended if end.phase == Phase.FINISHED), key=lambda e: (e.spec.submit_ms, e.spec.id))
    if len(over) < FEWEST_JOBS:
        raise InputError(f"{len(over)} jobs have finished", f"{FEWEST_JOBS} or more to learn from")
    first_ms = over[0].spec.submit_ms
    return [
        replace(_with_speed(e, types), submit_ms=e.spec.submit_ms - first_ms, work_total=max(e.work_done, 1e-9))
        for e in over
    ]


def _with_speed(end: Ended, types: Sequence[str]) -> JobSpec:
    """What it ran at is taken as the speed of its mean number of workers."""
    spec = end.spec
    if spec.steps_per_s or not types or end.run_s <= 0 or end.work_done <= 0:
        return spec
    per_worker = max(spec.worker.gpu_milli, 1) / GPU_MILLI
    workers = min(max(end.service_gpu_s / end.run_s / per_worker, 1.0), float(spec.workers_max))
    servers = spec.servers_max
    ratio = float(spec.scaling.speed(spec.workers_ref, spec.servers_ref)) / float(spec.scaling.speed(workers, servers))
    return replace(spec, steps_per_s=dict.fromkeys(types, end.work_done / end.run_s * ratio))


def history_spec(specs: Sequence[JobSpec], cluster: Cluster, slot_s: float) -> SizingSpec:
    """Traces like the recent past: its kinds, lengths, gaps and cluster. Learns from elastic jobs alone, and believes
    the speeds that they declared, as the policy does unless it is told to measure."""
    elastic = [spec for spec in specs if spec.elastic and spec.work_total]
    if len(elastic) < FEWEST_JOBS:
        raise InputError(
            f"{len(elastic)} of the finished jobs are elastic",
            f"{FEWEST_JOBS} or more",
            "DL2 learns sizes; let jobs be submitted with a range (--elastic A..B).",
        )
    widest = max(spec.workers_max for spec in elastic), max(spec.servers_max for spec in elastic)
    kinds: dict[str, ProfiledKind] = {}
    lengths: list[float] = []
    for spec in elastic:
        name = spec.model or repr(spec.scaling)
        per_unit = max(spec.steps_per_s.values(), default=1.0) / float(
            spec.scaling.speed(spec.workers_ref, spec.servers_ref)
        )
        kind = kinds.setdefault(name, ProfiledKind(name, _in_seconds(spec.scaling, per_unit)))
        lengths.append(
            float(spec.work_total or 0.0) / float(kind.scaling().speed(*kind.length_size(widest[0], max(widest[1], 1))))
        )
    arrivals_s = np.array([spec.submit_ms for spec in elastic]) / MS_PER_S
    gaps = np.diff(arrivals_s)
    cpus = [node.cpu_milli for node in cluster.nodes]
    server_cpus = max(1, max(spec.server.cpu_milli for spec in elastic) // 1000)
    per_node = min(min(cpus) // 1000, 64)
    return SizingSpec(
        servers=len(cluster.nodes),
        gpus_per_server=max(1, int(np.median(cluster.gpus))),
        cpus_per_server=max(per_node, server_cpus),
        server_cpus=server_cpus,
        jobs=min(len(elastic), 100),
        slot_s=slot_s,
        kinds=tuple(kinds[name] for name in sorted(kinds)),
        workers_max=widest[0],
        servers_max=widest[1],
        lengths_s=tuple(lengths),
        gaps_s=tuple(np.maximum(gaps, 1e-3).tolist()) or (slot_s,),
        length_min_s=min(lengths),
        length_max_s=max(lengths),
        profile_noise=-1.0,
    )


def _in_seconds(curve: Scaling, per_unit: float) -> Scaling:
    """The curve scaled such that its speed is in steps per second; measured points become the formula nearest them."""
    if curve.points:
        curve = fit_speed([(workers, 0, speed) for workers, speed in curve.points if workers > 0 and speed > 0]).scaling
    terms = {name: getattr(curve, name) / per_unit for name in ("a", "b", "c", "d", "e", "f", "g")}
    return Scaling(**terms)


def train_candidate(
    ended: Sequence[Ended], cluster: Cluster, slot_s: float, current: Path, out: Path, options: TrainOptions
) -> Path:
    """Go on from the current weights, or the shipped ones where those do better, on traces like the recent past; writes
    the best to `out`."""
    from trainmaster.learn.dl2.trainer import Trainer

    arrays = shared_weights(current)
    options = replace(
        options, network="shared", warm_up=False, hidden=arrays["u"].shape[0], context=arrays["v"].shape[0]
    )
    trainer = Trainer(options, [history_spec(finished_specs(ended, cluster.types), cluster, slot_s)])

    # Weights that have gone astray would take long to lead back: the shipped ones are where to begin then.
    for start in (load(SHIPPED).network.weights, arrays):
        if all(start[name].shape == value.shape for name, value in arrays.items()):
            trainer.start_from(start)
            trainer.validate()
    trainer.start_from(trainer.best)
    trainer.run()
    made_by = {"from": "history", "jobs": len(ended), "options": options.to_json()}
    out.write_bytes(to_bytes(trainer.best, "shared", 0, made_by))
    return out


def shadow_s(specs: Sequence[JobSpec], cluster: Cluster, policy: str, round_ms: int | None, seed: int = 0) -> float:
    """Mean completion time of these jobs under a policy, in the engine with the simulator."""
    result = simulate(specs, cluster, registry.create(policy), Settings(round_ms=round_ms, seed=seed))
    times = [end.ended_ms - end.spec.submit_ms for end in result.ended if end.phase == Phase.FINISHED]
    return float(np.mean(times)) / MS_PER_S if times else float("inf")


@dataclass(frozen=True)
class Verdict:
    """Whether a candidate takes over, and the figures behind it."""

    promoted: bool
    candidate_s: float
    current_s: float
    teacher_s: float
    why: str


def judge(
    specs: Sequence[JobSpec],
    cluster: Cluster,
    candidate: Path,
    current: Path | None,
    teacher: str,
    round_ms: int | None,
    margin: float = 0.01,
) -> Verdict:
    """Promote only what beats the present weights and the teacher, both by `margin`, on the same recent jobs."""
    candidate_s = shadow_s(specs, cluster, f"dl2:weights={candidate}", round_ms)
    current_s = shadow_s(specs, cluster, f"dl2:weights={current or ''}", round_ms)
    teacher_s = shadow_s(specs, cluster, teacher, round_ms)
    for other, figure in (("the present weights", current_s), (teacher, teacher_s)):
        if not candidate_s < figure * (1.0 - margin):
            why = f"{candidate_s:,.0f} s is not {margin:.0%} below {figure:,.0f} s of {other}"
            return Verdict(False, candidate_s, current_s, teacher_s, why)
    return Verdict(True, candidate_s, current_s, teacher_s, "it beats the present weights and the teacher")


def slowdowns(ended: Sequence[Ended]) -> list[float]:
    """Completion time over run time of each finished job: comparable between weeks with jobs of other lengths."""
    over = [end for end in ended if end.phase == Phase.FINISHED]
    return [(end.ended_ms - end.spec.submit_ms) / MS_PER_S / max(end.run_s, 1.0) for end in over]


def should_roll_back(before: Sequence[Ended], after: Sequence[Ended], tolerance: float = 0.1) -> str:
    """Why the promoted weights must go, or nothing. Judged on the median slowdown of jobs ended before and after."""
    old, new = slowdowns(before), slowdowns(after)
    if len(old) < FEWEST_JOBS or len(new) < FEWEST_JOBS:
        return ""
    was, now = float(np.median(old)), float(np.median(new))
    if now > was * (1.0 + tolerance):
        return f"the median slowdown rose from {was:.2f} to {now:.2f} since the promotion"
    return ""


Train = Callable[[Sequence[Ended], Path, Path], Path]
"""(ended, current weights, output) -> candidate."""


def train_and_judge(
    train: Train, ended: Sequence[Ended], cluster: Cluster, current: Path, out: Path, teacher: str, round_ms: int | None
) -> tuple[Path, Verdict]:
    """The whole of a turn, for another process: neither training nor the shadow runs may hold up the service."""
    candidate = train(ended, current, out)
    return candidate, judge(finished_specs(ended, cluster.types), cluster, candidate, current, teacher, round_ms)


@dataclass
class OnlineLearner:
    """At most one training at a time. `offer` starts one, `poll` promotes or drops what came of it, `watch` rolls
    back. `current` and `previous` are weights files; the caller gives `current` to the policy."""

    cluster: Cluster
    round_ms: int | None
    folder: Path
    current: Path
    train: Train
    executor: Executor
    teacher: str = "drf"
    previous: Path | None = None
    rounds: int = 0
    notes: tuple[str, ...] = ()
    _running: Future[tuple[Path, Verdict]] | None = None
    _jobs: tuple[Ended, ...] = ()
    _before: tuple[Ended, ...] = ()

    @property
    def busy(self) -> bool:
        return self._running is not None

    def offer(self, ended: Sequence[Ended]) -> bool:
        """Start training on these jobs unless a training runs; False when there are too few."""
        if self._running is not None or sum(end.phase == Phase.FINISHED for end in ended) < FEWEST_JOBS:
            return False
        self.rounds += 1
        self._jobs = tuple(ended)
        out = self.folder / f"candidate-{self.rounds:04d}.npz"
        self._running = self.executor.submit(
            train_and_judge, self.train, self._jobs, self.cluster, self.current, out, self.teacher, self.round_ms
        )
        return True

    def poll(self, in_force: Path | None = None) -> Verdict | None:
        """The verdict on a training that has ended since the last call. `in_force`: weights that somebody may have
        chosen meanwhile; a candidate was not compared with them, and is dropped."""
        if self._running is None or not self._running.done():
            return None
        running, self._running = self._running, None
        error = running.exception()
        if error is not None:
            self.notes = (*self.notes, f"dl2: training failed: {error}")
            return None
        candidate, verdict = running.result()
        if in_force is not None and in_force != self.current:
            self.current, self.previous = in_force, None
            verdict = replace(verdict, promoted=False, why=f"{in_force.name} was put in force during the training")
        if verdict.promoted:
            self.previous, self.current, self._before = self.current, candidate, self._jobs
        self.notes = (*self.notes, f"dl2: {'promoted' if verdict.promoted else 'kept'}: {verdict.why}")
        return verdict

    def promoted_before(self, current: Path, previous: Path, before: Sequence[Ended]) -> None:
        """Take up the watch of an earlier process: `current` replaced `previous` after these jobs."""
        self.current, self.previous, self._before = current, previous, tuple(before)

    def watch(self, ended_since: Sequence[Ended]) -> bool:
        """Roll back to the previous weights when the jobs ended since the promotion fare worse."""
        if self.previous is None:
            return False
        why = should_roll_back(self._before, ended_since)
        if not why:
            return False
        self.current, self.previous = self.previous, None
        self.notes = (*self.notes, f"dl2: rolled back: {why}")
        return True
