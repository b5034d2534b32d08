"""The first hour of a new user, shortened: the commands in the order in which one types them, with real processes on an
empty home. Every answer is compared with what is so."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from support.machine import Machine, until

pytestmark = pytest.mark.slow

READY_S, ANSWER_S = 30.0, 15.0
"""Three seconds and one on a quiet machine; these bounds hold on a busy one, and fail on what used to take minutes."""
STEPS = """
import time
from trainmaster import runtime
with runtime.session() as session:
    session.restore()
    for step in session.steps(100000, state=lambda: 0, save_every=5):
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    here = Machine(tmp_path_factory.mktemp("first"))
    here.environment["XDG_CACHE_HOME"] = str(here.work / "cache")
    begun = time.monotonic()
    here.up("--nodes", "v100:1x4")
    here.ready_s = time.monotonic() - begun  # type: ignore[attr-defined]
    yield here
    for job in here.json("queue")["jobs"]:
        here.start("cancel", job["id"]).wait(60)
    until(lambda: here.json("queue")["total"] == 0, "all jobs to end", 60)
    here.down()


def _submit(machine: Machine, *words: object) -> str:
    return machine.type("submit", *words).split()[-1]


def test_the_service_is_ready_soon_and_says_what_it_has(machine: Machine) -> None:
    assert machine.ready_s < READY_S  # type: ignore[attr-defined]
    assert "v100:1x4" in machine.type("queue")
    assert [node["gpus"] for node in machine.json("nodes")] == [4]


def test_options_that_cannot_be_honoured_are_refused_at_once(machine: Machine) -> None:
    assert "--gpus" in machine.type("submit", "--gpu", "2", "--", "true", code=2)
    assert "not found" in machine.type("submit", "--", "./no-such-program", code=2)
    assert "a worker with 900 CPUs never fits" in machine.type("submit", "--cpus", "900", "--", "true", code=2)
    assert machine.json("queue", "--all")["total"] == 0


def test_a_job_that_fails_says_why_and_what_to_do(machine: Machine) -> None:
    (machine.work / "broken.py").write_text("import os\nif os.environ['RANK'] == '1':\n    import nowhere_at_all\n")
    told = machine.type("run", "--gpus", "2", "--", sys.executable, "broken.py", code=1)
    assert "ModuleNotFoundError: No module named 'nowhere_at_all'" in told
    assert "hint: the job's Python has no module 'nowhere_at_all'" in told
    view = machine.json("queue", "--all")["jobs"][-1]
    assert (view["state"], view["exit"].split(" (")[0]) == ("failed", "exit 1")
    assert "broken.py" in view["output"]
    shown = machine.type("job", view["id"])
    assert "import nowhere_at_all" in shown and "hint" in shown
    assert "No module named" in machine.type("events", "--job", view["id"])


@pytest.mark.parametrize(
    ("limit", "script", "told"),
    [
        (("--time", "2s"), "import time; time.sleep(600)", "stopped at its limit: --time 2 s is used up"),
        (("--memory", "150M"), "x = bytearray(400 << 20); import time; time.sleep(600)", "its limit is 150 MiB"),
    ],
)
def test_limits_end_a_job_with_their_reason(machine: Machine, limit: tuple[str], script: str, told: str) -> None:
    job = _submit(machine, *limit, "--max-attempts", "1", "--", sys.executable, "-c", script)
    view = machine.until_state(job, "failed", "finished", "cancelled")
    assert view["state"] == "failed"
    assert told in view["exit"]


def test_progress_is_what_was_reported_and_plain_jobs_are_not_preempted(machine: Machine) -> None:
    (machine.work / "steps.py").write_text(STEPS)
    plain = _submit(machine, "--name", "plain", "--gpus", "2", "--", "sleep", "600")
    saves = _submit(machine, "--name", "saves", "--", sys.executable, "steps.py")
    machine.until_state(plain, "running")
    until(lambda: machine.json("job", saves)["progress"]["work_done"] >= 5, "steps to be reported", 60)
    shown = machine.json("job", saves)["progress"]
    assert shown["rate"] > 0 and shown["age_s"] is not None
    assert machine.json("job", plain)["progress"]["age_s"] is None
    waits = _submit(machine, "--name", "waits", "--gpus", "4", "--", "true")
    why = machine.json("why", waits)
    assert {job for job, _ in why["holders"]} == {plain, saves}
    assert "What would start it" in machine.type("why", "waits")
    for policy in ("gavel-max-min", "srtf", "las", "fifo"):
        begun = time.monotonic()
        assert machine.json("policy", policy)["policy"] == policy
        machine.json("queue")
        assert time.monotonic() - begun < ANSWER_S, f"{policy} froze the service"
    views = {view["name"]: view for view in machine.json("queue")["jobs"]}
    assert (views["plain"]["state"], views["plain"]["attempts"], views["plain"]["preemptions"]) == ("running", 1, 0)
    machine.type("cancel", plain, saves, waits)
    machine.until_state(saves, "cancelled")


def test_what_if_answers_and_changes_nothing(machine: Machine) -> None:
    job = _submit(machine, "--name", "long", "--steps", "1000", "--speed", "v100=1", "--", "sleep", "600")
    machine.until_state(job, "running")
    assert "later" in machine.type("whatif", "--add-job", "4:1h")
    assert machine.json("job", job)["state"] == "running"
    machine.type("edit", job, "--priority", "7", "--time", "1h")
    assert machine.json("job", job)["request"]["priority"] == 7
    assert "time limit" in machine.type("job", job)
    machine.type("edit", job, "--time", "1s")
    assert "--time 1 s is used up" in machine.until_state(job, "failed")["exit"]


def test_an_elastic_job_takes_idle_gpus_gives_them_back_and_is_resized_without_a_restart(machine: Machine) -> None:
    program = (sys.executable, "-m", "trainmaster.runtime.emulated", "--steps", "1e9")

    def has(workers: int) -> None:
        def there() -> bool:
            view = machine.json("job", job)
            return sum(place["workers"] for place in view["allocation"]) == workers and view["phase"] == "running"

        until(there, f"the elastic job to have {workers} workers", 60)

    rigid = _submit(machine, "--gpus", "3", "--", "sleep", "600")
    job = _submit(machine, "--name", "elastic", "--elastic", "1..4", "--", *program)
    has(1)  # with what fits
    machine.type("cancel", rigid)
    has(4)  # idle ones are offered
    other = _submit(machine, "--gpus", "2", "--", "sleep", "600")
    machine.until_state(other, "running")
    has(2)  # taken back
    machine.type("cancel", other)
    has(4)
    machine.type("resize", job, "1")
    has(1)
    machine.type("resize", job, "3")
    has(3)
    view = machine.json("job", job)
    assert (view["state"], view["attempts"], view["preemptions"]) == ("running", 1, 0)
    before = view["progress"]["work_done"]
    until(lambda: machine.json("job", job)["progress"]["work_done"] > before > 0, "steps after the last resize", 60)
    machine.type("cancel", job)
    machine.until_state(job, "cancelled")
