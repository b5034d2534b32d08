"""For policies that walk rows: decide on rows in order of arrival, whatever order they lie in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trainmaster.model.plan import Plan
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.snapshot import Snapshot


def decide_by_arrival(view: Snapshot, decide: Callable[[Snapshot], Plan]) -> Plan:
    """`decide` on the rows sorted by arrival, its plan in terms of the rows as given.

    The engine's rows always are in that order, so this costs one look at a column there.
    """
    arrival = view.jobs.arrival
    if bool((arrival[1:] > arrival[:-1]).all()):
        return decide(view)
    order = np.argsort(arrival, kind="stable")
    memo = PolicyState(view.memo.values, {name: column[order] for name, column in view.memo.columns.items()})
    plan = decide(replace(view, jobs=view.jobs.reordered(order), memo=memo))
    back = np.argsort(order)
    original = order.tolist()
    blocker = plan.blocker
    if blocker is not None:
        blocker = np.where(blocker >= 0, order[blocker], -1)[back]
    return replace(
        plan,
        changes={original[row]: allocation for row, allocation in plan.changes.items()},
        why=plan.why[back],
        blocker=blocker,
        rejections={original[row]: rejection for row, rejection in plan.rejections.items()},
        admissions=tuple(original[row] for row in plan.admissions),
        details={original[row]: details for row, details in plan.details.items()},
        memo=PolicyState(plan.memo.values, {name: np.asarray(c)[back] for name, c in plan.memo.columns.items()}),
    )
