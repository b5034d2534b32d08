"""The slot simulator is held to the real engine and simulator: the same sizes, the same completion times."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sizing_choices import choose
from trainmaster.engine.engine import Settings
from trainmaster.learn.dl2.demonstrations import Recorder, Sizes, record
from trainmaster.learn.sizing.batch import SlotBatch
from trainmaster.learn.sizing.trace import SizingSpec, SizingTrace, draw_trace
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies import registry
from trainmaster.policies.dl2.speed_profiles import CURVES, learn_speeds
from trainmaster.policies.shared.optimus_estimates import believe
from trainmaster.policies.shared.speed_curves import SpeedCurves
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions

TINY = SizingSpec(servers=8, jobs=8, arrivals_per_slot_max=2, profile_noise=-1.0)


def step_time(curve, workers, servers):
    return SpeedCurves(np.asarray(curve)[None]).step_time(0, workers, servers)


@dataclass(frozen=True)
class Replay:
    """Gives every job the size it has in a recording: takes all away by number first, then places anew."""

    sizes: Sizes
    round_ms: int

    def decide(self, view: Snapshot) -> Plan:
        builder = view.draft()
        wanted = self.sizes.get(view.now_ms // self.round_ms, {})
        for grow in (False, True):
            for row in range(len(view.jobs)):
                workers, servers = wanted.get(view.jobs.id(row), (0, 0))
                held = builder.allocation(row)
                if held is None and grow and workers:
                    assert builder.place(row, workers=workers, servers=servers)
                elif held is not None:
                    if not grow:
                        workers, servers = min(workers, held.workers), min(servers, held.servers)
                    assert builder.resize(row, workers, servers)
        return builder.plan(wake_at_ms=(view.now_ms // self.round_ms + 1) * self.round_ms)


def play_at_random(trace: SizingTrace, seed: int) -> tuple[dict[int, dict[str, tuple[int, int]]], SlotBatch]:
    rng = np.random.Generator(np.random.PCG64(seed))
    batch, sizes = SlotBatch([trace]), {}
    state = batch.state
    while len(batch.alive):
        decisions = batch.decisions()
        slot = int(state.slot[0])
        scores = rng.normal(size=(len(decisions.rows), 3)).astype(np.float32)
        row, action = choose(decisions, scores, np.full(1, 1.0, np.float32), rng.random(1))
        held = {trace.ids[j]: [int(state.workers[0, j]), int(state.servers[0, j])] for j in decisions.job.tolist()}
        if row[0] >= 0:
            chosen = held[trace.ids[int(decisions.job[row[0]])]]
            chosen[0] += int(action[0] != 1)
            chosen[1] += int(action[0] != 0)
        sizes[slot] = {job: (w, p) for job, (w, p) in held.items()}
        batch.apply(decisions, row, action)
    return sizes, batch


def finish_in_engine(trace: SizingTrace, sizes: Sizes) -> dict[str, int]:
    round_ms = round(trace.spec.slot_s * 1000)
    truth = TruthOptions(noise=trace.spec.speed_variation)
    result = simulate(
        trace.job_specs(), trace.spec.cluster(), Replay(sizes, round_ms), Settings(round_ms=round_ms), truth
    )
    assert result.plans_refused == 0
    return {end.spec.id: end.ended_ms for end in result.ended}


@given(st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_the_same_sizes_give_the_same_completion_times(seed: int) -> None:
    trace = draw_trace(TINY, seed)
    sizes, batch = play_at_random(trace, seed)
    finished = finish_in_engine(trace, sizes)
    for k, job_id in enumerate(trace.ids):
        assert abs(finished[job_id] - int(batch.state.finish_ms[0, k])) <= 2, job_id


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_hidden_factor_is_the_simulators(seed: int) -> None:
    """A job alone is never restarted; the simulator draws a new factor for each restart, we keep the first."""
    trace = draw_trace(replace(TINY, jobs=1, speed_variation=0.2), seed)
    assert trace.speed_factor[0] != 1.0
    sizes, batch = play_at_random(trace, seed)
    assert abs(finish_in_engine(trace, sizes)[trace.ids[0]] - int(batch.state.finish_ms[0, 0])) <= 2


def test_drf_in_the_engine_is_drf_by_bundles_here() -> None:
    trace = draw_trace(replace(TINY, jobs=12), 5)
    _, engine_s = record(trace, "drf")
    batch = SlotBatch([trace])
    while len(batch.alive):
        decisions = batch.decisions()
        scores = np.full((len(decisions.rows), 3), -1e9, np.float32)
        scores[:, 2] = -decisions.rows[:, 15]  # the smallest dominant share first, bundles only
        batch.apply(decisions, *choose(decisions, scores, np.full(1, -1e8, np.float32)))
    assert batch.mean_completion_s()[0] == pytest.approx(engine_s, rel=1e-6)


def test_jobs_in_the_system_add_up_to_completion_times() -> None:
    """Sum of completion times = slots x jobs present + what each waited for the first boundary."""
    trace = draw_trace(TINY, 3)
    batch, present = SlotBatch([trace]), 0.0
    rng = np.random.Generator(np.random.PCG64(1))
    while len(batch.alive):
        decisions = batch.decisions()
        scores = rng.normal(size=(len(decisions.rows), 3)).astype(np.float32)
        row, action = choose(decisions, scores, np.zeros(1, np.float32), rng.random(1))
        present += float(batch.apply(decisions, row, action).present[0])
    slot_s = TINY.slot_s
    submit_s = trace.submit_ms / 1000
    waited = (np.ceil(submit_s / slot_s) * slot_s - submit_s).sum()
    assert present * slot_s + waited == pytest.approx(batch.completion_s()[0].sum(), rel=1e-6)


@dataclass
class Looks:
    """DRF, asked in every slot, with the curves that dl2 would believe at the time."""

    seen: dict[tuple[int, str], np.ndarray]

    def decide(self, view: Snapshot) -> Plan:
        rows = np.arange(len(view.jobs))
        beliefs = believe(view, rows, 0.1, True, 8, 0.01, learn_speeds)
        for row in rows.tolist():
            self.seen[view.now_ms // 1_200_000, view.jobs.id(row)] = beliefs.memo.columns[CURVES][row]
        plan = registry.create("drf").decide(view)
        return replace(plan, memo=beliefs.memo, wake_at_ms=(view.now_ms // 1_200_000 + 1) * 1_200_000)


@pytest.mark.parametrize("variation", [0.0, 0.2])
def test_beliefs_are_those_of_the_policy(variation: float) -> None:
    """Slot by slot: profiles, progress, and how jobs of a model are put together."""
    spec = replace(TINY, jobs=12, profile_noise=0.1, speed_variation=variation)
    trace = draw_trace(spec, 9)
    looks = Looks({})
    half_ms = 600_000
    truth = TruthOptions(noise=variation, report_ms=half_ms, report_period_ms=half_ms)
    simulate(trace.job_specs(), spec.cluster(), looks, Settings(round_ms=1_200_000), truth)
    batch, compared = SlotBatch([trace]), 0
    while len(batch.alive):
        decisions, slot = batch.decisions(), int(batch.state.slot[0])
        for j in decisions.job.tolist():
            if (slot, trace.ids[j]) in looks.seen:
                seen = looks.seen[slot, trace.ids[j]]
                for w, p in ((1, 1), (2, 8), (8, 16)):
                    here = step_time(batch.state.believed[0, j], w, p)
                    assert here == pytest.approx(step_time(seen, w, p), rel=1e-3), (slot, trace.ids[j])
                compared += 1
        scores = np.full((len(decisions.rows), 3), -1e9, np.float32)
        scores[:, 2] = -decisions.rows[:, 15]
        batch.apply(decisions, *choose(decisions, scores, np.full(1, -1e8, np.float32)))
    assert compared > 5 * len(trace)


def test_traces_depend_on_the_seed_alone() -> None:
    one, other = draw_trace(TINY, 4), draw_trace(TINY, 4)
    assert one.submit_ms.tobytes() == other.submit_ms.tobytes() and one.work.tobytes() == other.work.tobytes()
    assert draw_trace(TINY, 5).work.tobytes() != one.work.tobytes()
    assert (np.diff(one.submit_ms) >= 0).all()


def test_lengths_are_as_the_paper_says() -> None:
    spec = SizingSpec(jobs=4000, profile_noise=-1.0)
    trace = draw_trace(spec, 1)
    speeds = np.array([float(kind.scaling().speed(*kind.length_size(32, 32))) for kind in spec.kinds])
    minutes = trace.work / speeds[trace.kind] / 60
    assert 120 < minutes.mean() < 170
    assert (minutes > 60).mean() > 0.5
    per_slot = np.bincount(trace.submit_ms // 1_200_000)
    assert per_slot.max() <= 2 * spec.arrivals_per_slot_max


def test_the_recorder_sees_what_runs() -> None:
    trace = draw_trace(TINY, 2)
    recorder = Recorder(registry.create("drf"), 1_200_000)
    simulate(trace.job_specs(), TINY.cluster(), recorder, Settings(round_ms=1_200_000))
    assert all(sum(w for w, _ in held.values()) <= TINY.gpus for held in recorder.sizes.values())
    assert any(w > 1 for held in recorder.sizes.values() for w, _ in held.values())
