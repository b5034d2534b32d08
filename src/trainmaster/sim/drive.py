"""An engine and a simulated world that go on together: the compiled loop (`core.sim.run_loop`), and what it needs
Python for. Simulations and forecasts run by it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trainmaster.core.codes import N_OVER_FLOATS, N_OVER_INTS
from trainmaster.core.engine.decision_pass import Pass
from trainmaster.core.engine.engine_core import list_pending, write_pending
from trainmaster.core.sim.arrivals import Arrivals
from trainmaster.core.sim.run_codes import AT_COMMANDS, DECIDE, GATE, LEASES, REPORT, SENT, SUBMIT
from trainmaster.core.sim.run_loop import RunLoop
from trainmaster.engine.deciding import admission_gate
from trainmaster.engine.engine import HANDLERS, Engine
from trainmaster.engine.handlers import foreign_usage, halts, nodes, user_events
from trainmaster.engine.message_rows import report_of
from trainmaster.model import event as ev
from trainmaster.model.job import JobId
from trainmaster.model.policy import traits_of
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.ended_jobs import EndedJobs
from trainmaster.sim.job_list import JobList


class Drive:
    """`jobs`: by number, those of `arrivals` first; `decision`: the policy's pass (None: `decide` is asked
    each time)."""

    def __init__(
        self, engine: Engine, backend: SimulatedBackend, jobs: JobList, arrivals: Arrivals, decision: Pass | None
    ) -> None:
        self.engine, self.backend, self.jobs, self.arrivals = engine, backend, jobs, arrivals
        engine.own_rounds = traits_of(engine.policy).own_rounds
        self.loop = RunLoop(engine, backend.core, arrivals, decision, engine.placer(), False)
        self.loop.n_jobs = len(jobs)
        if not engine.named:
            engine.columns.spec_source = jobs
        if decision is not None:
            decision.bind(engine)

    def resume(self, now_ms: int, events: Iterable[ev.Event]) -> None:
        """Go on from an engine that has run before: commands without an answer are sent again, then these events
        happen."""
        engine, loop, core = self.engine, self.loop, self.backend.core
        loop.now_ms = core.now_ms = now_ms
        list_pending(engine)
        for k in range(engine.pending.n):
            write_pending(engine, engine.pending.values[k])
        for event in events:
            core.reports.add_other(event)
        loop.stage = AT_COMMANDS

    def serve(self, code: int) -> None:
        """Do what the loop returned for; the codes that end or observe a run are its owner's affair."""
        engine, loop = self.engine, self.loop
        if code == DECIDE:
            self.decide()
        elif code == SUBMIT:
            number = self.arrivals.next
            self.arrivals.next += 1
            spec = self.jobs[number]
            is_new = spec.id not in engine.known
            user_events.submitted(engine, ev.JobSubmitted(spec))
            if is_new:
                self.backend.core.arrived(engine.columns.job_index_of[spec.id], number)
        elif code == REPORT:
            self._hear(loop.report_at - 1)
        elif code == LEASES:
            if engine.doubts:
                nodes.expire_leases(engine)
            if engine.short:
                foreign_usage.make_good(engine)
        elif code == GATE:
            admission_gate.review(engine)
        elif code == SENT and engine.halted:
            halts.give_up(engine)

    def _hear(self, row: int) -> None:
        """Take a report that has more to say than numbers; its job has a name while it is read."""
        engine, event, slot = self.engine, self.report(row), int(self.backend.core.reports.job[row])
        if engine.named or slot < 0:
            HANDLERS[type(event)](engine, event)
            return
        job_index_of, job_id = engine.columns.job_index_of, engine.columns.spec(slot).id
        job_index_of[job_id] = slot
        HANDLERS[type(event)](engine, event)
        del job_index_of[job_id]

    def decide(self) -> None:
        """Python decides; a pass that knows more than the engine says so before, and looks again afterwards."""
        engine, decision = self.engine, self.loop.decision
        if decision is not None:
            decision.store(engine)
        if engine.halted:
            halts.give_up(engine)
        engine.decide()
        if decision is not None:
            decision.bind(engine)

    def report(self, row: int) -> ev.Event:
        return report_of(self.backend.core.reports, row, _Ids(self.engine))  # type: ignore[arg-type]

    def over(self) -> EndedJobs:
        """What is over, in the order of its end; with names: since this was last asked."""
        engine = self.engine
        if engine.named:
            return EndedJobs.of(self.jobs, engine.drain_ended())
        ints = np.asarray(engine.over_ints.values)[: engine.over_ints.n].reshape(-1, N_OVER_INTS)
        floats = np.asarray(engine.over_floats)[: len(ints) * N_OVER_FLOATS].reshape(-1, N_OVER_FLOATS)
        return EndedJobs(self.jobs, ints, floats, engine.rejected)


class _Ids:
    """Ids by the engine's job index."""

    def __init__(self, engine: Engine) -> None:
        self._columns = engine.columns

    def __getitem__(self, slot: int) -> JobId:
        return self._columns.spec(slot).id
