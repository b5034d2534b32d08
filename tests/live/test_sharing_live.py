"""Two jobs on one emulated device: tried, measured, kept or parted, and said. By real processes."""

import sys
from pathlib import Path

import pytest

from support.machine import Machine, until

pytestmark = pytest.mark.slow

TABLE = """model,accelerator,gpus,steps_per_s,other_model,other_steps_per_s
calm,v100,1,20,,
busy,v100,1,20,,
calm,v100,1,18,calm,18
calm,v100,1,9,busy,4
busy,v100,1,10,busy,10
"""
EMULATED = [sys.executable, "-m", "trainmaster.runtime.emulated", "--save-every", "5"]


def submit(machine: Machine, name: str, model: str, *options: object) -> None:
    machine.type("submit", "--name", name, "--model", model, "--speed", "v100=20", "--steps", 4000, "--preemptible",
                 *options, "--", *EMULATED)  # fmt: skip


def shares(machine: Machine, name: str) -> list[dict[str, object]]:
    return machine.json("job", name)["sharing"]


@pytest.fixture
def machine(tmp_path: Path):
    machine = Machine(tmp_path)
    table = tmp_path / "pairs.csv"
    table.write_text(TABLE)
    machine.up("--nodes", "v100:1x1", "--throughputs", str(table), "--policy", "gavel-max-min:space_sharing=true",
               "--round", "12", "--stop-jobs")  # fmt: skip
    try:
        yield machine
    finally:
        machine.down()


def told(machine: Machine) -> list[str]:
    return [entry["text"] for entry in machine.json("events")["events"] if entry["kind"] == "sharing"]


def test_a_good_pair_is_kept(machine: Machine) -> None:
    submit(machine, "one", "calm", "--gpu-memory", "4GiB")
    submit(machine, "two", "calm", "--gpu-memory", "4GiB")
    until(lambda: bool(shares(machine, "one")), "the two to be tried together", 60)
    until(lambda: any(shared["measured"] for shared in shares(machine, "one")), "the pair to be measured", 60)
    kept = shares(machine, "one")[0]["kept"]
    assert isinstance(kept, float) and 0.8 < kept < 1.0, "18 of 20 steps a second"
    assert "keeps" in machine.type("job", "one")
    assert "they go on sharing" in told(machine)[0]


def test_a_bad_pair_is_parted(machine: Machine) -> None:
    submit(machine, "one", "calm", "--gpu-memory", "4GiB")
    submit(machine, "two", "busy", "--gpu-memory", "4GiB")
    until(lambda: any("they are parted" in text for text in told(machine)), "the pair to be judged", 120)
    until(lambda: not shares(machine, "one") and not shares(machine, "two"), "the two to be parted", 60)


def test_of_unknown_memory_nothing_is_tried_and_why_says_so(machine: Machine) -> None:
    submit(machine, "one", "calm", "--gpu-memory", "4GiB")
    submit(machine, "large", "calm", "--gpu-memory", "14GiB")
    submit(machine, "silent", "calm")
    waiting: dict[str, str] = {}

    def said() -> bool:
        for name in ("large", "silent"):
            view = machine.json("job", name)
            if view["state"] == "pending":
                waiting[name] = machine.type("why", name)
            assert not view["sharing"]
        return any("do not fit" in text for text in waiting.values()) and any(
            "--gpu-memory" in text for text in waiting.values()
        )

    until(said, "why to say what keeps them from sharing", 90)
