"""A service of root runs jobs as their users' accounts: a job reaches neither the token nor another job's files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support import ROOT
from support.machine import Machine, until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as others")]

ANN_TOKEN, BOB_TOKEN = "ann-0123456789abcdef", "bob-0123456789abcdef"
ANN, BOB, OWNER = 61_001, 61_002, 61_003


class SharedMachine(Machine):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.home.mkdir(mode=0o700)
        self.private("tokens", f"user ann {ANN_TOKEN}\nuser bob {BOB_TOKEN}\n")
        self.private("accounts", f"ann {ANN}\nbob {BOB}:{BOB}\nowner {OWNER}\n")

    def private(self, name: str, text: str) -> None:
        (self.home / name).write_text(text)
        (self.home / name).chmod(0o600)

    def acting_as(self, token: str, *arguments: object) -> str:
        ours = self.environment
        url = (self.home / "address").read_text().strip()
        self.environment = {**ours, "TRAINMASTER_URL": url, "TRAINMASTER_TOKEN": token}
        try:
            return self.type(*arguments)
        finally:
            self.environment = ours

    def log_of(self, name: str) -> str:
        self.until_state(name, "finished", "failed")
        return self.type("logs", name)


@pytest.fixture
def machine() -> Iterator[SharedMachine]:
    # Folders of pytest are closed to other accounts, as those of root are.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o711)
    machine = SharedMachine(folder)
    machine.environment["A_SECRET_OF_THE_SERVICE"] = "s3cret"
    yield machine
    machine.down()
    shutil.rmtree(folder)


PROBE = """
id -u; id -g; id -G; umask; echo "HOME=$HOME"; env | grep -c A_SECRET
for path in {paths}; do cat $path 2>/dev/null && echo "READ $path"; done
ls {home} {home}/jobs {home}/checkpoints 2>/dev/null && echo LISTED
for path in {home}/x {home}/jobs/x {home}/checkpoints/x {home}/jobs/job-1/x {home}/checkpoints/job-1/x; do
  (echo planted > $path) 2>/dev/null && echo "WROTE $path"
done
echo mine > $TRAINMASTER_CHECKPOINT_DIR/mine && echo "SAVED"
kill -9 $PPID 2>/dev/null && echo "KILLED $PPID"
echo done
"""


def test_jobs_run_as_their_users_and_reach_nothing_of_others(machine: SharedMachine) -> None:
    machine.up("--nodes", "v100=4x4")
    home = machine.home
    secret = "env of ann"
    machine.acting_as(
        ANN_TOKEN, "submit", "--gpus", 1, "--name", "anns", "--env", f"SECRET={secret}", "--",
        "sh", "-c", "echo said by ann; echo weights > $TRAINMASTER_CHECKPOINT_DIR/weights; sleep 600",
    )  # fmt: skip
    weights = home / "checkpoints" / "job-1" / "weights"
    until(weights.exists, "ann's job to save", 60)
    assert secret in (home / "jobs" / "job-1" / "1" / "launch.json").read_text()
    paths = [
        *(home / name for name in ("token", "tokens", "accounts", "trainmaster.db", "trainmaster.db-wal", "logs/*")),
        *(home / "jobs" / "job-1" / "1" / name for name in ("launch.json", "worker-0.log", "keeper.txt")),
        home / "jobs" / "job-1" / "lock", weights, home / "jobs" / "job-2" / "1" / "launch.json",
    ]  # fmt: skip
    probe = PROBE.format(paths=" ".join(map(str, paths)), home=home)
    machine.acting_as(BOB_TOKEN, "submit", "--gpus", 1, "--name", "bobs", "--", "sh", "-c", probe)
    said = machine.log_of("bobs").splitlines()
    assert said == [str(BOB)] * 3 + ["0022", "HOME=/", "0", "SAVED", "done"], said
    assert (home / "checkpoints" / "job-2" / "mine").stat().st_uid == BOB
    assert sorted(entry.name for entry in (home / "checkpoints" / "job-1").iterdir()) == ["weights"]

    machine.type("submit", "--gpus", 1, "--name", "owners", "--", "id", "-u")
    assert machine.log_of("owners").split() == [str(OWNER)], "not root, although the service is"
    view = json.loads(machine.acting_as(BOB_TOKEN, "job", "anns", "-o", "json"))
    assert secret not in json.dumps(view)
    machine.type("cancel", "anns")
    assert machine.until_state("anns", "cancelled")


def _python() -> str:
    """One that accounts may run: that of root's own folder is closed to them."""
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, "-c", "import trainmaster.runtime.emulated"]
        environment = {"PYTHONPATH": str(ROOT / "src")}
        with suppress(OSError):
            if not subprocess.run(command, user=ANN, env=environment, capture_output=True, check=False).returncode:
                return python
    pytest.skip("no Python here that another account may run")


def test_an_elastic_job_of_an_account_speaks_to_its_supervisor_and_saves(machine: SharedMachine) -> None:
    machine.up("--nodes", "v100=4x4")
    machine.acting_as(
        ANN_TOKEN, "submit", "--gpus", 2, "--name", "elastic", "--steps", 60, "--",
        _python(), "-m", "trainmaster.runtime.emulated", "--steps", "60", "--save-every", "5", "--tick-s", "0.02",
    )  # fmt: skip
    view = machine.until_state("elastic", "finished", "failed")
    assert view["state"] == "finished", machine.type("logs", "elastic")
    assert view["progress"]["work_done"] == 60
    assert {path.stat().st_uid for path in (machine.home / "checkpoints" / "job-1").iterdir()} == {ANN}


def test_a_snapshot_is_read_as_the_account_and_may_be_written_beside(machine: SharedMachine) -> None:
    machine.up("--nodes", "v100=4x4")
    machine.work.chmod(0o755)
    (machine.work / "say").write_text("old")
    say = ("--", "sh", "-c", "cat say; echo x > new && cat new; echo x > say; cat ../../job-1/lock ../../../token")
    machine.acting_as(ANN_TOKEN, "submit", "--snapshot", "--name", "anns", *say)
    assert machine.log_of("anns").startswith("oldx\n")
    assert (machine.home / "jobs" / "job-1" / "work" / "say").read_text() == "old"
    (machine.work / "secret").write_text("of root")
    (machine.work / "secret").chmod(0o600)
    with pytest.raises(AssertionError, match="Permission denied"):
        machine.acting_as(ANN_TOKEN, "submit", "--snapshot", *say)
    assert not any(
        path.read_bytes() == b"of root" for path in (machine.home / "snapshots").rglob("*") if path.is_file()
    )


def test_a_working_directory_is_entered_with_the_rights_of_the_account(machine: SharedMachine) -> None:
    closed = machine.home.parent / "closed"
    closed.mkdir(mode=0o700)
    machine.up("--nodes", "v100=4x4")
    machine.acting_as(
        ANN_TOKEN, "submit", "--gpus", 1, "--name", "inside", "--max-attempts", 1, "--workdir", str(closed), "--", "ls"
    )
    assert machine.until_state("inside", "failed", "finished")["state"] == "failed"
    assert "cannot enter the working directory" in machine.type("logs", "inside")
