"""Figures of a run: completion times, waiting, use, deadlines, utility, cost, fairness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trainmaster.model.job import STATE_OF, Phase
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.model.utility import parse_utility
from trainmaster.sim.run import RunResult

Floats = npt.NDArray[np.float64]


def job_table(result: RunResult) -> pl.DataFrame:
    """A row per job, in order of submission: when it came, started and ended, and what it used."""
    ended = sorted(result.ended, key=lambda e: (e.spec.submit_ms, e.spec.id))
    submit = np.array([e.spec.submit_ms for e in ended], np.int64)
    start = np.array([e.first_start_ms for e in ended], np.int64)
    finish = np.array([e.ended_ms for e in ended], np.int64)
    finished = np.array([e.phase == Phase.FINISHED for e in ended], np.bool_)
    run_s = np.array([e.run_s for e in ended])
    jct_s = (finish - submit) / MS_PER_S
    deadline = np.array([e.spec.deadline_ms for e in ended], np.int64)
    has_deadline = deadline < NEVER_MS
    ideal_s = np.array([_ideal_s(e) for e in ended])
    frame = pl.DataFrame(
        {
            "job_id": [e.spec.id for e in ended],
            "submit_s": submit / MS_PER_S,
            "start_s": np.where(start >= 0, start / MS_PER_S, np.nan),
            "finish_s": np.where(finished, finish / MS_PER_S, np.nan),
            "jct_s": np.where(finished, jct_s, np.nan),
            "wait_s": np.where(finished, jct_s - run_s, np.nan),
            "status": [STATE_OF[e.phase].value for e in ended],
            "gpus": np.array([e.spec.gpus for e in ended]),
            "run_s": run_s,
            "ideal_s": ideal_s,
            "service_gpu_s": np.array([e.service_gpu_s for e in ended]),
            "preemptions": np.array([e.preemptions for e in ended], np.int64),
            "attempts": np.array([e.attempts for e in ended], np.int64),
            "deadline_s": np.where(has_deadline, deadline / MS_PER_S, np.nan),
            "deadline_met": [
                bool(finished[k] and finish[k] <= deadline[k]) if has_deadline[k] else None for k in range(len(ended))
            ],
            "utility": [_utility(e, finished[k], jct_s[k]) for k, e in enumerate(ended)],
            "cost": [None if math.isnan(e.cost) else e.cost for e in ended],
            "finish_time_ratio": _finish_time_ratio(result, submit, finish, finished, jct_s, ideal_s, ended),
            "entity": [e.spec.entity for e in ended],
            "model": [e.spec.model for e in ended],
            "reason": ["" if e.rejection is None else e.rejection.why.name.lower() for e in ended],
        },
        strict=False,
    )
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


def summary(result: RunResult, jobs: pl.DataFrame | None = None) -> dict[str, Any]:
    """The figures of the contract (see `trainmaster simulate --json`)."""
    jobs = job_table(result) if jobs is None else jobs
    done = jobs.filter(pl.col("status") == "finished")
    jct = done["jct_s"].to_numpy()
    ratio = done["finish_time_ratio"].drop_nulls().to_numpy()
    first_s = float(jobs["submit_s"].min() or 0.0) if len(jobs) else 0.0  # type: ignore[arg-type]
    last_s = float(done["finish_s"].max() or first_s) if len(done) else first_s  # type: ignore[arg-type]
    makespan_s = last_s - first_s
    used = float(jobs["service_gpu_s"].sum())
    met = jobs["deadline_met"].drop_nulls()
    utility = jobs["utility"].drop_nulls()
    cost = jobs["cost"].drop_nulls()
    counts = {
        status: int((jobs["status"] == status).sum()) for status in ("finished", "rejected", "failed", "cancelled")
    }
    return {
        "jobs_submitted": len(jobs),
        "jobs_finished": counts["finished"],
        "jobs_rejected": counts["rejected"],
        "jobs_failed": counts["failed"] + counts["cancelled"],
        "average_jct_s": _or_none(jct.mean() if len(jct) else math.nan),
        "median_jct_s": _or_none(np.median(jct) if len(jct) else math.nan),
        "p99_jct_s": _or_none(np.percentile(jct, 99) if len(jct) else math.nan),
        "makespan_s": makespan_s,
        "average_wait_s": _or_none(float(done["wait_s"].mean() or 0.0) if len(done) else math.nan),  # type: ignore[arg-type]
        "utilization": used / (result.cluster.total_gpus * makespan_s) if makespan_s > 0 else 0.0,
        "deadline_met_fraction": float(met.sum() / len(met)) if len(met) else None,
        "total_utility": float(utility.sum()) if len(utility) else None,
        "total_cost": float(cost.sum()) if len(cost) else None,
        "fairness": {
            "mean": _or_none(ratio.mean() if len(ratio) else math.nan),
            "p99": _or_none(np.percentile(ratio, 99) if len(ratio) else math.nan),
            "max": _or_none(ratio.max() if len(ratio) else math.nan),
        },
        "preemptions": int(jobs["preemptions"].sum()),
        "lost_gpu_s": result.lost_gpu_s,
        "decisions": result.decisions,
        "decide_cpu_s": result.decide_cpu_s,
        "solver_cpu_s": result.solver_cpu_s,
        "cpu_s": result.cpu_s,
        "wall_s": result.wall_s,
        "plans_refused": result.plans_refused,
        "notes": result.notes[:20],
    }


def _or_none(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _ideal_s(ended: Any) -> float:
    """Run time alone at the size asked for, on the fastest acceptable type, without any cost."""
    spec = ended.spec
    if spec.work_total is None:
        return math.nan
    fastest = max(spec.steps_per_s.values(), default=1.0) if spec.steps_per_s else 1.0
    return spec.work_total / fastest if fastest > 0 else math.nan


def _utility(ended: Any, finished: bool, jct_s: float) -> float | None:
    if ended.spec.utility is None:
        return None
    return float(parse_utility(ended.spec.utility).value(jct_s)) if finished else 0.0


def _finish_time_ratio(
    result: RunResult, submit: Any, finish: Any, finished: Any, jct_s: Floats, ideal_s: Floats, ended: Any
) -> Floats:
    """rho = JCT / time in isolation with a 1/n share (Themis, NSDI'20), n = mean number of jobs in the system
    during the job's life; the share of a job of s GPUs is min(1, GPUs / (n s)). Below 1 is better than that."""
    if len(submit) == 0:
        return np.zeros(0)
    times = np.concatenate([submit, finish])
    change = np.concatenate([np.ones(len(submit)), -np.ones(len(finish))])
    order = np.argsort(times, kind="stable")
    times, present = times[order], np.cumsum(change[order])
    area = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(times))])
    life = np.maximum(finish - submit, 1)
    average = (area[np.searchsorted(times, finish)] - area[np.searchsorted(times, submit)]) / life
    gpus = np.array([max(e.spec.gpus, 1e-9) for e in ended])
    share = np.minimum(1.0, result.cluster.total_gpus / (np.maximum(average, 1.0) * gpus))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = jct_s / (ideal_s / share)
    return np.where(finished & (ideal_s > 0), ratio, np.nan)
