"""Every report survives the way into a row and back."""

import pytest

from trainmaster.core.state.messages import Messages
from trainmaster.engine.message_rows import DID_NOT_START, put_report, report_of
from trainmaster.model import event as ev
from trainmaster.model.job import JobId

A = JobId("a")
REPORTS = [
    ev.Started(A, 2, 1.5, 700),
    ev.StartFailed(A, 2, DID_NOT_START, None),
    ev.StartFailed(A, 2, DID_NOT_START, 0),
    ev.Resized(A, 2, 9, 1.5, 700),
    ev.Progressed(A, 2, 1.5, 700),
    ev.Progressed(A, 2, 1.5, 700, 0.0, 0.25),
    ev.Exited(A, 2, 0, 4.0),
    ev.Exited(A, 2, 3, 4.0, "crashed"),
    ev.Stopped(A, 2, 4.0),
    ev.Stopped(A, 2, 4.0, frozenset({3, 0})),
    ev.NodeLost(1, 30, True),
    ev.Inventory((), 4, frozenset({1})),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: type(r).__name__)
def test_a_report_comes_back_as_it_was(report: ev.Event) -> None:
    rows = Messages(1)
    put_report(rows, ev.Stopped(A, 1, 0.0, frozenset({7})), 0)
    put_report(rows, report, 0)
    assert report_of(rows, 1, [A]) == report


def test_cleared_rows_leave_nothing() -> None:
    rows = Messages(1)
    for report in REPORTS:
        put_report(rows, report, 0)
    rows.clear()
    put_report(rows, ev.Stopped(A, 2, 4.0), 0)
    assert (rows.n, rows.others, report_of(rows, 0, [A])) == (1, [], ev.Stopped(A, 2, 4.0))
