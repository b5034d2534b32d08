"""What really runs: trainers of jobs on nodes, and the truth about every job's work.

A trainer is polite: at SIGTERM it saves and exits with 0, whether its job is done or not. So an exit code of 0 proves
nothing by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from trainmaster.dst.engine.invariants import Violation
from trainmaster.dst.kubernetes.api_server import Object

SAVE_EVERY_S = 20.0
KILLED = 137


@dataclass
class TrueJob:
    """`done_s` counts seconds in which a whole gang ran."""

    name: str
    work_s: float
    workers_min: int
    launcher: bool
    done_s: float = 0.0
    saved_s: float = 0.0
    trainers: dict[str, Trainer] = field(default_factory=dict)
    """Those that live, by the uid of their pod."""

    @property
    def complete(self) -> bool:
        return self.saved_s >= self.work_s


@dataclass(eq=False)
class Trainer:
    """One process. `ends_s`: when it ends of itself, after SIGTERM; it may still be killed before."""

    job: TrueJob
    generation: int
    member: str
    uid: str
    node: str
    gpus: int
    ends_s: float | None = None
    code: int | None = None
    """How it ended; None: it lives."""
    on_end: Callable[[], None] = lambda: None


class Trainers:
    """All processes of the cluster. `tick` lets them work."""

    def __init__(self, now_s: Callable[[], float], rng: random.Random) -> None:
        self._now_s = now_s
        self._rng = rng
        self.jobs: dict[str, TrueJob] = {}
        self.live: dict[str, Trainer] = {}
        self._last_s = now_s()

    def start(self, pod: Object, node: str, gpus: int) -> Trainer:
        meta = pod["metadata"]
        job = self.jobs[meta["labels"]["trainmaster.dev/job"]]
        generation = int(meta["labels"]["trainmaster.dev/generation"])
        member = meta["annotations"]["trainmaster.dev/member"]
        for other in job.trainers.values():
            if other.generation != generation:
                raise Violation(
                    f"{job.name}: generation {generation} starts on {node} while {other.member} of generation "
                    f"{other.generation} lives on {other.node}"
                )
            if other.member == member:
                raise Violation(f"{job.name}: {member} starts on {node} and lives on {other.node}")
        trainer = Trainer(job, generation, member, meta["uid"], node, gpus)
        self.live[trainer.uid] = job.trainers[trainer.uid] = trainer
        return trainer

    def terminate(self, trainer: Trainer, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace."""
        if trainer.code is None and trainer.ends_s is None:
            stubborn = self._rng.random() < 0.1
            trainer.ends_s = self._now_s() + (grace_s if stubborn else min(grace_s, 2.0 * self._rng.random()))
            if not stubborn:
                trainer.job.saved_s = trainer.job.done_s

    def kill(self, trainer: Trainer) -> None:
        if trainer.code is None:
            trainer.job.done_s = trainer.job.saved_s
            self._end(trainer, KILLED)

    def _end(self, trainer: Trainer, code: int) -> None:
        trainer.code = code
        del self.live[trainer.uid], trainer.job.trainers[trainer.uid]
        trainer.on_end()

    def tick(self) -> None:
        now_s = self._now_s()
        passed_s, self._last_s = now_s - self._last_s, now_s
        for job in self.jobs.values():
            working = [each for each in job.trainers.values() if each.ends_s is None]
            if len(working) >= job.workers_min and not job.complete:
                job.done_s += passed_s
                if job.done_s >= job.work_s or job.done_s - job.saved_s >= SAVE_EVERY_S:
                    job.saved_s = job.done_s
            for trainer in list(job.trainers.values()):
                if trainer.ends_s is None and job.complete:
                    trainer.ends_s = now_s + self._rng.random()
                if trainer.ends_s is not None and now_s >= trainer.ends_s:
                    self._end(trainer, 0)
