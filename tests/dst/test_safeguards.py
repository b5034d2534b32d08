"""Every safeguard of the engine is needed: each is removed from the source in turn, and fault seeds find that out.

The sources run uncompiled from a copy, so that a removed line is gone for compiled callers too. Some rules only meet
plans that no sound policy makes: there a policy breaks them on purpose, and the whole engine refuses what it says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trainmaster

RUN = """
import json, sys
from trainmaster.core.engine import engine_core
from trainmaster.dst.engine import chaos_policy, scenario
from trainmaster.dst.engine.world import run_seed
from trainmaster.engine.engine import Engine
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.snapshot import Snapshot

assert engine_core.__file__.endswith(".py"), engine_core.__file__
careless, seeds = sys.argv[1], range(int(sys.argv[2]), int(sys.argv[3]))
draft, size, step = Snapshot.draft, chaos_policy._size, Engine.step
refused = 0

def crowded(view):
    made = draft(view)
    if view.rng().random() < 0.3:
        made.free_capacity = FreeCapacity.full(view.cluster)
    return made

def outsized(view, row, rng):
    return size(view, row, rng) + int(rng.random() < 0.1)

def forgiving(engine, *arguments):
    global refused
    before = engine.plans_refused
    commands = step(engine, *arguments)
    refused += engine.plans_refused - before
    engine.plans_refused = before
    return commands

if careless:
    scenario.RESTLESS_SHARE, Engine.step = 1.0, forgiving
if careless == "crowded":
    Snapshot.draft = crowded
if careless == "outsized":
    chaos_policy._size = outsized
for seed in seeds:
    outcome = run_seed(seed)
    if outcome.violation:
        break
print(json.dumps({"violation": outcome.violation, "refused": int(refused)}))
"""


@dataclass(frozen=True)
class Safeguard:
    name: str
    file: str
    text: str
    instead: str
    shown_by: str = ""
    """What the world says when it is missing."""
    careless: str = ""
    """How the policy breaks the rule: `crowded` takes devices that others have, `outsized` too many workers; `restless`
    only uses every command."""
    seeds: range = range(60)


SAFEGUARDS = (
    Safeguard(
        "the fence of generations", "core/engine/engine_core.py",
        "jobs.generation[i] == generation and LAUNCHING <= jobs.phase[i]", "LAUNCHING <= jobs.phase[i]",
    ),
    Safeguard(
        "launches wait until devices are physically free", "core/engine/engine_core.py",
        "return fits_gang(e.physical, packed, at, i, e.columns)", "return True",
    ),
    Safeguard(
        "a resize holds the old devices until it is done", "core/engine/engine_core.py",
        "union_gang(jobs.physical, here, packed, at, both)", "union_gang(packed, at, packed, at, both)",
        "device", "restless", range(74, 80),
    ),
    Safeguard(
        "commands without an answer are sent again", "core/engine/engine_core.py",
        "def resend(e: EngineCore) -> None:\n",
        "def resend(e: EngineCore) -> None:\n    return\n\n\ndef _resend(e: EngineCore) -> None:\n",
    ),
    Safeguard(
        "a lost gang waits for the end of its lease", "model/lease.py",
        "return answered_ms + int(self.lease_ms * (1.0 + self.drift)) + self.margin_ms", "return answered_ms",
    ),
    Safeguard(
        "life cycle: a lost job waits until its members are over", "engine/lifecycle.py",
        "_LIVE = {**_ENDS, Trigger.STOP: PhaseCode.STOPPING, Trigger.LOSE: PhaseCode.LOST}",
        "_LIVE = {**_ENDS, Trigger.STOP: PhaseCode.STOPPING, Trigger.LOSE: PhaseCode.PENDING}",
    ),
    Safeguard(
        "life cycle: a stopped job moves on only when it has stopped", "engine/lifecycle.py",
        "_LIVE = {**_ENDS, Trigger.STOP: PhaseCode.STOPPING,", "_LIVE = {**_ENDS, Trigger.STOP: PhaseCode.PENDING,",
    ),
    Safeguard(
        "inventories older than a command do not contradict it", "engine/handlers/inventory.py",
        " and last_seq[job_index] <= event.seen_up_to:", ":",
    ),
    Safeguard(
        "verifier: nobody gets what others have", "core/engine/verify.py",
        "if rule == SOUND and not fits_gang(free, plan.flat, at, i, jobs):", "if False:", "device", "crowded",
    ),
    Safeguard(
        "verifier: gangs have a size that was asked for", "core/engine/verify.py",
        "if not jobs.workers_min[i] <= workers <= jobs.workers_max[i]:", "if False:",
        "gang that it did not ask for", "outsized",
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package without its extension modules."""
    folder = tmp_path_factory.mktemp("sources")
    ignored = shutil.ignore_patterns("*.so", "*.pxd", "_compiled.json", "__pycache__", "static")
    shutil.copytree(Path(trainmaster.__file__).parent, folder / "trainmaster", ignore=ignored)
    return folder


@pytest.fixture
def removed(sources: Path, request: pytest.FixtureRequest) -> Iterator[Safeguard]:
    safeguard: Safeguard = request.param
    path = sources / "trainmaster" / safeguard.file
    whole = path.read_text()
    assert whole.count(safeguard.text) == 1, f"{safeguard.file} says it {whole.count(safeguard.text)} times"
    path.write_text(whole.replace(safeguard.text, safeguard.instead))
    yield safeguard
    path.write_text(whole)


def run(sources: Path, careless: str, seeds: range) -> dict[str, Any]:
    """What the first failing seed says (empty: all hold), and how many plans were refused."""
    environment = os.environ | {"PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1", "TRAINMASTER_PURE": "1"}
    command = [sys.executable, "-c", RUN, careless, str(seeds.start), str(seeds.stop)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=sources)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("careless", ["", "crowded", "outsized"])
def test_with_all_safeguards_seeds_hold(sources: Path, careless: str) -> None:
    done = run(sources, careless, range(12))
    assert done["violation"] == ""
    assert (done["refused"] > 0) == bool(careless)


@pytest.mark.slow
@pytest.mark.parametrize("removed", SAFEGUARDS, ids=lambda safeguard: safeguard.name, indirect=True)
def test_a_removed_safeguard_is_found(sources: Path, removed: Safeguard) -> None:
    found = run(sources, removed.careless, removed.seeds)["violation"]
    assert found
    assert removed.shown_by in found
