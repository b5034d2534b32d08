"""Whether jobs that really ran fared as simulated: who was admitted, the order of events, completion times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from trainmaster.engine.records import Ended, Settings
from trainmaster.forecast.situation import Costs
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import DeadlineKind, JobSpec, Phase
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions

LATER_MS = 10_000
"""Submissions are simulated so much later, or by a round."""
APART_MS = 2_000
"""Events that the simulation has this far apart must come in the same order."""


@dataclass(frozen=True)
class Comparison:
    real_jct_s: float
    simulated_jct_s: float
    costs: Costs
    out_of_order: tuple[str, ...]
    """Events that came the other way round."""
    phases: tuple[str, ...]
    """Jobs that ended otherwise."""
    story: tuple[str, ...] = ()
    """A line for each job: when it started and ended, really and in the simulation, in seconds after its submission."""

    @property
    def ratio(self) -> float:
        return self.real_jct_s / self.simulated_jct_s


def launch_ms(events: Iterable[Mapping[str, Any]]) -> int:
    """Mean time from a launch to the gang's start, by the service's event log."""
    launched: dict[str, float] = {}
    taken = []
    for event in events:
        if event["kind"] == "launch":
            launched[event["job"]] = event["at"]
        elif event["kind"] == "started" and event["job"] in launched:
            taken.append(event["at"] - launched.pop(event["job"]))
    return round(mean(taken) * 1000)


def compare(
    policy: str, ended: Mapping[str, Ended], cluster: Cluster, settings: Settings, costs: Costs,
    apart_ms: int = APART_MS,
) -> Comparison:  # fmt: skip
    """`ended` in order of submission. Starting and ending take as long in the simulation as `costs` says."""
    # Nothing real is submitted at the very first moment, which Gavel's rounds take for "never" (as the original does).
    later_ms = settings.round_ms or LATER_MS
    specs = [_later(replace(end.spec, payload={}, node_set=""), later_ms) for end in ended.values()]
    truth = TruthOptions(
        launch_ms=costs.launch_ms, restart_cost_ms=max(0, costs.restart_ms - costs.launch_ms), stop_ms=costs.stop_ms,
        resize_cost_ms=costs.resize_ms, exit_ms=costs.exit_ms,
    )  # fmt: skip
    result = simulate(specs, cluster, create(policy), settings, truth)
    simulated: dict[str, Ended] = {end.spec.id: end for end in result.ended}
    phases = [
        f"{job_id}: {end.phase.name}, simulated {simulated[job_id].phase.name}"
        for job_id, end in ended.items()
        if end.phase != simulated[job_id].phase
    ]
    ids = [job_id for job_id, end in ended.items() if end.phase == simulated[job_id].phase == Phase.FINISHED]
    wrong = []
    for what in ("first_start_ms", "ended_ms"):
        order = sorted(ids, key=lambda job_id: getattr(simulated[job_id], what))
        for k, first in enumerate(order):
            for later in order[k + 1 :]:
                if getattr(simulated[later], what) - getattr(simulated[first], what) > apart_ms and getattr(
                    ended[first], what
                ) > getattr(ended[later], what):
                    wrong.append(f"{what}: {first} after {later}")
    real, planned = (
        mean(found[job_id].ended_ms - found[job_id].spec.submit_ms for job_id in ids) / 1000
        for found in (ended, simulated)
    )
    story = [f"{job_id}: {_times(ended[job_id])}; simulated {_times(simulated[job_id])}" for job_id in ids]
    return Comparison(real, planned, costs, tuple(wrong), tuple(phases), tuple(story))


def _later(spec: JobSpec, by_ms: int) -> JobSpec:
    due_ms = spec.deadline_ms if spec.deadline_kind == DeadlineKind.NONE else spec.deadline_ms + by_ms
    return replace(spec, submit_ms=spec.submit_ms + by_ms, deadline_ms=due_ms)


def _times(end: Ended) -> str:
    start_s, end_s = ((at_ms - end.spec.submit_ms) / 1000 for at_ms in (end.first_start_ms, end.ended_ms))
    return f"{start_s:.1f} to {end_s:.1f} s, {end.preemptions} times preempted"
