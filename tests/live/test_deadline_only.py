"""Jobs that declare a deadline and nothing else, as a user types them: noted, then a promise; the size is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import Machine, until

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).resolve().parent / "programs" / "paced_training.py"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    found.up("--nodes", "v100=2x1", "--policy", "deadline", "--stop-jobs")
    yield found
    found.down()


def answer(machine: Machine, job: str) -> dict[str, str]:
    return machine.json("job", job)["deadline_answer"] or {"answer": "", "text": ""}


def test_an_elastic_job_is_noted_probed_and_promised(machine: Machine) -> None:
    process = machine.start("submit", "--deadline", "300s", "--name", "a", "--", sys.executable, PROGRAM, machine.work)
    out, err = process.communicate(timeout=60)
    job = out.strip()
    assert f"{job}: deadline noted; a promise follows when its speed is measured" in err
    until(lambda: answer(machine, "a")["answer"] == "promised", "a promise", 120)
    view = machine.json("job", "a")
    assert view["progress"]["work_total"] == 480, "as its script says"
    assert (view["request"]["workers"]["min"], view["request"]["workers"]["max"]) == (1, 2), "what the cluster has"
    assert view["deadline_answer"]["text"].startswith("deadline promised: planned to finish ")
    assert "deadline promised" in machine.type("job", "a")
    assert "deadline promised" in machine.type("why", "a")
    told = [event["text"] for event in machine.json("events", "--job", "a")["events"] if event["kind"] == "deadline"]
    assert [text.split(";")[0].split(":")[1].strip() for text in told][:1] == ["deadline noted"]
    assert "deadline promised" in told[-1]
    (machine.work / "fast").touch()
    assert machine.until_state("a", "finished")["attempts"] == 1


def test_a_plain_command_is_promised_by_its_limit_or_by_jobs_like_it(machine: Machine) -> None:
    plain = ("--", "sleep", "3")
    machine.type("submit", "--deadline", "60s", "--name", "first", *plain)
    assert answer(machine, "first")["answer"] == "noted"
    assert machine.json("job", "first")["request"]["workers"]["max"] == 1, "a plain command keeps its size"
    machine.type("submit", "--deadline", "60s", "--time", "20s", "--name", "limited", "--", "sleep", "4")
    assert answer(machine, "limited")["answer"] == "promised"
    machine.until_state("first", "finished")
    machine.type("submit", "--deadline", "60s", "--name", "again", *plain)
    assert answer(machine, "again")["answer"] == "promised"
    assert machine.until_state("again", "finished")["slack_s"] > 0
