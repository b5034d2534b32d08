"""Gangs of the local backend that grow, shrink, lose members and get others, in place or by a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.local_jobs import LocalJobs, devices, is_alive
from trainmaster.backends.local.site import Options
from trainmaster.model import event as ev

MEMBER = """
import os, sys, time
from trainmaster.runtime.link import AgentLink
from trainmaster.runtime.process_env import read_process_env
from trainmaster.gang.protocol import Hello, Progress
place = read_process_env()
link = AgentLink(place.agent, Hello(place.agent_token, place.member, os.getpid(), elastic={elastic}))
link.open()
version = 0
def follow():
    global version
    m = link.membership
    if m is not None and m.version > version:
        if m.find(place.member) is None:
            link.close(); sys.exit(0)
        version = m.version
        link.joined(version)
        print("joined", version, len(m.workers), flush=True)
{body}
"""


def member(body: str, elastic: bool = True) -> list[str]:
    return [sys.executable, "-c", MEMBER.format(elastic=elastic, body=body)]


IDLE = """
while link.stop_notice is None:
    follow(); time.sleep(0.02)
link.close(); sys.exit(75)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[LocalJobs]:
    bench = LocalJobs(tmp_path)
    yield bench
    bench.close()


def test_a_resize_in_place_keeps_whom_it_can(jobs: LocalJobs) -> None:
    spec = jobs.emulate("grow", 1_000_000, workers=(1, 4), size=2)
    jobs.expect(ev.Started, spec)
    senior, junior = jobs.member_pid(spec, "worker-0"), jobs.member_pid(spec, "worker-1")
    seq = jobs.resize(spec, devices(4))
    assert jobs.expect(ev.Resized, spec).seq == seq
    assert len(jobs.pids(spec)) == 4 and is_alive(senior) and is_alive(junior)
    jobs.resize(spec, devices(2, first=1))  # devices 1 and 2: the senior has to go
    work = jobs.expect(ev.Resized, spec).work_done
    assert not is_alive(senior) and is_alive(junior)
    assert jobs.expect(ev.Progressed, spec).work_done >= work
    assert (jobs.folder(spec) / "worker-0.exit").read_text() == '{"code":0,"why":"worker-0 ended with exit code 0"}'


def test_the_speed_of_an_emulated_job_follows_its_size(jobs: LocalJobs) -> None:
    spec = jobs.emulate("fast", 1_000_000, workers=(1, 4), size=1, speed=10.0)
    assert jobs.expect(ev.Progressed, spec).rate == 10.0
    jobs.resize(spec, devices(3))
    jobs.expect(ev.Resized, spec)
    jobs.until(lambda: jobs.expect(ev.Progressed, spec).rate == 30.0, "three workers are three times as fast")


def test_a_dead_member_is_replaced_and_the_others_go_on(jobs: LocalJobs) -> None:
    spec = jobs.emulate("heal", 1_000_000, workers=(1, 3), size=3)
    jobs.expect(ev.Started, spec)
    survivors = [jobs.member_pid(spec, name) for name in ("worker-1", "worker-2")]
    work = jobs.expect(ev.Progressed, spec).work_done
    os.kill(jobs.member_pid(spec, "worker-0"), signal.SIGKILL)
    assert jobs.member_pid(spec, "worker-3") not in survivors
    assert all(map(is_alive, survivors))
    jobs.until(lambda: jobs.expect(ev.Progressed, spec).work_done > work, "the work goes on")
    assert "SIGKILL" in (jobs.folder(spec) / "worker-0.exit").read_text()


def test_deaths_without_progress_are_given_up(jobs: LocalJobs) -> None:
    """worker-0 lives on; whoever else there is dies again and again."""
    body = "follow_until = time.time() + 60\nif place.member != 'worker-0':\n"
    body += "    while version == 0: follow(); time.sleep(0.01)\n    os._exit(9)\n" + IDLE
    spec = jobs.run("doomed", member(body), workers=(1, 2), size=2, max_attempts=3)
    event = jobs.expect(ev.Exited, spec)
    assert event.code == 9
    assert "3 deaths without progress" in event.why
    assert len(list(jobs.folder(spec).glob("worker-*.exit"))) == 4
    assert not jobs.pids(spec)


def test_an_elastic_job_whose_last_worker_dies_has_ended(jobs: LocalJobs) -> None:
    spec = jobs.emulate("last", 1_000_000, workers=(1, 2), size=1)
    jobs.expect(ev.Started, spec)
    os.kill(jobs.member_pid(spec, "worker-0"), signal.SIGKILL)
    assert jobs.expect(ev.Exited, spec).code == -signal.SIGKILL


def test_a_worker_that_was_told_to_end_by_somebody_else_is_no_failure(jobs: LocalJobs) -> None:
    spec = jobs.emulate("term", 1_000_000, workers=(1, 2), size=1)
    jobs.expect(ev.Progressed, spec)
    os.kill(jobs.member_pid(spec, "worker-0"), signal.SIGTERM)
    assert jobs.expect(ev.Stopped, spec).work_saved > 0


def test_a_plain_job_is_resized_by_a_restart_inside_its_incarnation(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path, options=Options(grace_s=1.0, hello_wait_s=0.5))
    spec = jobs.run("plain", ["sh", "-c", "echo $RANK of $WORLD_SIZE; exec sleep 100"], workers=(1, 3), size=1)
    jobs.expect(ev.Started, spec)
    jobs.said(spec, "0 of 1")
    seq = jobs.resize(spec, devices(3))
    assert jobs.expect(ev.Resized, spec).seq == seq
    jobs.said(spec, "2 of 3", "worker-3")
    assert len(jobs.pids(spec)) == 3
    assert "0 of 1" in jobs.log(spec)  # what the first one wrote is kept
    jobs.close()


def test_a_member_that_is_not_elastic_reports_but_is_resized_by_a_restart(jobs: LocalJobs) -> None:
    body = "follow()\nlink.report(Progress(7.0, 2.0))\n" + IDLE
    spec = jobs.run("half", member(body, elastic=False), workers=(1, 2), size=1)
    jobs.expect(ev.Started, spec)
    assert jobs.expect(ev.Progressed, spec).work_done == 7.0
    first = jobs.member_pid(spec, "worker-0")
    jobs.resize(spec, devices(2))
    jobs.expect(ev.Resized, spec)
    assert not is_alive(first)
    assert len(jobs.pids(spec)) == 2


def test_a_resize_that_keeps_nobody_is_a_restart_with_a_checkpoint(jobs: LocalJobs) -> None:
    spec = jobs.emulate("move", 1_000_000, workers=(1, 2), size=1)
    work = jobs.expect(ev.Progressed, spec).work_done
    jobs.resize(spec, devices(1, first=2))
    jobs.expect(ev.Resized, spec)
    jobs.until(lambda: jobs.expect(ev.Progressed, spec).work_done > work, "it goes on from its checkpoint")
    assert jobs.member_pid(spec, "worker-1")


def test_the_next_incarnation_begins_with_what_was_saved(jobs: LocalJobs) -> None:
    spec = jobs.emulate("save", 1_000_000, workers=(1, 2), size=2)
    jobs.expect(ev.Progressed, spec)
    jobs.stop(spec)
    saved = jobs.expect(ev.Stopped, spec).work_saved
    assert saved > 0
    jobs.emulate("save", 1_000_000, workers=(1, 2), size=2, generation=2)
    assert jobs.expect(ev.Started, spec).work_done == saved


def test_servers_end_when_the_workers_are_done(jobs: LocalJobs) -> None:
    spec = jobs.run("ps", ["sleep", "0.3"], workers=2, servers=2, server_command=["sleep", "100"])
    jobs.expect(ev.Started, spec)
    assert jobs.expect(ev.Exited, spec).code == 0
    assert not jobs.pids(spec)


def test_a_job_that_finishes_while_a_newcomer_loads_has_finished(jobs: LocalJobs) -> None:
    body = (
        "while version == 0: follow(); time.sleep(0.01)\nfor _ in range(40): follow(); time.sleep(0.02)\nlink.close()"
    )
    slow_newcomer = "if place.member != 'worker-0': time.sleep(60)\n"
    command = member(body)
    command[2] = command[2].replace("link.open()", slow_newcomer + "link.open()")
    spec = jobs.run("race", command, workers=(1, 2), size=1)
    jobs.expect(ev.Started, spec)
    jobs.resize(spec, devices(2))
    assert jobs.expect(ev.Exited, spec).code == 0
    assert not jobs.pids(spec)


def test_a_job_that_finishes_before_its_newcomers_have_joined_has_finished(jobs: LocalJobs) -> None:
    """They have been told the new membership, but the senior ends under the old one."""
    body = "while version == 0: follow(); time.sleep(0.01)\n"
    body += "while not link.membership or link.membership.version < 2: time.sleep(0.01)\nlink.close()"
    command = member(body)
    command[2] = command[2].replace("version = 0\n", "version = 0\nif place.member != 'worker-0': time.sleep(600)\n")
    spec = jobs.run("late", command, workers=(1, 3), size=1)
    jobs.expect(ev.Started, spec)
    jobs.resize(spec, devices(3))
    assert jobs.expect(ev.Exited, spec).code == 0
    assert not jobs.pids(spec)


def test_a_shrink_does_not_wait_for_newcomers_it_does_not_want_any_more(jobs: LocalJobs) -> None:
    command = member(IDLE)
    command[2] = command[2].replace("link.open()", "if place.member != 'worker-0': time.sleep(60)\nlink.open()")
    spec = jobs.run("back", command, workers=(1, 4), size=1)
    jobs.expect(ev.Started, spec)
    jobs.resize(spec, devices(3))
    jobs.until(lambda: len(jobs.pids(spec)) == 3, "newcomers load")
    seq = jobs.resize(spec, devices(1))
    assert jobs.expect(ev.Resized, spec).seq == seq
    assert len(jobs.pids(spec)) == 1


def test_survivors_do_not_wait_for_newcomers_that_still_load(jobs: LocalJobs) -> None:
    command = member(IDLE)
    command[2] = command[2].replace("link.open()", "if place.member == 'worker-3': time.sleep(60)\nlink.open()")
    spec = jobs.run("hurry", command, workers=(1, 4), size=3)
    jobs.expect(ev.Started, spec)
    jobs.resize(spec, devices(4))
    jobs.until(lambda: len(jobs.pids(spec)) == 4, "the newcomer is there")
    os.kill(jobs.member_pid(spec, "worker-1"), signal.SIGKILL)
    jobs.said(spec, "joined 2 2")


def test_a_member_that_hangs_is_ended_when_others_keep_missing_it(jobs: LocalJobs) -> None:
    """worker-0 cannot reach worker-1, which lives but does nothing: new memberships, then it is killed."""
    body = "if place.member == 'worker-1':\n    while version < 1: follow(); time.sleep(0.01)\n    time.sleep(600)\n"
    missing = "any(p.member == 'worker-1' for p in link.membership.peers)"
    body += f"while place.member == 'worker-0' and {missing}: follow(); link.suspect(version, ('worker-1',)); "
    body = body.replace("any(", "link.membership is None or any(") + "time.sleep(0.02)\n" + IDLE
    spec = jobs.run("hang", member(body), workers=(1, 2), size=2)
    jobs.expect(ev.Started, spec)
    stuck = jobs.member_pid(spec, "worker-1")
    jobs.until(lambda: not is_alive(stuck), "the stuck one is ended")
    assert jobs.member_pid(spec, "worker-2") != stuck


def test_a_newcomer_that_never_speaks_is_replaced(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path, options=Options(grace_s=1.0, hello_wait_s=5.0, join_patience_s=4.0))
    command = member(IDLE)
    command[2] = command[2].replace("link.open()", "if place.member == 'worker-1': time.sleep(600)\nlink.open()")
    spec = jobs.run("mute", command, workers=(1, 2), size=1, max_attempts=9)
    jobs.expect(ev.Started, spec)
    seq = jobs.resize(spec, devices(2))
    assert jobs.expect(ev.Resized, spec).seq == seq
    assert jobs.member_pid(spec, "worker-2")
    assert "SIGKILL" in (jobs.folder(spec) / "worker-1.exit").read_text()
    jobs.close()


def test_a_stop_saves_in_time_or_not_at_all(jobs: LocalJobs) -> None:
    """Notice first: a member that listens is not interrupted by a signal before its grace is nearly over."""
    body = IDLE.replace("link.close();", "time.sleep(0.4); print('saved', flush=True); link.close();")
    body = "import signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(1))\n" + body
    spec = jobs.run("notice", member(body), workers=(1, 2), size=1)
    jobs.expect(ev.Started, spec)
    jobs.stop(spec)
    jobs.expect(ev.Stopped, spec)
    assert "saved" in jobs.log(spec)


def test_a_job_whose_runtime_said_that_training_is_complete_has_finished_though_it_is_stopped(jobs: LocalJobs) -> None:
    body = IDLE.replace("link.close(); sys.exit(75)", "link.report(Progress(9.0, complete=True)); link.close()")
    spec = jobs.run("done", member(body), workers=(1, 2), size=1)
    jobs.expect(ev.Started, spec)
    jobs.stop(spec)
    assert jobs.expect(ev.Exited, spec).code == 0


@pytest.mark.parametrize("speaks", [True, False])
def test_a_trainer_that_is_stopped_has_not_finished_though_it_exits_with_0(jobs: LocalJobs, speaks: bool) -> None:
    polite = member(IDLE.replace("sys.exit(75)", "sys.exit(0)"))
    if not speaks:
        polite = ["sh", "-c", "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"]
    spec = jobs.run("polite", polite, workers=(1, 2) if speaks else 1, size=1)
    jobs.expect(ev.Started, spec)
    if not speaks:
        jobs.said(spec, "ready")
    jobs.stop(spec)
    jobs.expect(ev.Stopped, spec)


def test_a_trainer_that_saves_while_its_machine_goes_down_has_not_finished(jobs: LocalJobs) -> None:
    """A reboot sends SIGTERM to supervisor and trainer alike."""
    polite = ["sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"]
    spec = jobs.run("reboot", polite)
    jobs.said(spec, "ready")
    supervisor = int(Path(f"/proc/{jobs.member_pid(spec, 'worker-0')}/stat").read_text().split()[3])
    for pid in (supervisor, jobs.member_pid(spec, "worker-0")):
        with contextlib.suppress(ProcessLookupError):  # a quick supervisor has ended its trainer already
            os.kill(pid, signal.SIGTERM)
    jobs.expect(ev.Stopped, spec)
