"""What another policy, other nodes or other jobs would do to the present queue: two rolled futures, compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.engine.ports import Estimator, StoredState
from trainmaster.engine.remap_nodes import remap_nodes
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.forecast.rollout import Future, roll
from trainmaster.forecast.situation import Situation
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster, Node, cluster_of
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.model.utility import parse_utility
from trainmaster.policies.registry import create

TOP_PRIORITY = 2**32
"""Above every PriorityClass."""
TOP_WEIGHT = 1e3


@dataclass(frozen=True)
class Change:
    """All that shall be different. `first`: jobs moved up: as if they had come before all others, with the highest
    priority and a large weight, so that every policy has its own way of preferring them."""

    policy: str | None = None
    add_nodes: tuple[Node, ...] = ()
    remove_nodes: tuple[str, ...] = ()
    add_jobs: tuple[JobSpec, ...] = ()
    remove_jobs: tuple[str, ...] = ()
    resize: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    first: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fate:
    """What becomes of one job: seconds from now (None: does not happen)."""

    state: str
    start_s: float | None
    finish_s: float | None
    jct_s: float | None
    deadline_met: bool | None
    utility: float | None
    cost: float | None
    limit: str = ""
    """What stops it at `finish_s`: `--time 60 s`."""


@dataclass(frozen=True)
class Totals:
    finished: int
    unfinished: int
    mean_jct_s: float | None
    mean_finish_s: float | None
    deadlines_met: int
    deadlines: int
    utility: float | None
    cost: float | None
    unfairness: float | None
    """Largest ratio of a job's time in the system to what it would take alone on its share of 1/n."""
    preemptions: int


@dataclass(frozen=True)
class Comparison:
    before: dict[str, Fate]
    after: dict[str, Fate]
    total_before: Totals
    total_after: Totals

    def gains_s(self) -> list[tuple[str, float]]:
        """(job, seconds earlier), those in both futures; losers first."""
        both = [
            (job_id, fate.finish_s - self.after[job_id].finish_s)  # type: ignore[operator]
            for job_id, fate in self.before.items()
            if fate.finish_s is not None and job_id in self.after and self.after[job_id].finish_s is not None
        ]
        return sorted(both, key=lambda item: (item[1], item[0]))


def compare(situation: Situation, change: Change, estimator: Estimator | None = None) -> Comparison:
    """Both futures in the middle of every belief, so that all that differs is the change."""
    believed = estimator or DeclaredSpeeds()
    changed, events = apply(situation, change, believed)
    before = roll(situation, 0, estimator=believed)
    after = roll(changed, 0, events, estimator=believed)
    added = frozenset(spec.id for spec in change.add_jobs)
    return Comparison(
        fates(situation, before), fates(changed, after), totals(situation, before), totals(changed, after, added)
    )


def apply(situation: Situation, change: Change, estimator: Estimator) -> tuple[Situation, tuple[ev.Event, ...]]:
    """The situation with the change made, and what remains to be told to its engine. Bad wishes are refused
    before anything is rolled."""
    for job_id in (*change.remove_jobs, *change.first, *change.resize):
        if job_id not in situation.stored_state.jobs:
            raise InputError(f"active job '{job_id}' not found", expected="the id of a job that waits or runs")
    for job_id, (low, high) in change.resize.items():
        if not 1 <= low <= high:
            raise InputError(f"size {low}..{high} of '{job_id}'", expected="1 <= MIN <= MAX")
    changed = situation
    if change.first:
        changed = replace(changed, stored_state=_moved_up(changed.stored_state, change.first))
    if change.add_nodes:
        changed = _with_more_nodes(changed, change.add_nodes, estimator)
    events: list[ev.Event] = [_lost(changed, name) for name in change.remove_nodes]
    if change.policy is not None:
        create(change.policy)  # refused now, not in the middle of the future
        changed = replace(changed, policy=change.policy)
        events.append(ev.PolicyChanged())
    events += [ev.JobCancelled(JobId(job_id)) for job_id in change.remove_jobs]
    events += [ev.JobRangeChanged(JobId(job_id), low, high) for job_id, (low, high) in sorted(change.resize.items())]
    events += [ev.JobSubmitted(spec) for spec in change.add_jobs]
    return changed, tuple(events)


def _moved_up(stored_state: StoredState, first: Sequence[str]) -> StoredState:
    jobs: dict[str, Any] = dict(stored_state.jobs)
    earliest = min(record["ints"]["arrival"] for record in jobs.values())
    for place, job_id in enumerate(first):
        record = jobs[job_id]
        spec = {**record["spec"], "priority": TOP_PRIORITY, "weight": TOP_WEIGHT * record["spec"].get("weight", 1.0)}
        ints = {**record["ints"], "arrival": earliest - len(first) + place}
        jobs[job_id] = {**record, "spec": spec, "ints": ints}
    return StoredState(jobs, stored_state.ended, stored_state.meta)


def _with_more_nodes(situation: Situation, nodes: Sequence[Node], estimator: Estimator) -> Situation:
    old = situation.cluster
    new = cluster_of([*old.nodes, *nodes], old.price_per_hour)
    stored_state = remap_nodes(situation.stored_state, old, new, estimator)
    if stored_state.meta is not None:
        sets = {
            name: _with_alike(members, new, len(old.nodes)) for name, members in stored_state.meta["node_sets"].items()
        }
        stored_state = replace(stored_state, meta={**stored_state.meta, "node_sets": sets})
    return replace(situation, cluster=new, stored_state=stored_state)


def _with_alike(members: Sequence[int], cluster: Cluster, n_old: int) -> list[int]:
    """A set of nodes with those of the new ones that are taken to be like its members: of a type that it has, or of
    any type if it has all nodes."""
    types = {cluster.nodes[node].accelerator for node in members}
    whole = len(members) == n_old
    added = range(n_old, len(cluster.nodes))
    return [*members, *(node for node in added if whole or cluster.nodes[node].accelerator in types)]


def _lost(situation: Situation, name: str) -> ev.NodeLost:
    names = [node.id for node in situation.cluster.nodes]
    if name not in names:
        raise InputError(f"node '{name}' not found", expected="one of " + ", ".join(sorted(names)))
    return ev.NodeLost(names.index(name), situation.now_ms, confirmed=True)


def fates(situation: Situation, future: Future) -> dict[str, Fate]:
    result: dict[str, Fate] = {}
    for end in future.ended:
        spec = end.spec
        done = end.phase == Phase.FINISHED
        jct_s = (end.ended_ms - spec.submit_ms) / MS_PER_S
        start_ms = end.first_start_ms if end.first_start_ms >= 0 else None
        result[spec.id] = Fate(
            state=end.phase.name.lower(),
            start_s=None if start_ms is None else max(0.0, (start_ms - situation.now_ms) / MS_PER_S),
            finish_s=(end.ended_ms - situation.now_ms) / MS_PER_S if done or spec.id in future.halted else None,
            jct_s=jct_s if done else None,
            deadline_met=None if spec.deadline_ms >= NEVER_MS else done and end.ended_ms <= spec.deadline_ms,
            utility=None if spec.utility is None else float(parse_utility(spec.utility).value(jct_s)) if done else 0.0,
            cost=None if math.isnan(end.cost) else end.cost,
            limit=future.halted.get(spec.id, ""),
        )
    for job_id in future.left:
        result[job_id] = Fate("left", None, None, None, None, None, None)
    return result


def totals(situation: Situation, future: Future, added: frozenset[JobId] = frozenset()) -> Totals:
    """Means leave out the jobs that were `added`, so that both futures average the same jobs."""
    by_id = fates(situation, future)
    all_fates = list(by_id.values())
    present = [fate for job_id, fate in by_id.items() if job_id not in added]
    jct = [fate.jct_s for fate in present if fate.jct_s is not None]
    finish = [fate.finish_s for fate in present if fate.finish_s is not None and not fate.limit]
    finished = sum(fate.jct_s is not None for fate in all_fates)
    met = [fate.deadline_met for fate in all_fates if fate.deadline_met is not None]
    worth = [fate.utility for fate in all_fates if fate.utility is not None]
    costs = [fate.cost for fate in all_fates if fate.cost is not None]
    return Totals(
        finished=finished,
        unfinished=len(all_fates) - finished,
        mean_jct_s=sum(jct) / len(jct) if jct else None,
        mean_finish_s=sum(finish) / len(finish) if finish else None,
        deadlines_met=sum(met),
        deadlines=len(met),
        utility=sum(worth) if worth else None,
        cost=sum(costs) if costs else None,
        unfairness=_unfairness(situation, future),
        preemptions=sum(end.preemptions for end in future.ended),
    )


def _unfairness(situation: Situation, future: Future) -> float | None:
    """Finish-time fairness (Themis): the time from now on over the time alone on 1/n of the cluster."""
    ended = [end for end in future.ended if end.phase == Phase.FINISHED and end.run_s > 0]
    if not ended:
        return None
    total, n = situation.cluster.total_gpus, len(future.ended)
    worst = 0.0
    for end in ended:
        share = min(1.0, total / (n * max(end.spec.gpus, 1e-9)))
        worst = max(worst, (end.ended_ms - end.spec.submit_ms) / MS_PER_S / (end.run_s / share))
    return worst
