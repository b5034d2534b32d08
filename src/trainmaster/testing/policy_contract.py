"""The policy contract, executable: `check_policy("drf")` or `check_policy(MyPolicy())`.

Each check draws seeded scenes, lets the policy decide and compares with what every policy promises. A
failure names the check, the scene (replay it with `random_scene(seed)`) and what was seen.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainmaster.engine.verify import PlanError, verify
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy, traits_of
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies import registry
from trainmaster.testing.purity import forbidden_globals
from trainmaster.testing.recount import recount
from trainmaster.testing.scenes import Scene, random_scene
from trainmaster.testing.streams import (
    check_accounts_for_all,
    check_jobs_without_gpus_finish,
    check_never_fits_does_not_block,
    check_no_starvation,
)


class ContractError(AssertionError):
    """A policy breaks its contract; lists every failed check."""


@dataclass(frozen=True)
class Subject:
    """The policy under test, and what is promised of it."""

    policy: Policy
    name: str
    fair: bool = False
    strict: bool = False
    """It keeps an order so strictly that a job which cannot run holds up the others (FIFO)."""


def subject_of(policy: str | Policy, fair: bool = False, strict: bool = False) -> Subject:
    """A policy may say itself, by its traits, what its options make of it."""
    if isinstance(policy, str):
        found, _ = registry.parse(policy)
        built = registry.create(policy)
        return _subject(built, policy, found.fair, strict)
    return _subject(policy, repr(policy), fair, strict)


def _subject(policy: Policy, name: str, fair: bool, strict: bool) -> Subject:
    traits = traits_of(policy)
    return Subject(policy, name, fair if traits.fair is None else traits.fair, strict or traits.strict)


def check_policy(
    policy: str | Policy,
    *,
    seeds: Iterable[int] = range(30),
    fair: bool = False,
    strict: bool = False,
    other_process: bool = True,
) -> None:
    """Run every check; raises `ContractError` with all failures. `fair` and `strict` are for policies
    that are not registered; registered ones say so themselves. `other_process=False` leaves out the check
    that starts one."""
    subject = subject_of(policy, fair, strict)
    scenes = [random_scene(seed) for seed in seeds]
    faults: list[str] = []
    for check in CHECKS:
        title = (check.__doc__ or check.__name__).strip().split("\n")[0]
        try:
            check(subject, scenes)
        except AssertionError as error:
            faults.append(f"- {title}\n    {error}")
        except Exception as error:
            faults.append(f"- {title}\n    raised {type(error).__name__}: {error}")
    if other_process:
        try:
            check_hash_seed([subject], scenes)
        except AssertionError as error:
            faults.append(f"- The same in another process\n    {error}")
    if faults:
        raise ContractError(f"policy {subject.name} breaks its contract:\n" + "\n".join(faults))


def _decide(subject: Subject, view: Snapshot, scene: Scene) -> Plan:
    try:
        return subject.policy.decide(view)
    except Exception as error:
        raise AssertionError(f"{scene.describe()}: raised {type(error).__name__}: {error}") from error


def by_job(view: Snapshot, plan: Plan) -> dict[str, object]:
    """A plan by job id, as plain data: comparable whatever the order of rows."""
    ids = view.jobs.ids
    return {
        "changes": {ids[row]: given for row, given in sorted(plan.changes.items())},
        "rejected": sorted(ids[row] for row in plan.rejections),
        "admitted": sorted(ids[row] for row in plan.admissions),
        "why": {ids[row]: int(plan.why[row]) for row in range(len(ids))},
        "wake_at_ms": plan.wake_at_ms,
        "values": json.loads(json.dumps(plan.memo.values, sort_keys=True)),
        "columns": {
            name: {ids[row]: np.asarray(column)[row].tolist() for row in range(len(ids))}
            for name, column in sorted(plan.memo.columns.items())
        },
    }


def _same(one: dict[str, object], other: dict[str, object], where: str) -> None:
    for key in one:
        if one[key] != other[key]:
            a, b = one[key], other[key]
            if isinstance(a, dict) and isinstance(b, dict):
                job = next((k for k in sorted({*a, *b}) if a.get(k) != b.get(k)), "")
                raise AssertionError(f"{where}: '{key}' of {job} is {a.get(job)} and then {b.get(job)}")
            raise AssertionError(f"{where}: '{key}' is {a} and then {b}")


# -- checks: each takes the subject and the scenes, and raises AssertionError -----------------------------


def check_plans_verify(subject: Subject, scenes: Sequence[Scene]) -> None:
    """Plans are within capacity, gangs whole, types acceptable, every waiting job has a reason"""
    for scene in scenes:
        view = scene.view()
        plan = _decide(subject, view, scene)
        try:
            verify(view, plan)
        except PlanError as error:
            raise AssertionError(f"{scene.describe()}: refused: {error}") from error
        faults = recount(view, plan)
        assert not faults, f"{scene.describe()}: {'; '.join(faults[:3])}"


def check_deterministic(subject: Subject, scenes: Sequence[Scene]) -> None:
    """The same view gives the same plan"""
    for scene in scenes:
        first, second = scene.view(), scene.view()
        one = by_job(first, _decide(subject, first, scene))
        _same(one, by_job(second, _decide(subject, second, scene)), scene.describe())
        _same(one, by_job(first, _decide(subject, first, scene)), scene.describe() + " (asked twice)")


def check_row_order(subject: Subject, scenes: Sequence[Scene]) -> None:
    """The order of rows does not matter, nor the numbering of entities and curves"""
    for scene in scenes:
        rng = np.random.Generator(np.random.PCG64([scene.seed, 3]))
        order = rng.permutation(len(scene.jobs)).tolist()
        view, permuted = scene.view(), scene.view(row_order=order)
        one = by_job(view, _decide(subject, view, scene))
        _same(one, by_job(permuted, _decide(subject, permuted, scene)), scene.describe())


def check_view_untouched(subject: Subject, scenes: Sequence[Scene]) -> None:
    """The view is not modified"""
    for scene in scenes:
        view = scene.view()
        before = _fingerprint(view)
        _decide(subject, view, scene)
        after = _fingerprint(view)
        changed = sorted(key for key in before if before[key] != after[key])
        assert not changed, f"{scene.describe()}: decide changed {', '.join(changed)}"


def _fingerprint(view: Snapshot) -> dict[str, bytes]:
    columns = view.jobs.columns
    out = {f"column {name}": column.tobytes() for name, column in {**columns.ints, **columns.floats}.items()}
    for name in ("throughput", "throughput_spread", "allowed"):
        out[name] = getattr(columns, name).tobytes()
    free_capacity = view.free_capacity
    for name in ("device_milli", "whole", "cpu_milli", "mem_mib"):
        out[f"ledger {name}"] = getattr(free_capacity, name).tobytes()
    out["up"] = view.up.tobytes()
    out["memo"] = view.memo.to_json().encode()
    out["allocations"] = repr(columns.allocations).encode()
    out["slots"] = view.jobs.job_indices.tobytes()
    return out


def check_memo_round_trip(subject: Subject, scenes: Sequence[Scene]) -> None:
    """The memo survives JSON, and the next decision from it is the same"""
    for scene in scenes:
        view = scene.view()
        memo = _decide(subject, view, scene).memo
        try:
            text = memo.to_json()
            restored = PolicyState.from_json(text)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{scene.describe()}: the memo is not JSON data: {error}") from error
        changed = [key for key, value in memo.values.items() if _plain(value) != restored.values.get(key)]
        assert not changed, f"{scene.describe()}: memo value '{changed[0]}' changes in a JSON round trip"
        assert restored.to_json() == text, f"{scene.describe()}: the memo changes in a round trip"
        for name, column in memo.columns.items():
            rows = np.asarray(column).shape[:1]
            assert rows == (len(view.jobs),), f"{scene.describe()}: memo column '{name}' has not one row per job"
        later = replace(scene, now_s=scene.now_s + 60.0)
        kept, read_back = later.view(memo=memo), later.view(memo=_reshaped(restored, memo))
        _same(
            by_job(kept, _decide(subject, kept, later)),
            by_job(read_back, _decide(subject, read_back, later)),
            later.describe() + " (memo read back)",
        )


def _plain(value: object) -> object:
    """Tuples and lists are the same to JSON; keys that are not text are not."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _reshaped(restored: PolicyState, memo: PolicyState) -> PolicyState:
    """JSON forgets the width of an empty column; the engine knows it."""
    columns = {name: c.reshape(np.asarray(memo.columns[name]).shape) for name, c in restored.columns.items()}
    return PolicyState(restored.values, columns)


def check_pure(subject: Subject, scenes: Sequence[Scene]) -> None:
    """No clock, environment or global random numbers"""
    for scene in scenes:
        view = scene.view()
        _decide(subject, view, scene)  # compile first: compilers look at clocks
        with forbidden_globals():
            _decide(subject, scene.view(), scene)


def check_wakes_later(subject: Subject, scenes: Sequence[Scene]) -> None:
    """A wake-up lies in the future"""
    for scene in scenes:
        view = scene.view()
        wake = _decide(subject, view, scene).wake_at_ms
        assert wake is None or wake > view.now_ms, (
            f"{scene.describe()}: wants to be woken at {wake}, it is {view.now_ms}"
        )


def check_settles(subject: Subject, scenes: Sequence[Scene]) -> None:
    """Nothing waits for ever for want of a decision: with all jobs gone but one that fits, it is started"""
    for scene in scenes:
        for job in scene.jobs[:3]:
            if job.id in scene.backoff_until_s or job.id in scene.paused:
                continue
            alone = replace(
                scene,
                jobs=(replace(job, deadline_ms=2**62),),
                running={},
                down=(),
                backoff_until_s={},
                paused=(),
            )
            view = alone.view()
            builder = view.draft()
            if not builder.place(0, workers=job.workers_min, servers=job.servers_min):
                continue
            plan = _decide(subject, view, alone)
            ask = view.draft()
            could = ask.place(0)
            assert plan.changes or plan.rejections or not could or plan.wake_at_ms is not None, (
                f"{alone.describe()}: {job.id} alone in the cluster is not started"
            )


def check_streams(subject: Subject, scenes: Sequence[Scene]) -> None:
    """Whole small simulations account for every job; nobody starves under a fair policy"""
    del scenes
    check_accounts_for_all(subject.policy)
    check_jobs_without_gpus_finish(subject.policy)
    if subject.fair:
        check_no_starvation(subject.policy)
    if not subject.strict:
        check_never_fits_does_not_block(subject.policy)


CHECKS: tuple[Callable[[Subject, Sequence[Scene]], None], ...] = (
    check_plans_verify,
    check_deterministic,
    check_row_order,
    check_view_untouched,
    check_memo_round_trip,
    check_pure,
    check_wakes_later,
    check_settles,
    check_streams,
)


# -- another process ---------------------------------------------------------------------------------------


def digest(policy: Policy, seeds: Sequence[int]) -> str:
    """A hash of what the policy decides in these scenes."""
    total = hashlib.sha256()
    for seed in seeds:
        view = random_scene(seed).view()
        total.update(json.dumps(by_job(view, policy.decide(view)), sort_keys=True, default=repr).encode())
    return total.hexdigest()


def check_hash_seed(subjects: Sequence[Subject], scenes: Sequence[Scene]) -> None:
    """The same plans in a process with another PYTHONHASHSEED; many policies share one process."""
    seeds = [scene.seed for scene in scenes[:10]]
    here = [digest(subject.policy, seeds) for subject in subjects]
    payload = base64.b64encode(pickle.dumps([subject.policy for subject in subjects])).decode()
    script = (
        "import base64, pickle, sys\n"
        "from trainmaster.testing.policy_contract import digest\n"
        "for policy in pickle.loads(base64.b64decode(sys.stdin.readline())):\n"
        f"    print(digest(policy, {seeds!r}))\n"
    )
    paths = [path for path in sys.path if path]
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": ":".join(paths)}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        input=payload,
        text=True,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, f"the other process failed: {ran.stderr.strip().splitlines()[-1:]}"
    for subject, mine, theirs in zip(subjects, here, ran.stdout.split(), strict=True):
        assert mine == theirs, f"{subject.name} decides otherwise with another PYTHONHASHSEED"
