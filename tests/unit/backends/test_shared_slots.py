"""Jobs on one emulated device slow each other, by the truth of the emulation, while they are there."""

import json
from pathlib import Path

from trainmaster.backends.local.run_folder import RunFolder
from trainmaster.backends.local.shared_slots import SharedSlots
from trainmaster.estimate.catalogue import Entry, TableCatalogue
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.model.allocation import Allocation, Part
from trainmaster.runtime.process_env import read_process_env
from trainmaster.testing.builders import a_cluster, a_job

TABLE = TableCatalogue(
    "pairs",
    [
        Entry("A", 1, "v100", False, 10.0),
        Entry("B", 1, "v100", False, 20.0),
        Entry("A", 1, "v100", False, 9.0, "measured", "B", 1, 14.0),
    ],
)
CLUSTER = a_cluster("v100=2x2")
HALF, WHOLE = 500, 1000


def on(device: int, share_milli: int) -> Allocation:
    return Allocation(0, (Part(0, 1, 0, (device,)),), share_milli)


class World:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.slots = SharedSlots(CLUSTER, PairSlowdowns(TABLE).kept_beside)

    def folder(self, name: str) -> RunFolder:
        folder = RunFolder(self.home / name / "1")
        folder.path.mkdir(parents=True, exist_ok=True)
        return folder

    def keeps(self, name: str) -> float:
        """As a member of the job finds it."""
        place = read_process_env({"TRAINMASTER_EMULATED_SHARING": str(self.folder(name).sharing)})
        return round(place.kept_beside_others(), 6)


def test_two_jobs_on_one_device_keep_what_the_pair_keeps_until_one_goes(tmp_path: Path) -> None:
    world = World(tmp_path)
    a, b = a_job("a", model="A"), a_job("b", model="B")
    world.slots.placed(world.folder("a"), a, on(0, WHOLE))
    assert world.keeps("a") == 1.0
    world.slots.placed(world.folder("a"), a, on(0, HALF))
    world.slots.placed(world.folder("b"), b, on(0, HALF))
    assert (world.keeps("a"), world.keeps("b")) == (0.9, 0.7)
    world.slots.ended("b")
    assert world.keeps("a") == 1.0


def test_who_is_on_another_device_or_asked_for_a_part_is_not_slowed(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name, device in (("a", 0), ("b", 1)):
        world.slots.placed(world.folder(name), a_job(name, model=name.upper()), on(device, HALF))
    for name in ("c", "d"):
        world.slots.placed(world.folder(name), a_job(name, gpus=0.5), on(0, HALF))
    assert [world.keeps(name) for name in "abcd"] == [1.0] * 4


def test_unknown_pairs_take_turns_and_a_new_service_knows_who_shares(tmp_path: Path) -> None:
    before = World(tmp_path)
    x, y = a_job("x", model="X"), a_job("y", model="A")
    for job in (x, y):
        before.slots.placed(before.folder(job.id), job, on(1, HALF))
    after = World(tmp_path)
    for job in (x, y):
        after.slots.adopted(after.folder(job.id), job)
    assert (after.keeps("x"), after.keeps("y")) == (0.5, 0.5)
    after.slots.ended("x")
    assert after.keeps("y") == 1.0


def test_a_damaged_file_slows_nobody(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.folder("a").sharing.write_text(json.dumps({"devices": [[9, 0], "x", [True, 1]], "keeps": "much"}))
    assert world.keeps("a") == 1.0
    world.slots.adopted(world.folder("a"), a_job("a"))
