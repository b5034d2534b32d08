"""Nothing compiles at run time: the service and every policy it can be given do without one."""

from __future__ import annotations

import subprocess
import sys

SERVE = """
import importlib, pkgutil, sys

class NoCompiler:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite", "Cython", "cython", "pyximport"):
            raise ModuleNotFoundError(f"{name} is not there", name=name)

sys.meta_path.insert(0, NoCompiler())
import trainmaster.service, trainmaster.engine, trainmaster.policies, trainmaster.sim, trainmaster.core
for package in (trainmaster.core, trainmaster.engine, trainmaster.policies, trainmaster.sim, trainmaster.service):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)

from trainmaster.model.cluster import parse_cluster
from trainmaster.policies.registry import create, entries
from trainmaster.sim.run import simulate
from trainmaster.testing.builders import a_job

jobs = [a_job(f"j{k}", gpus=1 + k % 2, seconds=40.0, submit_s=float(k)) for k in range(4)]
for name in sorted(entry.name for entry in entries()):
    simulate(jobs, parse_cluster("v100=4x2,k80=2x2"), create(name))
    print(name)
"""


def test_no_compiler_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", SERVE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {"fifo", "gavel-max-min", "oasis", "deadline"} <= set(done.stdout.split())
