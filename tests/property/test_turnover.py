"""Plans carried out at once, and many in one compiled call, against the way of commands and events: nothing differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine import core
from trainmaster.engine.core import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.placement import Strategy
from trainmaster.policies.registry import create
from trainmaster.sim.passage import Passage
from trainmaster.sim.run import RunResult, simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.testing.builders import a_job
from trainmaster.testing.streams import small_workload

POLICIES = (
    "fifo", "fifo:backfill=true", "sjf", "srtf", "las", "tiresias", "drf", "optimus", "elasticflow", "gavel-max-min",
    "gavel-max-min:mechanism=original", "gavel-ftf", "gavel-fifo:mechanism=original",
)  # fmt: skip


def _told(result: RunResult) -> tuple[object, ...]:
    """All that a run says, timings apart."""
    return (
        [repr(replace(end, spec=end.spec.id)) for end in result.ended],  # type: ignore[arg-type]
        (result.end_ms, result.decisions, result.lost_gpu_s, result.notes, result.plans_refused),
    )


@st.composite
def workloads(draw: st.DrawFn) -> list[JobSpec]:
    """Rigid, elastic and worker/server jobs; fractions, no work at all, several at the same moment."""
    jobs = small_workload(draw(st.integers(0, 10_000)), n_jobs=draw(st.integers(1, 14)))
    at_s = 0.0
    for k in range(draw(st.integers(0, 8))):
        at_s += draw(st.sampled_from([0.0, 0.0, 7.0, 60.0, 600.0]))
        speeds = draw(st.sampled_from([{}, {"v100": 1.0, "k80": 0.5}, {"v100": 0.3, "k80": 0.7}]))
        gpus = draw(st.sampled_from([0.5, 1, 2, 4]))
        seconds = draw(st.sampled_from([0.0, 1.0, 100.0, 3333.3]))
        jobs.append(a_job(f"x-{k}", gpus=gpus, seconds=seconds, submit_s=at_s, speeds=speeds))
    return [replace(job, id=JobId(f"{k:03d}")) for k, job in enumerate(sorted(jobs, key=lambda j: j.submit_ms))]


@settings(max_examples=25, deadline=None)
@given(
    workloads(),
    st.sampled_from(POLICIES),
    st.sampled_from(["v100=8x4", "v100=4x4,k80=8x2", "k80=4x1,v100=8x8"]),
    st.sampled_from(list(Strategy)),
    st.sampled_from([0, 5_000]),
    st.sampled_from([None, 60_000]),
)
def test_at_once_and_step_by_step_agree(
    jobs: list[JobSpec], policy: str, cluster: str, placement: Strategy, cost_ms: int, round_ms: int | None
) -> None:
    truth = TruthOptions(restart_cost_ms=cost_ms, resize_cost_ms=cost_ms, spread_penalty=0.2)
    setting = Settings(placement=placement, round_ms=round_ms, seed=3)
    runs = [
        simulate(
            jobs, parse_cluster(cluster), create(policy), setting, truth, at_once=at_once, passage_decisions=decisions
        )
        for at_once, decisions in ((True, 4096), (True, 2), (True, 0), (False, 0))
    ]
    assert _told(runs[0]) == _told(runs[1]) == _told(runs[2]) == _told(runs[3])


@pytest.mark.parametrize("policy", ["srtf", "gavel-max-min"])
def test_engines_end_alike(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every moment of a run the engines are in the same state, version, numbers of commands and ledgers too."""
    jobs = [job for job in small_workload(5, 40) if not job.elastic]
    seen: list[list[object]] = []

    class Watched(core.Engine):
        def step(self, now_ms, *events):  # type: ignore[no-untyped-def]
            commands = super().step(now_ms, *events)
            if not commands and not self.outstanding:
                columns = self.columns
                rows = columns.rows
                seen[-1].append(
                    (
                        now_ms, columns.version, self.seq, sorted(self.last_seq.items()), dict(self.held),
                        [column[rows].tolist() for _, column in sorted(columns.ints.items())],
                        [column[rows].tobytes() for _, column in sorted(columns.floats.items())],
                        self.planned.device_milli.tolist(), self.physical.device_milli.tolist(),
                        self.planned.whole.tolist(), self.physical.whole.tolist(),
                    )
                )  # fmt: skip
            return commands

    monkeypatch.setattr("trainmaster.sim.run.Engine", Watched)
    for at_once in (True, False):
        seen.append([])
        simulate(jobs, parse_cluster("v100=8x4"), create(policy), at_once=at_once, passage_decisions=0)
    slow = {state[:2]: state for state in seen[1]}  # type: ignore[index]
    common = [state for state in seen[0] if state[:2] in slow]  # type: ignore[index]
    assert len(common) > 20
    for state in common:
        assert state == slow[state[:2]]  # type: ignore[index]


@pytest.mark.parametrize(
    "policy", ["fifo", "srtf", "gavel-max-min", "gavel-max-min:mechanism=original", "gavel-water-filling"]
)
@pytest.mark.parametrize("seed", [5, 6])
def test_passages_leave_the_engine_as_its_own_steps_do(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in passages of one decision each: after every one the engine is where its own steps have led it."""
    jobs = [job for job in small_workload(seed, 40) if not job.elastic]
    cluster = parse_cluster("v100=8x4")
    seen: list[dict[tuple[int, int], object]] = []
    passages = 0

    def note(engine: core.Engine) -> None:
        if not engine.outstanding and not engine.commands:
            seen[-1][engine.now_ms, engine.columns.version] = _state(engine)

    class Watched(core.Engine):
        def step(self, now_ms, *events):  # type: ignore[no-untyped-def]
            commands = super().step(now_ms, *events)
            note(self)
            return commands

    def go_on(self: Passage, next_job: int, now_ms: int, n_left: int) -> tuple[int, int, int] | None:
        nonlocal passages
        went_on = plain(self, next_job, now_ms, n_left)
        if went_on is not None and not self.engine.changed:
            self.engine.commands = []
            note(self.engine)
            passages += 1
        return went_on

    plain = Passage.go_on
    monkeypatch.setattr("trainmaster.sim.run.Engine", Watched)
    monkeypatch.setattr("trainmaster.sim.passage.MAX_PATIENCE", 1)
    monkeypatch.setattr(Passage, "go_on", go_on)
    for decisions in (1, 0):
        seen.append({})
        simulate(jobs, cluster, create(policy), passage_decisions=decisions)
    common = seen[0].keys() & seen[1].keys()
    assert passages > 10
    assert len(common) > 20
    for moment in sorted(common):
        assert seen[0][moment] == seen[1][moment], moment


def _state(engine: core.Engine) -> object:
    columns, ledgers = engine.columns, (engine.planned, engine.physical)
    rows = columns.rows
    return (
        engine.seq, sorted(engine.last_seq.items()), dict(engine.held), engine.decisions, engine.wake_at_ms,
        [str(columns.specs[slot].id) for slot in rows.tolist()],  # type: ignore[union-attr]
        {name: column[rows].tolist() for name, column in columns.ints.items()},
        {name: column[rows].tobytes() for name, column in columns.floats.items()},
        {name: column[rows].tolist() for name, column in columns.memo.items()},
        dict(engine.memo_values), [[array.tolist() for array in ledger.arrays] for ledger in ledgers],
        sorted(columns.free_slots), sorted(columns.slot_of.items()), sorted(engine.known), len(engine.ended_as),
    )  # fmt: skip
