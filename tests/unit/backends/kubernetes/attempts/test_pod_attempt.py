"""When a member of a gang counts as ended: what pods and launchers say comes in any order."""

from __future__ import annotations

import pytest

from trainmaster.backends.kubernetes.attempts.observations import RunFacts, RunKey
from trainmaster.backends.kubernetes.attempts.pod_attempt import Member, Run, pod_seat
from trainmaster.backends.kubernetes.attempts.pod_objects import Object, end_of, run_of, seq_of, waits_for
from trainmaster.gang.actions import EXITED, NOBODYS, OWN, STOPPED, Action, Outcome, Report, Running, Start, Started
from trainmaster.gang.protocol import EXIT_STOPPED, WORKER
from trainmaster.model.job import JobId, JobSpec


@pytest.fixture
def run() -> Run:
    """One worker that runs, under a lease."""
    key = RunKey("default.j.00000000", 1)
    facts = RunFacts(key, "default", "j", "u", 1, "token", (), 10.0, 2.0, JobSpec(JobId(key.job_id), 0), {})
    made = Run(key, facts)
    made.aim([pod_seat(WORKER, "n0")], 1, launch=True)
    (start,) = _advance(made)
    assert isinstance(start, Start)
    member = made.enlist(start)
    member.heard = True
    made.attempt.on_member(member.name, Running())
    made.saw(member, _pod(running=True), gone=False, node_ready=True)
    assert _advance(made) == [Report(Started())]
    return made


def _advance(run: Run, now_s: float = 0.0) -> list[Action]:
    return run.attempt.advance(now_s)


def _outcome(run: Run) -> Outcome | None:
    _advance(run)
    return run.attempt.outcome


def _pod(*, running: bool) -> Object:
    state = {"running": {}} if running else {"waiting": {}}
    return {
        "metadata": {"name": "j-u-g1-w0"},
        "spec": {"nodeName": "n0", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]},
    }


def _only(run: Run) -> Member:
    (member,) = run.members.values()
    return member


def test_a_vanished_pod_may_still_run_until_its_launcher_or_lease_says_otherwise(run: Run) -> None:
    run.saw(_only(run), _pod(running=True), gone=True, node_ready=True)
    assert _only(run).alive
    run.said_ended(_only(run), EXIT_STOPPED, "SIGTERM")
    assert not _only(run).alive and (outcome := _outcome(run)) is not None and outcome.kind == STOPPED


def test_the_launchers_word_counts_when_it_came_before_the_pod_vanished(run: Run) -> None:
    run.said_ended(_only(run), EXIT_STOPPED, "SIGTERM")
    assert _only(run).alive, "its pod holds its devices until it says so itself, or is gone"
    run.saw(_only(run), _pod(running=True), gone=True, node_ready=True)
    assert not _only(run).alive and (outcome := _outcome(run)) is not None and outcome.kind == STOPPED


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(0, Outcome(EXITED, 0)), (3, Outcome(EXITED, 3, "j-u-g1-w0: exit code 3")),
     (EXIT_STOPPED, Outcome(STOPPED, why="j-u-g1-w0: stopped"))],
)  # fmt: skip
@pytest.mark.parametrize("word_first", [True, False])
def test_the_launchers_word_counts_where_no_kubelet_speaks(
    run: Run, code: int, outcome: Outcome, word_first: bool
) -> None:
    why = {3: "exit code 3", EXIT_STOPPED: "stopped"}.get(code, "")
    run.said_ended(_only(run), code, why, node_ready=word_first)
    if word_first:
        assert _only(run).alive
        run.believe_last_word(_only(run))  # its kubelet goes silent
    assert _outcome(run) == outcome
    assert run.over, "nobody needs its devices"


def test_a_launcher_that_was_heard_counts_before_a_status_that_lags(run: Run) -> None:
    run.saw(_only(run), _pod(running=False), gone=True, node_ready=True)
    assert _only(run).alive, "its kubelet had not told yet that the container runs; its lease does"
    _only(run).heard = False
    run.saw(_only(run), _pod(running=False), gone=True, node_ready=True)
    assert not _only(run).alive, "nobody ever spoke for it: its command cannot have begun"


def test_a_silent_kubelet_alone_ends_nothing(run: Run) -> None:
    run.believe_last_word(_only(run))
    assert _only(run).alive


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        ({"reason": "ErrImagePull", "message": "no such host"}, "ErrImagePull: no such host"),
        ({"reason": "ContainerCreating"}, "ContainerCreating since 09:00: it pulls image r/x:1 or mounts volumes"),
        ({"reason": "PodInitializing"}, ""),
        (None, ""),
    ],
)
def test_what_a_pod_waits_for_is_told_in_the_kubelets_words(waiting: Object | None, told: str) -> None:
    pod = _pod(running=True)
    pod["status"]["startTime"] = "09:00"
    state = {"running": {}} if waiting is None else {"waiting": waiting}
    pod["status"]["containerStatuses"][0].update(image="r/x:1", state=state)
    assert waits_for(pod) == told


@pytest.mark.parametrize("launcher", [True, False])
@pytest.mark.parametrize(
    ("meta", "reason", "fault"),
    [
        ({}, "", OWN),
        ({"deletionTimestamp": "2026-01-01T00:01:30Z", "deletionGracePeriodSeconds": 30}, "", NOBODYS),
        ({"deletionTimestamp": "2026-01-01T09:00:00Z", "deletionGracePeriodSeconds": 30}, "", OWN),
        ({}, "Evicted", NOBODYS),
    ],
    ids=["by itself", "deleted", "deleted long after it had ended", "evicted"],
)
@pytest.mark.parametrize("code", [0, 143])
def test_a_pod_that_was_deleted_or_evicted_has_not_finished(
    launcher: bool, meta: Object, reason: str, fault: str, code: int
) -> None:
    pod = _pod(running=True)
    pod["metadata"].update(meta)
    pod["status"].update(phase="Failed" if code else "Succeeded", reason=reason)
    state = {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:01:10Z"}}
    pod["status"]["containerStatuses"][0]["state"] = state
    end = end_of(pod, launcher)
    assert end is not None and (end.code, end.fault) == (code, fault)


@pytest.mark.parametrize("text", ["²", "٣", "-1", "", "9" * 5000])
def test_numbers_that_are_none_end_nothing(run: Run, text: str) -> None:
    """Anybody who may make pods can write what they like into labels and annotations."""
    pod = _pod(running=True)
    pod["metadata"].update(
        labels={"trainmaster.dev/generation": text, "trainmaster.dev/rank": text},
        annotations={
            "trainmaster.dev/job-id": "j",
            "trainmaster.dev/member": f"worker-{text}",
            "trainmaster.dev/seq": text,
        },
    )
    pod["metadata"]["annotations"]["trainmaster.dev/seq"] = text
    assert run_of(pod) is None and seq_of(pod) == 0
    assert run.adopt(pod) is None and len(run.members) == 1
