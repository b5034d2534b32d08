"""How the jobs of a run ended, as columns; `Ended` objects are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.core.codes import N_OVER_FLOATS, N_OVER_INTS
from trainmaster.engine.records import Ended
from trainmaster.model.job import JobSpec, Phase, PhaseCode
from trainmaster.model.plan import Rejection
from trainmaster.model.reasons import Why
from trainmaster.sim.job_list import JobList

_PHASES = list(Phase)


@dataclass(frozen=True, eq=False)
class EndedJobs:
    """In the order in which they ended. `number` is a job's place in `jobs`."""

    jobs: JobList
    ints: Ints
    """A row each: number, phase, end, first start (ms), preemptions, attempts."""
    floats: Floats
    """A row each: service (GPU-s), run time (s), work, cost."""
    rejections: dict[int, Rejection] = field(default_factory=dict)
    """By number."""

    @classmethod
    def of(cls, jobs: JobList, ended: Sequence[Ended]) -> EndedJobs:
        """From what an engine says of jobs by name."""
        place = {job_id: number for number, job_id in enumerate(jobs.id_list)}
        ints = [(place[e.spec.id], e.phase, e.ended_ms, e.first_start_ms, e.preemptions, e.attempts) for e in ended]
        floats = [(e.service_gpu_s, e.run_s, e.work_done, e.cost) for e in ended]
        return cls(
            jobs,
            np.array(ints, np.int64).reshape(-1, N_OVER_INTS),
            np.array(floats, np.float64).reshape(-1, N_OVER_FLOATS),
            {place[e.spec.id]: e.rejection for e in ended if e.rejection is not None},
        )

    @property
    def number(self) -> Ints:
        return self.ints[:, 0]

    def objects(self) -> list[Ended]:
        number, phase, end, start, preemptions, attempts = self.ints.T.tolist()
        service, run_s, work, cost = self.floats.T.tolist()
        specs, phases = map(self.jobs.__getitem__, number), map(_PHASES.__getitem__, phase)
        rejections = map(self.rejections.get, number)
        return list(
            map(Ended, specs, phases, end, start, service, run_s, work, preemptions, attempts, cost, rejections)
        )

    def with_unfit(self, unfit: Sequence[JobSpec]) -> EndedJobs:
        """And those that were rejected on arrival since no cluster state has room for them."""
        more, n = JobList.of(unfit), len(self.jobs)
        ints = np.zeros((len(more), N_OVER_INTS), np.int64)
        ints[:, 0], ints[:, 1] = np.arange(n, n + len(more)), PhaseCode.REJECTED
        ints[:, 2], ints[:, 3] = more.submit_ms, -1
        return EndedJobs(
            self.jobs.joined(more),
            np.concatenate([self.ints, ints]),
            np.concatenate([self.floats, np.zeros((len(more), N_OVER_FLOATS))]),
            self.rejections | dict.fromkeys(range(n, n + len(more)), Rejection(Why.NEVER_FITS)),
        )
