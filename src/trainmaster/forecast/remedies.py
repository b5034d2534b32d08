"""Changes that would start a job that waits: each is tried on a copy of the engine, and only those that start it are
advised.

In a trial all that the engine orders happens at once, and time stands still but for the wait until the next round. A
trial costs one or a few decisions of the policy in force; `limit_s` bounds what all of them together may take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine
from trainmaster.engine.fork import fork
from trainmaster.model import event as ev
from trainmaster.model.command import Command, Launch, Resize
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.policy import traits_of
from trainmaster.model.reasons import Reason, Why
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.registry import create

LETS_PASS = "fifo:backfill=true"
MAX_ENDS = 8
"""Jobs that one may be told to wait for."""
MAX_NODES = 4
_MAX_ANSWERS = 50
"""Steps until a trial has settled; a policy that moves jobs about for ever at one moment is cut off there."""
_MAX_WAKES = 8


@dataclass(frozen=True)
class Remedy:
    """What to do, in words and in events: `events` happen, or the jobs of `ends` finish; `starts` is the job that then
    has devices, at once or when the next round begins."""

    text: str
    starts: JobId
    events: tuple[ev.Event, ...] = ()
    policy: str | None = None
    ends: tuple[JobId, ...] = ()


def remedies(engine: Engine, job_id: str, now_ms: int, limit_s: float = math.inf) -> list[Remedy]:
    """What would start a job that waits or is paused, the smallest changes first; empty: nothing of what was tried."""
    spec, phase = queries.spec_of(engine, job_id), queries.phase_of(engine, job_id)
    if spec is None or phase not in (Phase.PENDING, Phase.PAUSED):
        return []
    return _Search(engine, spec, phase == Phase.PAUSED, max(now_ms, engine.now_ms), limit_s).found()


class _Search:
    def __init__(self, engine: Engine, spec: JobSpec, paused: bool, now_ms: int, limit_s: float) -> None:
        self.engine, self.spec, self.now_ms = engine, spec, now_ms
        self.until_s = time.monotonic() + limit_s
        self.resumed: tuple[ev.Event, ...] = (ev.JobResumed(spec.id),) if paused else ()
        self.reason = queries.Explainer(engine).reason(spec.id) or Reason(Why.NONE)

    def found(self) -> list[Remedy]:
        base = Remedy("", self.spec.id, self.resumed)
        trial = self._trial(base)
        if trial.starts(self.spec.id):
            if self.resumed:
                return [replace(base, text="resume it")]
            wait_s = (trial.engine.now_ms - self.now_ms) / MS_PER_S
            return [replace(base, text=f"wait: it starts by itself in {wait_s:.0f} s")] if wait_s else []
        kept = [remedy for remedy in self._candidates() if remedy is not None]
        prefix = "resume it, and " if self.resumed else ""
        return [replace(remedy, text=prefix + remedy.text) for remedy in kept]

    def _candidates(self) -> Iterator[Remedy | None]:
        for look in (
            self._smaller,
            self._others_end,
            self._blocker_paused,
            self._passing,
            self._priority,
            self._other_types,
            self._quota,
            self._nodes,
        ):
            if time.monotonic() < self.until_s:
                yield look()

    # -- one kind of change each ---------------------------------------------------------------------

    def _smaller(self) -> Remedy | None:
        """The largest size that starts, among those that free GPUs or a quota suggest."""
        spec, each = self.spec, self.spec.worker.gpu_milli
        if not each or spec.workers_max == 1:
            return None
        rooms = [math.floor(gpus * GPU_MILLI) // each for gpus in self.reason.free.values()]
        if spec.entity in self.engine.quotas:
            rooms.append((self.engine.quotas[spec.entity] - self._team_milli()) // each)
            rooms.append(self.engine.quotas[spec.entity] // each)
        sizes = {size for size in (*rooms, spec.workers_max // 2, 1) if 0 < size < spec.workers_max}
        tried = (
            self._if_it_starts(
                f"resize it: there is room for {size} worker{'' if size == 1 else 's'} now",
                ev.JobRangeChanged(spec.id, size, size),
            )
            for size in sorted(sizes, reverse=True)
        )
        return next((remedy for remedy in tried if remedy is not None), None)

    def _others_end(self) -> Remedy | None:
        """The jobs that must end first: those that end soonest, as many as it takes, without those that do not help."""
        trial = self._trial(Remedy("", self.spec.id, self.resumed))
        ends: list[JobId] = []
        while not trial.starts(self.spec.id):
            soonest = trial.soonest_to_end(self.spec)
            if soonest is None or len(ends) == MAX_ENDS or time.monotonic() > self.until_s:
                return None
            ends.append(soonest)
            trial.end(soonest)
        for job_id in tuple(ends):
            fewer = tuple(other for other in ends if other != job_id)
            if fewer and time.monotonic() < self.until_s and self._starts(self._ended(fewer)):
                ends = list(fewer)
        remedy = self._ended(tuple(ends))
        if not self._starts(remedy):
            return None  # those ahead of it are served first, if all end at once
        paused = tuple(ev.JobPaused(job_id) for job_id in ends)
        if self._starts(Remedy("", self.spec.id, (*self.resumed, *paused))):
            return replace(remedy, text=f"{remedy.text}, or pause {'it' if len(ends) == 1 else 'them'}")
        return remedy

    def _ended(self, ends: tuple[JobId, ...]) -> Remedy:
        return Remedy(f"wait for {', '.join(ends)} to end", self.spec.id, self.resumed, ends=ends)

    def _blocker_paused(self) -> Remedy | None:
        behind = self.reason.behind
        if behind is None:
            return None
        return self._if_it_starts(f"pause {behind}, which waits ahead of it", ev.JobPaused(behind))

    def _passing(self) -> Remedy | None:
        if not traits_of(self.engine.policy).strict:
            return None
        text = f"use a policy that lets small jobs pass: trainmaster policy {LETS_PASS}"
        return self._if_it_starts(text, ev.PolicyChanged(), policy=LETS_PASS)

    def _priority(self) -> Remedy | None:
        above = max(other.priority for other in queries.active_specs(self.engine)) + 1
        text = f"raise its priority: trainmaster edit {self.spec.id} --priority {above}"
        return self._if_it_starts(text, ev.JobTermsChanged(self.spec.id, priority=above))

    def _other_types(self) -> Remedy | None:
        spec = self.spec
        if not spec.gpu_types:
            return None
        again = replace(spec, id=JobId(f"{spec.id}-again"), gpu_types=(), submit_ms=self.now_ms)
        remedy = Remedy(
            f"submit it again without --gpu-type {','.join(spec.gpu_types)}: other GPUs are free",
            again.id,
            (ev.JobCancelled(spec.id), ev.JobSubmitted(again)),
        )
        return remedy if self._starts(remedy) else None

    def _quota(self) -> Remedy | None:
        team, quotas = self.spec.entity, self.engine.quotas
        if team not in quotas:
            return None
        each = self.spec.worker.gpu_milli
        enough = (self._team_milli() + self.spec.workers_min * each, self._team_milli(most=True))
        for quota_milli in enough:
            if quota_milli > quotas[team]:
                others = self.engine.entity_weights.get(team, 1.0), quota_milli, self.engine.entity_policies.get(team)
                event = ev.EntityChanged(team, *others)
                remedy = self._if_it_starts(f"raise the quota of {team} to {quota_milli / GPU_MILLI:g} GPUs", event)
                if remedy is not None:
                    return remedy
        return None

    def _nodes(self) -> Remedy | None:
        """One node that is down, or all of them."""
        states, nodes = queries.node_states(self.engine), self.engine.cluster.nodes
        down = [k for k, state in enumerate(states) if not state.up][:MAX_NODES]
        for which in (*([k] for k in down), down) if len(down) > 1 else [down] if down else []:
            names = ", ".join(nodes[k].id for k in which)
            remedy = self._if_it_starts(f"bring back {names}", *(ev.NodeJoined(k) for k in which))
            if remedy is not None:
                return remedy
        return None

    # -- trials --------------------------------------------------------------------------------------

    def _team_milli(self, most: bool = False) -> int:
        """GPU thousandths that the team's jobs have; `most`: that they and the job may come to have."""
        if not most:
            return queries.team_use(self.engine)[self.spec.entity].gpu_milli
        team = [other for other in queries.active_specs(self.engine) if other.entity == self.spec.entity]
        return sum(other.workers_max * other.worker.gpu_milli for other in team)

    def _if_it_starts(self, text: str, *events: ev.Event, policy: str | None = None) -> Remedy | None:
        remedy = Remedy(text, self.spec.id, (*self.resumed, *events), policy)
        return remedy if self._starts(remedy) else None

    def _starts(self, remedy: Remedy) -> bool:
        return self._trial(remedy).starts(remedy.starts)

    def _trial(self, remedy: Remedy) -> _Trial:
        return _Trial(self.engine, self.now_ms, remedy)


class _Trial:
    """A copy of an engine in which a remedy was taken."""

    def __init__(self, engine: Engine, now_ms: int, remedy: Remedy) -> None:
        self.engine = fork(engine, queries.n_active(engine))
        if remedy.policy is not None:
            self.engine.policy = create(remedy.policy)
        self.until_ms = now_ms + self._next_round_ms()
        ends = [event for job_id in remedy.ends if (event := self._end_of(job_id)) is not None]
        self._take(now_ms, self.engine.pending_commands(), (*ends, *remedy.events))

    def starts(self, job_id: JobId) -> bool:
        """Whether a job has devices, now or when the next round begins."""
        for _ in range(_MAX_WAKES):
            wake_ms = self.engine.next_wake_ms
            if self._has_devices(job_id) or wake_ms > self.until_ms or not queries.is_active(self.engine, job_id):
                break
            self._take(max(wake_ms, self.engine.now_ms), (), (ev.Woken(),))
        return self._has_devices(job_id)

    def end(self, job_id: JobId) -> None:
        event = self._end_of(job_id)
        assert event is not None
        self._take(self.engine.now_ms, (), (event,))
        self.until_ms = self.engine.now_ms + self._next_round_ms()

    def _next_round_ms(self) -> int:
        """How far a trial looks. A policy that sizes jobs by their progress may decide otherwise by then."""
        traits = traits_of(self.engine.policy)
        return self.engine.settings.round_ms or 0 if traits.fixed_sizes or traits.own_rounds else 0

    def soonest_to_end(self, spec: JobSpec) -> JobId | None:
        """Of the jobs that run; one that the job waits for comes first."""
        ids = [job_id for job_id in self._active() if queries.is_live(self.engine, job_id)]
        states = queries.job_states(self.engine, ids, self.engine.now_ms)
        order = [(s.spec.id not in spec.after, _or_never(s.remaining_s), s.spec.submit_ms, s.spec.id) for s in states]
        return min(order)[-1] if order else None

    def _active(self) -> list[JobId]:
        return [spec.id for spec in queries.active_specs(self.engine)]

    def _has_devices(self, job_id: JobId) -> bool:
        if not queries.is_active(self.engine, job_id):
            return False
        state = queries.job_states(self.engine, [job_id], self.engine.now_ms)[0]
        return state.allocation is not None

    def _end_of(self, job_id: JobId) -> ev.Event | None:
        """Its end by itself, as finished; one that has not started is taken away."""
        generation = queries.generation_of(self.engine, job_id)
        if generation is None:
            return None
        if not queries.is_live(self.engine, job_id):
            return ev.JobCancelled(job_id)
        return ev.Exited(job_id, generation, 0, math.nan)

    def _take(self, now_ms: int, pending: Sequence[Command], events: Sequence[ev.Event]) -> None:
        commands = self.engine.step(now_ms, *(_answer(command, now_ms) for command in pending), *events)
        for _ in range(_MAX_ANSWERS):
            if not commands:
                break
            commands = self.engine.step(now_ms, *(_answer(command, now_ms) for command in commands))


def _answer(command: Command, now_ms: int) -> ev.Event:
    job_id, generation = command.job_id, command.generation
    if isinstance(command, Launch):
        return ev.Started(job_id, generation, math.nan, now_ms)
    if isinstance(command, Resize):
        return ev.Resized(job_id, generation, command.seq, math.nan, now_ms)
    return ev.Stopped(job_id, generation, math.nan)


def _or_never(seconds: float) -> float:
    return math.inf if math.isnan(seconds) else seconds
