"""The answer to a job with a deadline: the configuration found, or what could be promised."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.deadline import reservation_layout as col
from trainmaster.policies.deadline.reservation_book import ReservationBook


def accepted(reservations: ReservationBook, row: int) -> dict[str, Any]:
    """What was reserved, in words and seconds."""
    cert = reservations.certs[row]
    pieces = [
        {
            "from_s": float(cert[col.FIRST + 3 * s]) / MS_PER_S,
            "until_s": float(cert[col.FIRST + 3 * s + 1]) / MS_PER_S,
            "workers": int(cert[col.FIRST + 3 * s + 2]),
        }
        for s in range(int(cert[col.COUNT]))
    ]
    return {
        "answer": "accepted",
        "deadline_s": float(reservations.due[row]) / MS_PER_S,
        "type": reservations.view.cluster.types[int(cert[col.GPU_TYPE])],
        "workers": max((piece["workers"] for piece in pieces), default=0),
        "planned_finish_s": float(cert[col.FINISH]) / MS_PER_S,
        "schedule": pieces,
    }


def impossible(reservations: ReservationBook, row: int) -> dict[str, Any] | None:
    """Answers that do not depend on others: in the past, unknown work, sooner than the fastest finish."""
    due = float(reservations.due[row])
    deadline = {"deadline_s": due / MS_PER_S}
    if np.isnan(reservations.unknowns.work_total[row]):
        return {
            **deadline,
            "fault": "unknown work",
            "remedy": "state the total steps or epochs, or submit without a hard deadline",
        }
    if due <= reservations.now:
        return {
            **deadline,
            "fault": "deadline in the past",
            "now_s": reservations.now / MS_PER_S,
            **promisable(reservations, row),
        }
    fastest = float(reservations.fastest_finish()[row])
    if fastest > due:
        return {
            **deadline,
            "fault": "deadline before the fastest possible finish",
            "fastest_finish_s": fastest / MS_PER_S,
            **promisable(reservations, row),
        }
    return None


def refused(reservations: ReservationBook, row: int) -> dict[str, Any]:
    """Feasible alone but not beside the promises: the earliest deadline, and what this one would take."""
    return {
        "deadline_s": float(reservations.due[row]) / MS_PER_S,
        "fault": "no room beside what is promised",
        **promisable(reservations, row),
        **_more_gpus(reservations, row),
        **_whose_slack(reservations, row),
    }


def not_worth_it(reservations: ReservationBook, row: int, times: float) -> dict[str, Any]:
    """Room is short and this job would take that of many."""
    return {
        "deadline_s": float(reservations.due[row]) / MS_PER_S,
        "fault": "room is short and it would take that of many jobs",
        "weight_needed": round(float(reservations.view.jobs.weight[row]) * times, 4),
        **promisable(reservations, row),
    }


def promisable(reservations: ReservationBook, row: int) -> dict[str, Any]:
    """The earliest deadline that could be promised now, with the size and type that would keep it."""
    cert = np.zeros(col.WIDTH)
    p = reservations.build(col.PROMISED)
    finish = p.soonest(reservations.jobs, row, cert)
    if finish < 0:
        return {"earliest_deadline_s": None}
    sizes = [int(cert[col.FIRST + 3 * s + 2]) for s in range(int(cert[col.COUNT]))]
    # The same allowance for rounding with which a promise is tested.
    promised = finish + col.SLIP_MS * (len(sizes) - 1)
    return {
        "earliest_deadline_s": promised / MS_PER_S,
        "with_type": reservations.view.cluster.types[int(cert[col.GPU_TYPE])],
        "with_workers": max(sizes),
    }


def _more_gpus(reservations: ReservationBook, row: int) -> dict[str, Any]:
    """The fewest further GPUs of one type with which the deadline could be promised as things stand."""
    jobs, due = reservations.jobs, float(reservations.due[row])
    best: tuple[float, str] | None = None
    for k, name in enumerate(reservations.view.cluster.types):
        if jobs.base[row, k] <= 0:
            continue
        top = int(jobs.levels[row]) - 1
        low, high = 0, int(jobs.sizes[row, top] * jobs.each[row])
        if not _fits_with(reservations, row, k, high, due):
            continue
        while high - low > GPU_MILLI and high - low > jobs.each[row]:
            middle = (low + high) // 2
            low, high = (low, middle) if _fits_with(reservations, row, k, middle, due) else (middle, high)
        more = -(-high // GPU_MILLI)
        if best is None or (more, name) < best:
            best = (more, name)
    return {} if best is None else {"more_gpus": best[0], "more_type": best[1]}


def _fits_with(reservations: ReservationBook, row: int, k: int, extra_milli: int, due: float) -> bool:
    p = reservations.build(col.PROMISED)
    p.free[k, : p.n[k]] += extra_milli
    scratch = np.zeros(col.WIDTH)
    levels = int(reservations.jobs.levels[row])
    return any(p.fill(reservations.jobs, row, k, level, due, scratch) >= 0 for level in range(levels))


def _whose_slack(reservations: ReservationBook, row: int) -> dict[str, Any]:
    """The promised job on an acceptable type with most time to spare: its slack would help first."""
    certs = reservations.certs
    useful = (certs[:, col.CLASS] == col.PROMISED) & (certs[:, col.COUNT] > 0) & (certs[:, col.DUE] < col.FOREVER)
    useful &= certs[:, col.FIRST] < reservations.due[row]
    gpu_types = certs[:, col.GPU_TYPE].astype(np.int64)
    useful &= reservations.jobs.base[row, gpu_types] > 0
    rows = np.flatnonzero(useful)
    if rows.size == 0:
        return {}
    slack = certs[rows, col.DUE] - certs[rows, col.FINISH]
    other = int(rows[np.argmax(slack)])
    return {"slack_of": reservations.view.jobs.id(other), "slack_s": float(slack.max()) / MS_PER_S}
