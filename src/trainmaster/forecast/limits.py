"""Limits of jobs in a future: run time and budget end a job there as the service would end it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from trainmaster.core.sim.run_codes import HEARD
from trainmaster.core.state.message_kinds import RESIZED, STARTED
from trainmaster.engine import queries
from trainmaster.model import event as ev
from trainmaster.model.job import JobSpec, Phase
from trainmaster.model.units import MS_PER_S
from trainmaster.sim.drive import Drive


def is_limited(spec: JobSpec) -> bool:
    return spec.time_s is not None or spec.budget is not None


class FutureLimits:
    """`halted`: jobs that reached a limit, and which."""

    def __init__(self, drive: Drive, specs: Iterable[JobSpec]) -> None:
        self._drive = drive
        self._specs = {spec.id: spec for spec in specs if is_limited(spec)}
        self.halted: dict[str, str] = {}
        drive.loop.watched = bool(self._specs)
        for spec in self._specs.values():
            self._look(spec)

    def serve(self, code: int) -> None:
        """A gang that starts or changes its size uses its limits up from then on."""
        if code != HEARD:
            return
        reports = self._drive.backend.core.reports
        for row in range(reports.n):
            if reports.kind[row] in (STARTED, RESIZED):
                spec = self._specs.get(self._drive.report(row).job_id)  # type: ignore[union-attr]
                if spec is not None:
                    self._look(spec, begins=True)

    def _look(self, spec: JobSpec, begins: bool = False) -> None:
        engine, backend = self._drive.engine, self._drive.backend
        phase = queries.phase_of(engine, spec.id)
        if spec.id in self.halted or phase is None or not (begins or phase in (Phase.RUNNING, Phase.RESIZING)):
            return
        left_s = math.inf
        for limit in queries.limits_of(engine, spec, backend.now_ms):
            if limit.used >= limit.most:
                self.halted[spec.id] = limit.text
                backend.core.reports.add_other(ev.JobHalted(spec.id, limit.text))
                return
            if limit.per_s > 0:
                left_s = min(left_s, (limit.most - limit.used) / limit.per_s)
        if left_s < math.inf:
            backend.later(backend.now_ms + math.ceil(left_s * MS_PER_S), partial(self._look, spec))
