"""Parts of the local backend that need no processes: names, locks, records, orders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.backends.local import dead_runs
from trainmaster.backends.local import run_folder as layout
from trainmaster.backends.local.devices import Devices
from trainmaster.backends.local.launch_record import LaunchRecord, record_from_json, record_to_json
from trainmaster.backends.local.run_folder import EndRecord, JobLock, end_from_json, end_to_json
from trainmaster.backends.local.site import Options, Site, launch_record, seats_of, slowdown_of
from trainmaster.gang.actions import EXITED, STOPPED, Seat
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.command import Launch
from trainmaster.model.lease import LeaseRule
from trainmaster.testing.builders import a_cluster, a_job, a_node

SEATS = st.builds(
    Seat,
    role=st.sampled_from(["worker", "server"]),
    node=st.sampled_from(["n0", "n1"]),
    devices=st.lists(st.integers(0, 5), max_size=2, unique=True).map(tuple),
)


# -- files -------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=12), unique=True, max_size=6))
def test_folder_names_are_one_safe_component_and_can_be_read_back(ids: list[str]) -> None:
    names = [layout.folder_name(job_id) for job_id in ids]
    assert len(set(names)) == len(ids)
    assert [layout.job_id_of(name) for name in names] == ids
    assert not any("/" in name or "\0" in name or name.startswith(".") or not name for name in names)


def test_of_two_writers_the_first_stays(tmp_path: Path) -> None:
    assert layout.create_json(tmp_path / "x", {"n": 1})
    assert not layout.create_json(tmp_path / "x", {"n": 2})
    assert layout.read_json(tmp_path / "x") == {"n": 1}
    assert os.listdir(tmp_path) == ["x"]
    (tmp_path / "x").write_text("torn{")
    assert layout.read_json(tmp_path / "x") is None


@given(st.lists(SEATS, max_size=4).map(tuple), st.text(max_size=5), st.integers(0, 99))
def test_records_survive_their_files(seats: tuple[Seat, ...], word: str, seq: int) -> None:
    record = LaunchRecord("j", 3, seq, seats, ("cmd", word), "t", env={"A": word})
    data = json.loads(json.dumps({**record_to_json(record), "more": 1}))
    assert record_from_json(data) == record
    end = EndRecord(EXITED, -9, word, True, 1.0, 2.0, seq)
    assert end_from_json(json.loads(json.dumps(end_to_json(end)))) == end


# -- the lock ----------------------------------------------------------------------------------------------

HOLD = "import sys, time; from pathlib import Path; from trainmaster.backends.local.run_folder import JobLock; "
HOLD += "l = JobLock.take(Path(sys.argv[1])); l.record(7); print('held', flush=True); time.sleep(60)"


def test_the_lock_falls_with_its_holder_and_remembers_the_generation(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert JobLock.take(path) is None
        holder.kill()
    lock = JobLock.take(path, patience_s=2.0)
    assert lock is not None
    assert lock.generation == 7
    lock.record(123)
    assert lock.generation == 123
    lock.release()


# -- orders ------------------------------------------------------------------------------------------------


def site(devices: Devices | None = None, slowdown: dict[str, float] | None = None, nodes: str = "v100=4x4") -> Site:
    return Site(a_cluster(nodes), devices or Devices(), slowdown or {}, LeaseRule(), Options())


def test_real_gpus_are_shown_in_the_order_of_local_ranks() -> None:
    real = site(Devices(gpu_index=((4, 5, 6, 7),)))
    spec = a_job("j", gpus=4, gpus_each=2)
    slots = seats_of(real, spec, Allocation(0, (Part(0, 2, 0, (0, 1, 2, 3)),)))
    assert [slot.devices for slot in slots] == [(0, 1), (2, 3)]
    assert [slot.env["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["4,5,6,7"] * 2
    assert slots[0].env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    without = seats_of(real, a_job("c", gpus_each=0), Allocation(-1, (Part(0, 1, 0, ()),)))
    assert without[0].env["CUDA_VISIBLE_DEVICES"] == ""  # a job without GPUs sees none


def test_cores_are_bound_one_to_a_slot() -> None:
    real = site(Devices(core=((10, 11, 12, 13),)), nodes="cpu=4x4")
    slots = seats_of(real, a_job("j", gpus=2), Allocation(0, (Part(0, 2, 0, (1, 3)),)))
    assert [slot.cpus for slot in slots] == [(11,), (13,)]
    assert [slot.cpus for slot in seats_of(site(), a_job("j"), Allocation(0, (Part(0, 1, 0, (1,)),)))] == [()]


def test_members_are_counted_within_their_role_and_node() -> None:
    spec = a_job("j", gpus=3, servers=(2, 2))
    slots = seats_of(site(nodes="v100=4x2"), spec, Allocation(0, (Part(0, 2, 1, (0, 1)), Part(1, 1, 1, (1,)))))
    assert [(s.role, s.node, s.group_rank, s.local_rank, s.local_size, s.devices) for s in slots] == [
        ("worker", "v100-0", 0, 0, 2, (0,)), ("worker", "v100-0", 0, 1, 2, (1,)), ("server", "v100-0", 0, 0, 1, ()),
        ("worker", "v100-1", 1, 0, 1, (1,)), ("server", "v100-1", 1, 0, 1, ()),
    ]  # fmt: skip


def test_emulated_types_slow_a_job_down_by_its_own_declared_speeds_first() -> None:
    cluster = [a_node("a", 2, "v100"), a_node("b", 2, "k80")]
    emulated = replace(site(slowdown={"v100": 1.0, "k80": 5.0}), cluster=a_cluster(cluster))
    plain, declared = a_job("j"), a_job("j", speeds={"v100": 30.0, "k80": 10.0})
    assert slowdown_of(emulated, plain, "k80") == 5.0
    assert slowdown_of(emulated, declared, "k80") == pytest.approx(3.0)
    assert slowdown_of(emulated, declared, "v100") == 1.0
    assert slowdown_of(site(), declared, "v100") is None  # real devices need no emulation


def test_ours_wins_over_what_a_user_sets() -> None:
    payload = {"command": ["x"], "env": {"TRAINMASTER_JOB_ID": "forged", "FREE": "1"}, "array_index": 4, "grace_s": 3}
    spec = a_job("j", payload=payload)
    allocation = Allocation(0, (Part(0, 1, 0, (0,)),))
    record = launch_record(site(), Launch(spec.id, 2, 9, allocation, spec), Path("checkpoints"), "secret")
    assert record.env["TRAINMASTER_JOB_ID"] == "j"
    assert (record.env["FREE"], record.env["TRAINMASTER_ARRAY_INDEX"], record.grace_s) == ("1", "4", 3.0)
    assert "TRAINMASTER_EMULATED_SLOWDOWN" not in record.env


@pytest.mark.parametrize("payload", [{}, {"command": "ls"}, {"command": ["x"], "env": {"A=B": "1"}}, {"command": [1]}])
def test_an_impossible_payload_is_refused(payload: dict[str, object]) -> None:
    spec = a_job("j", payload=payload)
    allocation = Allocation(0, (Part(0, 1, 0, (0,)),))
    with pytest.raises(ValueError):
        launch_record(site(), Launch(spec.id, 1, 1, allocation, spec), Path("c"), "t")


# -- dead supervisors ------------------------------------------------------------------------------------------


def _dead(tmp_path: Path, workers: int) -> tuple[layout.JobFolder, layout.RunFolder]:
    job = layout.job_folder(tmp_path, "j")
    run = job.run(4)
    run.path.mkdir(parents=True)
    slots = tuple(Seat("worker", "n0", devices=(i,)) for i in range(workers))
    layout.replace_json(run.launch, record_to_json(LaunchRecord("j", 4, 11, slots, ("x",), "t")))
    layout.replace_json(job.work, {"saved": 6.5})
    return job, run


@pytest.mark.parametrize(("codes", "kind"), [([0, 0], EXITED), ([0, 1], STOPPED), ([0], STOPPED), ([], STOPPED)])
def test_a_dead_keepers_job_succeeded_only_if_every_worker_had(tmp_path: Path, codes: list[int], kind: str) -> None:
    job, run = _dead(tmp_path, workers=2)
    for number in range(2):
        run.log(f"worker-{number}").touch()
    for number, code in enumerate(codes):
        layout.replace_json(run.exit_record(f"worker-{number}"), {"code": code, "why": ""})
    outcome = dead_runs.find_end(job, run)
    assert outcome is not None
    assert (outcome.kind, outcome.work_saved, outcome.seq) == (kind, 6.5, 11)
    assert dead_runs.find_end(job, run) == outcome  # it is written down


@pytest.mark.parametrize(("witnessed", "kind"), [(True, EXITED), (False, STOPPED)])
def test_a_keeper_that_dies_while_the_service_looks_on_costs_an_attempt(
    tmp_path: Path, witnessed: bool, kind: str
) -> None:
    """Also when the job has removed its logs: the lock knows that it began."""
    job, run = _dead(tmp_path, workers=1)
    lock = JobLock.take(job.lock)
    assert lock is not None
    lock.record(run.generation)
    lock.release()
    outcome = dead_runs.find_end(job, run, witnessed)
    assert outcome is not None
    assert (outcome.kind, outcome.code != 0) == (kind, witnessed)


def test_a_keeper_that_lives_is_not_buried_and_one_that_comes_late_is_fenced(tmp_path: Path) -> None:
    job, run = _dead(tmp_path, workers=1)
    lock = JobLock.take(job.lock)
    assert lock is not None
    assert dead_runs.find_end(job, run) is None
    lock.release()
    outcome = dead_runs.find_end(job, run)
    assert outcome is not None and not outcome.started
    supervisor = [sys.executable, "-m", "trainmaster.backends.local.supervisor", str(run.path)]
    assert subprocess.run(supervisor).returncode == 1
    assert not run.log("worker-0").exists()
    assert dead_runs.end_of(run) == outcome


def test_an_older_generation_than_the_lock_knows_never_begins(tmp_path: Path) -> None:
    job, run = _dead(tmp_path, workers=1)
    lock = JobLock.take(job.lock)
    assert lock is not None
    lock.record(5)
    lock.release()
    supervisor = [sys.executable, "-m", "trainmaster.backends.local.supervisor", str(run.path)]
    assert subprocess.run(supervisor).returncode == 1
    outcome = dead_runs.end_of(run)
    assert outcome is not None
    assert (outcome.kind, outcome.why) == (STOPPED, "superseded")
