"""Figures of a run: completion times, waiting, use, deadlines, utility, cost, fairness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import STATE_OF, Phase, PhaseCode
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.model.utility import parse_utility
from trainmaster.sim.ended_jobs import EndedJobs
from trainmaster.sim.job_list import JobList
from trainmaster.sim.run import RunResult

_STATES = pl.Series([STATE_OF[phase].value for phase in Phase])


def job_table(result: RunResult) -> pl.DataFrame:
    """A row per job, in order of submission: when it came, started and ended, and what it used."""
    over, jobs = result.over, result.over.jobs
    order = _by_submission(jobs, over.number)
    number, phase, finish, start, preemptions, attempts = over.ints[order].T
    service, run_s, _, cost = over.floats[order].T
    submit, deadline = jobs.submit_ms[number], jobs.deadline_ms[number]
    gpus, ideal_s = jobs.gpus()[number], jobs.ideal_s()[number]
    finished = phase == PhaseCode.FINISHED
    jct_s = (finish - submit) / MS_PER_S
    has_deadline = deadline < NEVER_MS
    frame = pl.DataFrame(
        {
            "job_id": jobs.ids.gather(number),
            "submit_s": submit / MS_PER_S,
            "start_s": np.where(start >= 0, start / MS_PER_S, np.nan),
            "finish_s": np.where(finished, finish / MS_PER_S, np.nan),
            "jct_s": np.where(finished, jct_s, np.nan),
            "wait_s": np.where(finished, jct_s - run_s, np.nan),
            "status": _STATES.gather(phase),
            "gpus": gpus,
            "run_s": run_s,
            "ideal_s": ideal_s,
            "service_gpu_s": service,
            "preemptions": preemptions,
            "attempts": attempts,
            "deadline_s": np.where(has_deadline, deadline / MS_PER_S, np.nan),
            "deadline_met": _where(has_deadline, finished & (finish <= deadline)),
            "utility": _utilities(jobs, number, finished, jct_s),
            "cost": cost,
            "finish_time_ratio": _finish_time_ratio(result.cluster, submit, finish, finished, ideal_s, gpus),
            "entity": jobs.texts(lambda spec: spec.entity).gather(number),
            "model": jobs.texts(lambda spec: spec.model).gather(number),
            "reason": _reasons(over, number),
        }
    )
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


def _by_submission(jobs: JobList, number: Ints) -> Ints:
    """Places of these jobs in order of submission, then id."""
    table = pl.DataFrame({"submit_ms": jobs.submit_ms[number], "id": jobs.ids.gather(number)})
    return table.select(pl.arg_sort_by("submit_ms", "id")).to_series().to_numpy()


def _where(mask: npt.NDArray[np.bool_], values: npt.NDArray[Any]) -> pl.Series:
    """The values, null where the mask is false."""
    return pl.select(pl.when(pl.Series(mask)).then(pl.Series(values))).to_series()


def _utilities(jobs: JobList, number: Ints, finished: npt.NDArray[np.bool_], jct_s: Floats) -> pl.Series:
    utilities = [None if spec.utility is None else parse_utility(spec.utility) for spec in jobs.templates]
    values: list[float | None] = [None] * len(number)
    if any(utilities):
        for k, kind in enumerate(jobs.kind[number].tolist()):
            utility = utilities[kind]
            if utility is not None:
                values[k] = float(utility.value(jct_s[k])) if finished[k] else 0.0
    return pl.Series(values, dtype=pl.Float64)


def _reasons(over: EndedJobs, number: Ints) -> pl.Series:
    if not over.rejections:
        return pl.repeat("", len(number), dtype=pl.String, eager=True)
    rejections = map(over.rejections.get, number.tolist())
    return pl.Series(["" if found is None else found.why.name.lower() for found in rejections], dtype=pl.String)


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


def _finish_time_ratio(
    cluster: Cluster, submit: Ints, finish: Ints, finished: npt.NDArray[np.bool_], ideal_s: Floats, gpus: Floats
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
    share = np.minimum(1.0, cluster.total_gpus / (np.maximum(average, 1.0) * np.maximum(gpus, 1e-9)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (finish - submit) / MS_PER_S / (ideal_s / share)
    return np.where(finished & (ideal_s > 0), ratio, np.nan)
