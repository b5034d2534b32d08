"""Every registered policy keeps the contract; and the contract bites: policies broken on purpose fail it."""

import random
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine.verify import verify
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies import registry
from trainmaster.policies.fifo import Fifo
from trainmaster.testing.policy_contract import ContractError, check_hash_seed, check_policy, subject_of
from trainmaster.testing.recount import recount
from trainmaster.testing.scenes import random_scene
from trainmaster.testing.streams import check_no_starvation

NAMES = [entry.name for entry in registry.entries()]
VARIANTS = [
    "fifo:backfill=true", "tetris:mix=0", "drf:patience_s=0", "optimus:error=0.2",
    "optimus:fitted=true,error=0.1",
]  # fmt: skip


QUICK = ("fifo", "sjf", "srtf", "las", "tiresias", "drf", "tetris", "optimus", "edf", "gavel-max-min", "rrh")
"""Policies whose whole contract takes a few seconds; the others are checked on fewer scenes, apart."""


@pytest.mark.parametrize("name", [*[n for n in NAMES if n in QUICK], *VARIANTS])
def test_the_policy_keeps_the_contract(name: str) -> None:
    check_policy(name, other_process=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n not in QUICK])
def test_the_costly_policy_keeps_the_contract(name: str) -> None:
    check_policy(name, seeds=range(12), other_process=False)


@pytest.mark.slow
def test_plans_do_not_depend_on_the_hash_seed() -> None:
    check_hash_seed([subject_of(name) for name in [*NAMES, *VARIANTS]], [random_scene(seed) for seed in range(8)])


@given(st.integers(1_000, 10**9), st.sampled_from(NAMES))
@settings(max_examples=150, deadline=None)
def test_no_scene_leads_to_a_bad_plan(seed: int, name: str) -> None:
    view = random_scene(seed).view()
    plan = registry.create(name).decide(view)
    verify(view, plan)
    assert not recount(view, plan)


def test_scenes_hold_everything_they_should() -> None:
    scenes = [random_scene(seed) for seed in range(60)]
    jobs = [job for scene in scenes for job in scene.jobs]
    assert any(job.elastic for job in jobs)
    assert any(job.servers_max for job in jobs)
    assert any(0 < job.worker.gpu_milli < 1000 for job in jobs)
    assert any(job.worker.gpu_milli == 0 for job in jobs)
    assert any(job.gpu_types for job in jobs)
    assert any(job.deadline_kind for job in jobs)
    assert any(scene.down for scene in scenes)
    assert any(scene.backoff_until_s for scene in scenes)
    assert {scene.placement for scene in scenes} >= {"pack", "spread", "first-fit", "best-fit", "count"}
    assert sum(len(scene.running) for scene in scenes) > 100
    waiting = sum(len(scene.view().waiting_rows()) for scene in scenes)
    assert waiting > 100


@pytest.mark.parametrize("name", ["sjf", "tetris", "optimus", "fifo:backfill=true"])
def test_the_stream_starves_a_gang_under_policies_that_may(name: str) -> None:
    with pytest.raises(AssertionError, match="large-"):
        check_no_starvation(registry.create(name))


# -- broken on purpose ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """FIFO with backfill, with one thing wrong."""

    def decide(self, view: Snapshot) -> Plan:
        return self.spoil(view, Fifo(backfill=True).decide(view))

    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        raise NotImplementedError


class Overdraws(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        rows = view.waiting_rows().tolist()
        same = Allocation(0, (Part(0, 1, 0, (0,)),))
        return replace(plan, changes=dict.fromkeys(rows, same))


class HalfAGang(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        changes = {
            row: given._replace(parts=given.parts[:1]) if given is not None else None
            for row, given in plan.changes.items()
        }
        return replace(plan, changes=changes)


class Silent(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        return replace(plan, why=np.zeros_like(plan.why))


class Moody(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        return plan if random.random() < 0.5 else view.draft().plan()


class Watches(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        return replace(plan, notes=(str(time.time() > 0),))


class ByRow(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        builder = view.draft()
        builder.place_rows(np.sort(view.waiting_rows()))
        return builder.plan()


class Scribbles(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        view.free_capacity.whole[0] -= 1
        return plan


class Forgetful(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        return replace(plan, memo=PolicyState({"seen": {1: "one"}}))


class Unserialisable(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        return replace(plan, memo=PolicyState({"seen": {"a", "b"}}))


class Yesterday(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        return replace(plan, wake_at_ms=view.now_ms - 1)


class Hashes(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        return replace(plan, memo=PolicyState({"hash": hash("trainmaster")}))


class Lazy(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        return view.draft().plan()


class Raises(Broken):
    def spoil(self, view: Snapshot, plan: Plan) -> Plan:
        raise KeyError("v100")


class Stops(Broken):
    """Strict order: a job that can never fit holds up all behind it."""

    def decide(self, view: Snapshot) -> Plan:
        return Fifo().decide(view)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Overdraws(), "refused"),
        (HalfAGang(), "refused"),
        (Silent(), "without a reason"),
        (Moody(), "and then"),
        (Watches(), "time.time was used"),
        (ByRow(), "order of rows"),
        (Scribbles(), "decide changed ledger whole"),
        (Forgetful(), "'seen' changes in a JSON round trip"),
        (Unserialisable(), "not JSON data"),
        (Yesterday(), "wants to be woken"),
        (Lazy(), "alone in the cluster is not started"),
        (Raises(), "KeyError"),
        (Stops(), "never finish while a job that can never fit waits"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Broken) else "",
)
def test_the_contract_bites(policy: Policy, says: str) -> None:
    with pytest.raises(ContractError) as caught:
        check_policy(policy, seeds=range(25), other_process=False)
    assert says in str(caught.value), str(caught.value)


@pytest.mark.slow
def test_a_plan_that_hangs_on_the_hash_seed_is_found() -> None:
    with pytest.raises(AssertionError, match="decides otherwise with another PYTHONHASHSEED"):
        check_hash_seed([subject_of(Hashes())], [random_scene(1)])


def test_recount_finds_what_verification_should() -> None:
    view = random_scene(3).view()
    plan = Overdraws().decide(view)
    assert recount(view, plan)
