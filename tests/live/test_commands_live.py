"""Every live command against a real service with real processes, as a user types them from an empty folder."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import Machine, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    here = Machine(tmp_path_factory.mktemp("live"))
    here.up()
    yield here
    for job in here.json("queue")["jobs"]:
        here.start("cancel", job["id"]).wait(60)
    until(lambda: here.json("queue")["total"] == 0, "all jobs to end", 60)
    here.down()


def test_the_log_says_which_policy_decides(machine: Machine) -> None:
    told = [json.loads(line) for line in (machine.home / "logs" / "service.log").read_text().splitlines()]
    assert next(line["policy"] for line in told if line["event"] == "ready") == "fifo"


def test_a_new_users_first_minutes(machine: Machine) -> None:
    assert {node["accelerator"] for node in machine.json("nodes")} == {"v100", "k80"}
    assert "no jobs" in machine.type("queue")
    (machine.work / "train.py").write_text("import os, sys\nprint('rank', os.environ['RANK'], *sys.argv[1:])\n")
    evil = "$(touch owned); `touch owned` | & ; > owned \x1b[31m"
    job = machine.type("submit", "--name", "first", "--", sys.executable, "train.py", evil).splitlines()[-1]
    view = machine.until_state(job, "finished", "failed")
    assert (view["state"], view["exit"], view["attempts"]) == ("finished", "exit 0", 1)
    log = machine.type("logs", "first")
    assert log.startswith("rank 0 $(touch owned)")
    assert "\x1b" not in log and "\x1b" not in machine.type("job", "first")
    assert evil in machine.type("logs", "first", "--raw")
    assert not (machine.work / "owned").exists()
    kinds = [event["kind"] for event in machine.json("events", "--job", "first")["events"]]
    assert kinds[0] == "submitted" and kinds[-1] == "finished"
    assert machine.json("queue", "--all")["total"] == 1
    assert "0 errors" in machine.type("doctor")


def test_run_ends_with_the_programs_code_and_log(machine: Machine) -> None:
    process = machine.start("run", "--gpus", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE; exit 7")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 7
    lines = set(out.splitlines())  # one rank may end the gang before the other has spoken
    assert lines <= {"worker-0 | rank 0 of 2", "worker-1 | rank 1 of 2"}, out
    process = machine.start("run", "--", "sh", "-c", "echo done")
    assert process.communicate(timeout=120)[0] == "done\n"
    assert process.returncode == 0
    assert "no-such-program" in machine.type("run", "--", "./no-such-program", code=2)


def test_interrupting_run_ends_the_process_it_started(machine: Machine) -> None:
    mark = machine.work / "pid"
    process = machine.start("run", "--", "sh", "-c", f"echo $$ > {mark}; echo up; exec sleep 600")
    until(lambda: mark.exists() and mark.read_text().strip() != "", "the job to start", 60)
    pid = int(mark.read_text())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "was cancelled" in err
    assert not Path(f"/proc/{pid}").exists()


def test_waiting_why_pause_resume_resize_cancel(machine: Machine) -> None:
    big = [machine.type("submit", "--gpus", "2", "--name", f"big-{n}", "sleep", "600").strip() for n in range(2)]
    for job in big:
        machine.until_state(job, "running")
    last = machine.type("submit", "--gpus", "2", "--name", "last", "--deadline", "2h", "sleep", "600").strip()
    why = machine.json("why", "last")
    assert why["why"] == "capacity" and why["missing_gpus"] == 2 and {job for job, _ in why["holders"]} == set(big)
    assert "What would start it" in machine.type("why", last)
    rows = machine.type("queue").splitlines()
    assert rows[-1].split()[:4] == ["1", last, "last", "pending"]
    assert machine.json("job", last)["slack_s"] > 7000
    assert machine.type("pause", big[0]).startswith(f"{big[0]} (big-0): ")
    machine.until_state(big[0], "paused")
    machine.until_state(last, "running")
    machine.type("cancel", big[1], last)
    machine.until_state(last, "cancelled")
    machine.type("resume", big[0])
    machine.until_state(big[0], "running")
    machine.type("resize", big[0], "1..2")
    assert machine.json("job", big[0])["request"]["workers"] == {"min": 1, "max": 2}
    assert "is over" in machine.type("resume", last, code=1)
    machine.type("cancel", big[0])
    machine.until_state(big[0], "cancelled")


def test_arrays_dependencies_teams_and_files(machine: Machine) -> None:
    (machine.work / "job.yaml").write_text(
        "name: many\ncommand: [sh, -c, 'echo index $TRAINMASTER_ARRAY_INDEX in $TEAM']\n"
        "array: 2\nentity: blue\nenv: {TEAM: blue}\n"
    )
    ids = machine.type("submit", "--file", "job.yaml").split()
    assert len(ids) == 2
    last = machine.type("submit", "--after", ids[0], "--after", ids[1], "true").strip()
    machine.until_state(last, "finished")
    logs = sorted(machine.type("logs", job) for job in ids)
    assert logs == ["index 0 in blue\n", "index 1 in blue\n"]
    team = machine.json("entities", "blue", "--weight", "2", "--quota", "1")
    assert (team["weight"], team["quota_gpus"]) == (2, 1)
    held = [machine.type("submit", "--entity", "blue", "--name", f"q{n}", "sleep", "600").strip() for n in range(2)]
    machine.until_state(held[0], "running")
    assert machine.json("why", held[1])["why"] == "quota"
    machine.type("cancel", *held)
    assert machine.json("entities", "blue", "--quota", "none")["quota_gpus"] is None


def test_the_policy_changes_while_jobs_run(machine: Machine) -> None:
    assert machine.json("policy")["policy"] == "fifo"
    assert machine.json("policy", "srtf")["policy"] == "srtf"
    assert "unknown policy" in machine.type("policy", "nonesuch", code=2)
    machine.type("policy", "fifo")


def test_followers_outlive_a_killed_service(machine: Machine) -> None:
    """`logs -f` waits for the service to come back and goes on; the job does not notice."""
    gate = machine.work / "gate"
    script = f"echo before; until [ -e {gate} ]; do sleep 0.1; done; echo after"
    job = machine.type("submit", "sh", "-c", script).strip()
    machine.until_state(job, "running")
    follower = machine.start("logs", "-f", job)
    time.sleep(1.5)
    machine.down(signal.SIGKILL)
    assert "no service" in machine.type("queue", code=1)
    gate.touch()
    machine.up()
    out, err = follower.communicate(timeout=90)
    assert (follower.returncode, out) == (0, "before\nafter\n"), err
    assert "waiting for it" in err
    view = machine.until_state(job, "finished", "failed")
    assert (view["state"], view["exit"]) == ("finished", "exit 0")
