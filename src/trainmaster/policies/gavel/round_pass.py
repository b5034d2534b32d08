"""A round as a pass of the run loop, as long as every job has its devices to itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainmaster.core.engine.decision_pass import Pass
from trainmaster.core.engine.placement import Placer
from trainmaster.core.int_list import IntList
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.free_resources import FreeResources, give_gang, take_gang
from trainmaster.core.state.job_arrays import JobArrays
from trainmaster.core.state.plan_arrays import PlanArrays
from trainmaster.policies.gavel.codes import DEFAULT_ROUND_MS, NEXT_ROUND, SHARE_DUE, type_order
from trainmaster.policies.gavel.round_state import ISOLATED, REMEMBERED, values_of
from trainmaster.policies.gavel.rounds import Rounds
from trainmaster.policies.gavel.shares import Isolated, Shares


class RoundPass(Pass):
    """Works on what the engine remembers of the policy (`bind`), by job index; gives it back by `store`. New
    shares are those of `policy` (None: its `decide` has to compute them)."""

    def __init__(self, rounds: Rounds, policy: Any) -> None:
        super().__init__()
        self._policy = policy
        self.rounds = rounds
        self._starters = IntList(64)
        self._capacity = -1
        self._seen: dict[str, Any] | None = None
        """The engine's values as they were last read or written here."""

    def bind(self, engine: Any) -> None:
        """Take over from a decision that Python made, or at the beginning of a run."""
        memo, values, rounds, settings = engine.columns.memo, engine.memo_values, self.rounds, engine.settings
        self._capacity = -1
        if values.get("pairs") or not set(REMEMBERED) <= set(engine.memo_columns):
            return
        self._engine = engine
        if self._policy is not None:
            self._shares = Shares(self._policy, engine.cluster, engine.nodes, int(settings.placement))
        self._share, self._received_s, self._deficit_s = memo["share"], memo["received_s"], memo["deficit_s"]
        self._known, self._speeds = memo["known"], memo["speeds"]
        self._capacity = engine.columns.capacity
        if values is self._seen:  # only the arrays have moved: what else is remembered is newer here
            return
        self._seen = values
        rounds.round_ms = max(settings.round_ms or DEFAULT_ROUND_MS, 2 * settings.restart_cost_ms)
        rounds.round_end_ms, rounds.last_reset_ms = values["round_end_ms"], values["last_reset_ms"]
        rounds.computed_jobs, rounds.nodes_then = values["computed_jobs"], values["nodes_up"]
        rounds.worker_s = np.array(values["worker_s"])
        rounds.type_order = type_order(engine.cluster.types)

    def store(self, engine: Any) -> None:
        """Give back what is not in arrays, before Python looks."""
        if self._capacity >= 0:
            self._seen = engine.memo_values = {**engine.memo_values, **values_of(self.rounds)}

    def decide(
        self,
        jobs: JobArrays,
        which: IntList,
        now_ms: int,
        cluster: ClusterArrays,
        free: FreeResources,
        placer: Placer,
        plan: PlanArrays,
    ) -> bool:
        rounds, placement = self.rounds, placer.strategy
        if jobs.capacity != self._capacity:
            return False
        self._gather(which, jobs.n_types)
        rounds.survey(jobs, which, now_ms)
        if rounds.halved or rounds.without_gpus or (rounds.elastic and not rounds.original):
            return False
        plan.clear()
        inside = rounds.is_inside(now_ms)
        if inside and rounds.original:
            plan.default, plan.wake_at_ms = NEXT_ROUND, rounds.round_end_ms
            return True
        due = not inside and rounds.shares_are_due(jobs, which, now_ms, cluster, placement)
        if due and self._policy is None:
            return False
        left_s = rounds.begin(now_ms, inside)
        if due:
            self._renew(jobs, which, now_ms)
        rounds.choose(jobs, which, now_ms, inside, cluster, free, placement)
        self._place(jobs, which, free, placer, plan)
        rounds.give_time(jobs, which, now_ms, left_s)
        self._scatter(which)
        plan.default, plan.wake_at_ms = SHARE_DUE, rounds.end(now_ms)
        return True

    def _renew(self, jobs: JobArrays, which: IntList, now_ms: int) -> None:
        """Have new shares computed, and write what they change beside a round."""
        rounds, engine, isolated = self.rounds, self._engine, None
        slots, memo = np.asarray(which.values)[: which.n], engine.columns.memo
        if ISOLATED[0] in engine.memo_columns:
            isolated = Isolated(*(memo[name][slots] for name in ISOLATED))
        self._shares.renew(rounds, jobs, which, now_ms, isolated, engine.notes)
        if isolated is not None:
            for name in ISOLATED:
                memo[name][slots] = getattr(isolated, name)
        for k in range(which.n):
            i = which.values[k]
            for gpu_type in range(rounds.types):
                self._share[i, gpu_type] = rounds.share[k, gpu_type]
                self._deficit_s[i, gpu_type] = rounds.deficit_s[k, gpu_type]
                self._speeds[i, gpu_type] = rounds.speeds[k, gpu_type]

    def _gather(self, which: IntList, types: int) -> None:
        rounds = self.rounds
        if which.n > len(rounds.known) or rounds.share.shape[1] != types:
            n = 2 * which.n + 16
            rounds.remember(
                np.zeros((n, types)), np.zeros((n, types)), np.zeros((n, types)), np.zeros(n), np.zeros((n, types))
            )
        for k in range(which.n):
            i = which.values[k]
            rounds.known[k] = self._known[i]
            for gpu_type in range(types):
                rounds.share[k, gpu_type] = self._share[i, gpu_type]
                rounds.received_s[k, gpu_type] = self._received_s[i, gpu_type]
                rounds.deficit_s[k, gpu_type] = self._deficit_s[i, gpu_type]
                rounds.speeds[k, gpu_type] = self._speeds[i, gpu_type]

    def _scatter(self, which: IntList) -> None:
        """Write what a round changes."""
        rounds = self.rounds
        for k in range(which.n):
            i = which.values[k]
            self._known[i] = rounds.known[k]
            for gpu_type in range(rounds.types):
                self._received_s[i, gpu_type] = rounds.received_s[k, gpu_type]

    def _place(self, jobs: JobArrays, which: IntList, free: FreeResources, placer: Placer, plan: PlanArrays) -> None:
        """Find places for those that start, write the plan, and undo it in the free resources."""
        rounds, starters, placed, at = self.rounds, self._starters, placer.placed, 0
        starters.reserve(rounds.start.n)
        starters.clear()
        for k in range(rounds.stop.n):
            row: int = rounds.stop.values[k]
            i = which.values[row]
            give_gang(free, jobs.allocation, i * jobs.width, i, jobs)
        for k in range(rounds.start.n):
            row = rounds.start.values[k]
            starters.append(which.values[row])
        placer.begin()
        placer.place_list(
            jobs, starters, 0, starters.n, rounds.gpu_types, False, jobs.workers_ask, jobs.servers_ask, free
        )
        plan.stated.reserve(2 * starters.n)
        for k in range(starters.n):
            if at < placed.n and placed.values[at] == k:
                placer.take_back(jobs, starters.values[k], placer.first.values[at], free)
                at += 1
            else:
                rounds.gpu_type_of[rounds.start.values[k]] = -1
                plan.stated.append(starters.values[k])
                plan.stated.append(placer.why.values[k])
        plan.jobs.reserve(rounds.stop.n + placed.n)
        plan.first.reserve(rounds.stop.n + placed.n)
        for k in range(rounds.stop.n):
            row = rounds.stop.values[k]
            i = which.values[row]
            take_gang(free, jobs.allocation, i * jobs.width, i, jobs)
            if rounds.gpu_type_of[row] < 0:
                plan.insert(jobs, i, -1, 0)
        stops = plan.jobs.n
        for k in range(placed.n):
            row = placed.values[k]
            plan.insert(jobs, starters.values[row], placer.first.values[k], stops)
        kept = plan.flat
        plan.flat = placer.flat
        placer.flat = kept
