"""A decision by a compiled pass, verified and carried out: the run loop and the live engine decide by it."""

from __future__ import annotations

from trainmaster.core.codes import COUNT, NOT_MADE, SOUND
from trainmaster.core.engine.decision_pass import Pass
from trainmaster.core.engine.engine_core import EngineCore, carry_out, launch_reserved
from trainmaster.core.engine.placement import Placer
from trainmaster.core.engine.verify import apply_changes
from trainmaster.core.state.job_arrays import close_gaps
from trainmaster.core.state.plan_arrays import PlanArrays


def decide_by(decision: Pass, e: EngineCore, placer: Placer, plan: PlanArrays) -> int:
    """Returns the rule that the plan breaks (then nothing of it is carried out), SOUND or NOT_MADE."""
    jobs = e.columns
    if decision.for_waiting and e.n_waiting == 0:
        plan.clear()
        e.decisions += 1
        jobs.version += 1
        return SOUND
    if not decision.for_waiting or jobs.order.n > 2 * jobs.n_jobs + 64:
        close_gaps(jobs)
    if not decision.decide(jobs, jobs.order, e.now_ms, e.nodes, e.planned, placer, plan):
        return NOT_MADE
    e.decisions += 1
    rule = apply_changes(jobs, e.nodes, placer.strategy == COUNT, plan, e.planned)
    if rule != SOUND:
        return rule
    if plan.wake_at_ms > e.now_ms:
        e.wake_at_ms = plan.wake_at_ms
    for k in range(plan.jobs.n):
        carry_out(e, plan.jobs.values[k], plan.flat, plan.first.values[k])
    if plan.jobs.n and e.reserved.n:
        launch_reserved(e)
    jobs.version += 1
    return SOUND
