"""What this machine is found to offer: GPUs, cores, or nodes as declared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.backends.local import devices as machine
from trainmaster.backends.local.nvml import Gpu, ask_gpus, find_gpus
from trainmaster.estimate.accelerators import find_accelerator
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.errors import InputError

GPUS = [Gpu(i, "NVIDIA A100-SXM4-80GB", f"GPU-{i}{i}", 81920) for i in range(3)] + [Gpu(3, "Tesla T4", "GPU-t", 15360)]


def test_declared_nodes_are_emulated_and_slower_than_the_fastest() -> None:
    cluster, slowdown, emulated = machine.describe("v100=4x2,k80=2x2,made-up=1", find_accelerator)
    assert emulated
    assert cluster.describe() == "k80=2x2,made-up=1x1,v100=4x2"
    assert slowdown["v100"] == slowdown["made-up"] == 1.0
    assert 3 < slowdown["k80"] < 10  # measured ratios of training jobs lie there
    assert machine.real_devices(cluster, emulated) == machine.Devices()
    with pytest.raises(InputError):
        machine.describe("v100=")


def test_cores_are_slots_when_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_gpus", list)
    cluster, slowdown, emulated = machine.describe(None)
    assert (slowdown, emulated, cluster.types) == ({}, False, ("cpu",))
    cores = sorted(os.sched_getaffinity(0))
    assert cluster.total_gpus == len(machine.usable_cores()) <= len(cores)
    assert machine.real_devices(cluster, emulated).core == (tuple(cores[: cluster.total_gpus]),)


def test_slots_without_cores_of_their_own_are_bound_to_none() -> None:
    cluster, _, _ = machine.describe(f"cpu={os.cpu_count() or 1}00")
    assert machine.real_devices(cluster, emulated=False) == machine.Devices()


def test_real_gpus_become_a_node_per_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_gpus", lambda: GPUS)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cluster, slowdown, emulated = machine.describe(None, find_accelerator)
    assert (slowdown, emulated) == ({}, False)
    assert [(node.accelerator, node.gpus) for node in cluster.nodes] == [("a100-80gb", 3), ("t4", 1)]
    assert machine.real_devices(cluster, emulated, find_accelerator).gpu_index == ((0, 1, 2), (3,))
    plain, _, _ = machine.describe(None)  # without facts: the full name, in a form that can be typed
    assert plain.types == ("a100-sxm4-80gb", "t4")
    assert machine.real_devices(plain, False).gpu_index == ((0, 1, 2), (3,))


@pytest.mark.parametrize(
    ("shown", "indices"), [(None, [0, 1, 2, 3]), ("2,0", [2, 0]), ("", []), ("1,9,2", [1]), ("GPU-22,GPU-t", [2, 3])]
)
def test_only_gpus_left_to_the_service_are_offered(shown: str | None, indices: list[int]) -> None:
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    assert [gpu.index for gpu in machine.visible_gpus(environment, GPUS)] == indices


def test_no_driver_means_no_gpus() -> None:
    assert ask_gpus() is None and find_gpus() == []


FAKE_NVML = r"""
#include <string.h>
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
static int handles[3] = {0, 1, 2};
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &handles[i]; return i == 1 ? 15 : 0; }
int nvmlDeviceGetName(void *h, char *name, unsigned n) { strncpy(name, "NVIDIA H100 80GB HBM3", n); return 0; }
int nvmlDeviceGetUUID(void *h, char *id, unsigned n) { strncpy(id, *(int *)h ? "GPU-b" : "GPU-a", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) { m[0] = 80ull << 30; m[1] = m[2] = 0; return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for a stand-in of the driver's library")
def test_the_drivers_library_is_asked_as_its_header_says(tmp_path: Path) -> None:
    """A stand-in with the library's signatures; the second of its GPUs has fallen off the bus."""
    (tmp_path / "nvml.c").write_text(FAKE_NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")], check=True)
    program = "from trainmaster.backends.local.nvml import find_gpus; print(find_gpus())"
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    assert found.strip() == repr(
        [Gpu(0, "NVIDIA H100 80GB HBM3", "GPU-a", 81920), Gpu(2, "NVIDIA H100 80GB HBM3", "GPU-b", 81920)]
    )


def test_emulated_slots_are_slowed_until_the_cores_can_bear_them_all() -> None:
    cluster = parse_cluster("v100=2x2,k80=2x2")
    crowded = machine.crowding(cluster, {"v100": 1.0, "k80": 4.0}, cores=2)
    assert crowded == pytest.approx(machine.OVERHEAD * 2.5 / 2)
    assert machine.crowding(cluster, {"v100": 1.0, "k80": 4.0}, cores=8) == 1.0
    assert machine.crowding(cluster, {}, cores=1) == 1.0, "real devices are as fast as they are"
