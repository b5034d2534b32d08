"""Processes of the local backend: what they are given, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import queue
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.local_jobs import PRINT_ENVIRONMENT, LocalJobs, devices, is_alive
from trainmaster.backends.local import devices as machine
from trainmaster.backends.local import supervisor
from trainmaster.backends.local.backend import LocalBackend
from trainmaster.backends.local.run_folder import job_folder
from trainmaster.backends.local.site import Options
from trainmaster.model import event as ev
from trainmaster.model.command import Launch
from trainmaster.model.errors import InputError
from trainmaster.model.lease import LeaseRule
from trainmaster.testing.builders import a_job


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[LocalJobs]:
    bench = LocalJobs(tmp_path)
    yield bench
    bench.close()


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_members_get_what_torchrun_gives_and_the_place_they_run_in(jobs: LocalJobs) -> None:
    patient = f"{PRINT_ENVIRONMENT}; import time; time.sleep(2)"  # servers are stopped when all workers have ended
    spec = jobs.run("env", python(patient), workers=2, servers=1, env={"MINE": "a b", "RANK": "77"}, steps=9)
    jobs.expect(ev.Exited, spec)
    first, second, server = (jobs.environment(spec, name) for name in ("worker-0", "worker-1", "server-0"))
    wanted = {"RANK": "1", "LOCAL_RANK": "1", "ROLE_RANK": "1", "GROUP_RANK": "0", "MINE": "a b"}
    wanted |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), "2")
    wanted |= {"TRAINMASTER_MEMBER": "worker-1", "TRAINMASTER_ROLE": "worker", "TRAINMASTER_ACCELERATOR": "v100"}
    wanted |= {"TRAINMASTER_NODE": "v100-0", "TRAINMASTER_JOB_ID": "env", "TRAINMASTER_GENERATION": "1"}
    wanted |= {"TRAINMASTER_STEPS": "9", "TRAINMASTER_STEPS_PER_S": '{"v100": 100.0}'}
    assert {name: second[name] for name in wanted} == wanted
    assert (first["RANK"], first["MASTER_PORT"]) == ("0", second["MASTER_PORT"])
    assert (server["TRAINMASTER_ROLE"], server.get("RANK")) == ("server", "77")  # servers have no rank of ours
    assert Path(first["TRAINMASTER_CHECKPOINT_DIR"]).is_dir()


def test_secrets_of_the_service_do_not_reach_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_TOKEN", "of-the-service")
    jobs = LocalJobs(tmp_path)
    spec = jobs.run("env", python(PRINT_ENVIRONMENT))
    jobs.expect(ev.Exited, spec)
    assert "of-the-service" not in jobs.log(spec)
    jobs.close()


def test_nothing_of_a_command_is_read_by_a_shell(jobs: LocalJobs, tmp_path: Path) -> None:
    hostile = ["$(touch owned)", "; touch owned;", "`touch owned`", "a b", "*", "", "ünï\n"]
    spec = jobs.run("argv", python("import sys; print(sys.argv[1:])") + hostile, workdir=str(tmp_path))
    jobs.expect(ev.Exited, spec)
    assert jobs.log(spec).strip() == str(hostile)
    assert not (tmp_path / "owned").exists()


def test_exit_codes_and_signals_are_told_as_they_were(jobs: LocalJobs) -> None:
    spec = jobs.run("code", ["sh", "-c", "exit 42"])
    event = jobs.expect(ev.Exited, spec)
    assert (event.code, event.why) == (42, "worker-0 ended with exit code 42")
    spec = jobs.run("temporary", ["sh", "-c", "exit 75"])  # what it means to members that speak, it does not mean here
    assert jobs.expect(ev.Exited, spec).code == 75
    spec = jobs.run("abort", python("import os; os.abort()"))
    event = jobs.expect(ev.Exited, spec)
    assert (event.code, event.why) == (-signal.SIGABRT, "worker-0 was killed by SIGABRT")


def test_one_failing_worker_ends_a_plain_gang(jobs: LocalJobs) -> None:
    text = "import os, time; time.sleep(60 if os.environ['RANK'] == '0' else 0.2); raise SystemExit(5)"
    spec = jobs.run("gang", python(text), workers=2)
    event = jobs.expect(ev.Exited, spec)
    assert (event.code, event.why) == (5, "worker-1 ended with exit code 5")
    assert not jobs.pids(spec)


@pytest.mark.parametrize(
    ("command", "workdir", "why"),
    [
        (["no-such-program"], "", "command 'no-such-program' not found"),
        (["./not-executable"], ".", "cannot start the command './not-executable': Permission denied"),
        (["true"], "/no/such/folder", "cannot enter the working directory '/no/such/folder'"),
        ([], "", "the job has no command"),
        (["a\0b"], "", "expected a list of words"),
    ],
)
def test_a_job_that_cannot_start_is_told_why(
    jobs: LocalJobs, tmp_path: Path, command: list[str], workdir: str, why: str
) -> None:
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    spec = jobs.run("bad", command, workers=2, workdir=str(tmp_path) if workdir == "." else workdir)
    event = jobs.expect(ev.StartFailed, spec)
    assert why in event.why
    assert event.node is None  # its own fault
    assert not jobs.pids(spec)


def test_a_stop_goes_to_the_whole_group_and_lets_it_clean_up(jobs: LocalJobs) -> None:
    script = "trap 'echo cleaned; exit 0' TERM; sleep 100 & echo ready; wait"
    spec = jobs.run("clean", ["sh", "-c", script])
    jobs.said(spec, "ready")
    assert len(jobs.pids(spec)) == 2
    jobs.stop(spec)
    jobs.expect(ev.Stopped, spec)
    assert "cleaned" in jobs.log(spec)
    assert not jobs.pids(spec)


def test_what_a_job_leaves_behind_ends_with_it(jobs: LocalJobs, tmp_path: Path) -> None:
    """A daemon: forked twice, in a session of its own, without our variables; the supervisor still finds it."""
    daemon = "env -i setsid sh -c 'echo $$ > daemon; exec sleep 100' & sleep 0.5"
    spec = jobs.run("daemon", ["sh", "-c", daemon], workdir=str(tmp_path))
    jobs.until((tmp_path / "daemon").exists, "the daemon begins")
    assert jobs.expect(ev.Exited, spec).code == 0
    assert not is_alive(int((tmp_path / "daemon").read_text()))


def test_a_killed_keeper_takes_its_members_along(jobs: LocalJobs) -> None:
    """Members by the kernel, their children by their marks; the attempt counts, for a job may have done it."""
    spec = jobs.run("orphan", ["sh", "-c", "sleep 100 & echo ready; wait"], workers=2)
    jobs.said(spec, "ready", "worker-1")
    jobs.said(spec, "ready", "worker-0")
    assert len(jobs.pids(spec)) == 4
    os.kill(jobs.supervisor_pid(spec), signal.SIGKILL)
    exited = jobs.expect(ev.Exited, spec)
    assert (exited.code, exited.why) == (137, "its supervisor was killed")
    assert not jobs.pids(spec)


def test_a_job_that_kills_its_supervisor_and_removes_its_logs_is_counted(jobs: LocalJobs) -> None:
    script = 'rm -f "$(dirname "${TRAINMASTER_AGENT#unix:}")"/*.log; kill -9 $PPID; sleep 100'
    spec = jobs.run("killer", ["sh", "-c", script])
    assert jobs.expect(ev.Exited, spec).code == 137


def test_a_log_that_grows_fast_and_ends_keeps_to_its_limit(jobs: LocalJobs) -> None:
    spec = jobs.run("loud", ["sh", "-c", "head -c 150000000 /dev/zero | tr '\\0' x; echo end"])
    jobs.expect(ev.Exited, spec)
    log = job_folder(jobs.home, spec.id).run(1).log("worker-0")
    assert log.stat().st_blocks * 512 <= 64 << 20
    assert log.read_bytes().endswith(b"end\n")


def test_a_keeper_killed_while_nobody_looks_is_found_at_the_next_start(jobs: LocalJobs) -> None:
    spec = jobs.run("alone", ["sh", "-c", "sleep 100 & echo ready; wait"])
    jobs.said(spec, "ready")
    jobs.backend.close()
    os.kill(jobs.supervisor_pid(spec), signal.SIGKILL)
    jobs.restart()
    jobs.observe()
    jobs.until(lambda: not jobs.pids(spec), "nothing is left")
    jobs.expect(ev.Stopped, spec)


def test_a_keeper_that_is_told_to_end_ends_its_job_in_order(jobs: LocalJobs) -> None:
    """As at a shutdown of the machine: members may save."""
    spec = jobs.emulate("shutdown", 100000, workers=(1, 2), size=1)
    jobs.expect(ev.Progressed, spec)
    os.kill(jobs.supervisor_pid(spec), signal.SIGTERM)
    stopped = jobs.expect(ev.Stopped, spec)
    assert stopped.work_saved > 0


def test_logs_are_kept_per_attempt(jobs: LocalJobs) -> None:
    for generation in (1, 2):
        spec = jobs.run("logs", ["sh", "-c", "echo $TRAINMASTER_GENERATION; echo err >&2"], generation=generation)
        jobs.expect(ev.Exited, spec)
        assert jobs.log(spec, generation=generation) == f"{generation}\nerr\n"
    assert jobs.log(spec, generation=1) == "1\nerr\n"


def test_a_service_has_its_home_for_itself(jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.backends.local.backend.HOME_PATIENCE_S", 0.05)
    with pytest.raises(InputError, match="in use by another service"):
        LocalJobs(jobs.home)


def test_a_long_home_is_no_obstacle(tmp_path: Path) -> None:
    """Paths of sockets are limited to 107 bytes; homes are not."""
    home = tmp_path / ("long-" * 30)
    home.mkdir()
    jobs = LocalJobs(home)
    spec = jobs.emulate("far", 20, workers=(1, 2), size=2)
    assert jobs.expect(ev.Exited, spec).code == 0
    assert any(isinstance(event, ev.Progressed) for event in jobs.seen)
    jobs.close()


def test_strange_ids_stay_inside_the_home(jobs: LocalJobs) -> None:
    for name in ("../../escape", ".", "a/b", "ü"):
        spec = jobs.run(name, ["true"])
        assert jobs.expect(ev.Exited, spec).code == 0
        assert job_folder(jobs.home, name).run(1).log("worker-0").exists()
    assert sorted(path.name for path in (jobs.home / "jobs").iterdir()) == [
        "%2E", "%2E.%2F..%2Fescape", "%C3%BC", "a%2Fb",
    ]  # fmt: skip


def test_a_long_log_is_bounded_and_its_end_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    lines = b"".join(b"%07d\n" % number for number in range(200_000))
    log.write_bytes(lines)
    supervisor.bound(log, 1 << 20)
    assert log.stat().st_blocks * 512 <= 1 << 20
    with log.open("rb") as stream:
        kept = stream.seek(os.lseek(stream.fileno(), 0, os.SEEK_DATA))
        data = stream.read()
    assert kept + len(data) == len(lines) and lines.endswith(data), "offsets stay as they were"
    assert 1 << 18 < len(data) <= 1 << 20


def test_a_full_disk_is_the_machines_fault_and_passes(jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("trainmaster.backends.local.backend.replace_json", full)
        spec = jobs.run("full", ["true"])
        event = jobs.expect(ev.StartFailed, spec)
        assert "No space left on device" in event.why
        assert event.node == 0  # the engine tries again later, and does not blame the job
    jobs.run("full", ["true"], generation=2)
    jobs.until(lambda: isinstance(jobs.next_event(), ev.Exited), "it runs when there is room")


def test_a_core_slot_is_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without GPUs a worker runs on the core that it was given, and nowhere else."""
    monkeypatch.setattr(machine, "find_gpus", list)
    cluster, slowdown, _ = machine.describe(None)
    events: queue.Queue[ev.Event] = queue.Queue()
    backend = LocalBackend(cluster, tmp_path, LeaseRule(), events.put, lambda: 0, slowdown)
    backend.start()
    last = cluster.total_gpus - 1
    text = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    spec = a_job("core", payload={"command": python(text)})
    backend.perform(Launch(spec.id, 1, 1, devices(1, first=last), spec))
    while not isinstance(events.get(timeout=30), ev.Exited):
        pass
    assert job_folder(tmp_path, "core").run(1).log("worker-0").read_text() == f"[{machine.usable_cores()[last]}] 1\n"
    backend.close()


def test_a_stop_in_the_middle_of_starting_leaves_nothing(jobs: LocalJobs) -> None:
    for number in range(5):
        spec = jobs.run(f"early-{number}", ["sleep", "100"], workers=2)
        jobs.stop(spec)
        jobs.expect(ev.Stopped, spec)
        assert not jobs.pids(spec)


def test_closing_with_the_jobs_ends_them(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path, options=Options(grace_s=1.0))
    spec = jobs.run("last", ["sleep", "100"])
    jobs.expect(ev.Started, spec)
    jobs.backend.close(end_jobs=True)
    assert not jobs.pids(spec)


@pytest.mark.parametrize("record", [None, "{", '{"seq": 1, "spec": 7}'])
def test_an_attempt_without_a_readable_record_stops_no_start(tmp_path: Path, record: str | None) -> None:
    """The service was killed between the folder and what is written into it, or the file is damaged."""
    folder = tmp_path / "jobs" / "torn" / "1"
    folder.mkdir(parents=True)
    if record is not None:
        (folder / "launch.json").write_text(record)
    jobs = LocalJobs(tmp_path, options=Options(kept_beside=lambda *_: 1.0))
    spec = jobs.emulate("after", 5)
    assert jobs.expect(ev.Exited, spec).code == 0
    jobs.close()
