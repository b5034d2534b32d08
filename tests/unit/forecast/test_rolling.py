"""A rolled future is what really comes, when the world is as believed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.persistence import Recorder
from trainmaster.engine.ports import StoredState
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.forecast.arrivals import Arrivals
from trainmaster.forecast.forecast import band, forecast
from trainmaster.forecast.rollout import Opening, roll
from trainmaster.forecast.situation import Belief, Situation, from_json, to_json
from trainmaster.forecast.whatif import Change, compare
from trainmaster.model import event as ev
from trainmaster.model.cluster import Node, parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth, TruthOptions

CLUSTER = parse_cluster("k80=8x4,v100=8x4")


def jobs(count: int, seed: int, elastic: bool = True) -> list[JobSpec]:
    rng = np.random.Generator(np.random.PCG64(seed))
    specs = []
    for k in range(count):
        size = int(rng.choice([1, 1, 2, 4]))
        most = size * 2 if elastic and rng.random() < 0.4 else size
        work = float(rng.lognormal(6, 1))
        deadline_ms = int(rng.integers(2_000, 9_000)) * 1000 if rng.random() < 0.3 else NEVER_MS
        specs.append(
            JobSpec(
                JobId(f"j{k:03}"),
                0,
                workers_min=size,
                workers_max=most,
                workers_ref=size,
                work_total=work,
                steps_per_s={"v100": 1.0, "k80": 0.4},
                deadline_ms=deadline_ms,
            )
        )
    return specs


class Live:
    """A cluster that runs, stopped at some moment, of which a situation can be taken."""

    def __init__(self, policy: str, specs: list[JobSpec], costs: TruthOptions | None = None) -> None:
        options = costs or TruthOptions()
        self.policy = policy
        round_ms = 360_000 if policy.startswith("gavel") else None
        settings = Settings(round_ms=round_ms, restart_cost_ms=options.restart_cost_ms, resend_ms=10**12)
        self.engine = Engine(CLUSTER, create(policy), DeclaredSpeeds(), settings)
        self.backend = SimulatedBackend(CLUSTER, Truth(CLUSTER, options, 0), settings.lease)
        self.ended: dict[str, int] = {}
        self.now_ms = 0
        self._step([ev.JobSubmitted(spec) for spec in specs])

    def _step(self, events: list[ev.Event]) -> None:
        for command in self.engine.step(self.now_ms, *self.backend.advance(self.now_ms), *events):
            self.backend.perform(command)
        for end in self.engine.drain_ended():
            self.ended[end.spec.id] = end.ended_ms

    def go_on(self, steps: int = 10**9) -> None:
        while self.engine.columns.job_index_of and steps > 0:
            self.now_ms = max(self.now_ms, min(self.backend.next_ms, self.engine.next_wake_ms))
            self._step([])
            steps -= 1

    def situation(self) -> Situation:
        commit = Recorder.of_new(self.engine).changes(())
        stored_state = StoredState(
            {key: record for key, record in commit.jobs.items() if record is not None}, {}, commit.meta
        )
        exact = {key: Belief(sigma=0.0) for key in stored_state.jobs}
        return Situation(self.now_ms, self.policy, CLUSTER, stored_state, self.engine.settings, exact)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "drf", "gavel-max-min", "deadline", "elasticflow"])
@pytest.mark.parametrize("steps", [3, 17, 40])
def test_the_middle_future_is_what_happens(policy: str, steps: int) -> None:
    live = Live(policy, jobs(40, seed=steps))
    live.go_on(steps)
    situation = live.situation()
    future = roll(situation)
    active = set(live.engine.columns.job_index_of)
    live.go_on()
    assert not future.left
    assert {end.spec.id: end.ended_ms for end in future.ended} == {key: live.ended[key] for key in sorted(active)}


@pytest.mark.parametrize("policy", ["fifo", "las", "gavel-max-min"])
def test_futures_follow_priorities(policy: str) -> None:
    specs = [replace(spec, priority=k % 3) for k, spec in enumerate(jobs(24, seed=5))]
    live = Live(policy, specs)
    live.go_on(9)
    active = set(live.engine.columns.job_index_of)
    future = roll(live.situation())
    live.go_on()
    assert {end.spec.id: end.ended_ms for end in future.ended} == {key: live.ended[key] for key in sorted(active)}


@pytest.mark.parametrize(("policy", "error_max"), [("fifo", 0.1), ("fifo:backfill=true", 0.3), ("srtf", 0.3)])
def test_beyond_the_horizon_the_queue_goes_on_as_fast_as_before_it(policy: str, error_max: float) -> None:
    live = Live(policy, jobs(300, seed=6, elastic=False))
    live.go_on(20)
    situation = live.situation()
    whole, rolled = roll(situation), roll(situation, decisions_max=60)
    ends_ms = {end.spec.id: end.ended_ms for end in whole.ended}
    before = {end.spec.id: end.ended_ms for end in rolled.ended}
    assert len(before) >= 40
    assert before.items() <= ends_ms.items(), "up to the horizon it is the same future"
    assert before.keys() | rolled.expected.keys() == ends_ms.keys()
    assert not rolled.left
    span_ms = max(ends_ms.values()) - situation.now_ms
    errors = [abs(span.end_ms - ends_ms[JobId(job_id)]) / span_ms for job_id, span in rolled.expected.items()]
    assert np.median(errors) < error_max, "jobs that overtake others are not foreseen"
    outlooks = forecast(situation, seeds=3)
    assert all(outlook.finish is not None and outlook.known for outlook in outlooks.values())


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias", "gavel-max-min"])
def test_jobs_with_and_without_names_have_the_same_futures(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live(policy, jobs(60, seed=8))
    live.go_on(15)
    situation = replace(live.situation(), arrivals=Arrivals.recent(jobs(9, seed=1), live.now_ms))
    added = (ev.JobSubmitted(replace(jobs(1, seed=4)[0], id=JobId("added"), submit_ms=situation.now_ms)),)
    nameless = [repr(roll(situation, seed, added)) for seed in range(3)]
    monkeypatch.setattr(Opening, "_need_names", lambda *_: True)
    assert [repr(roll(situation, seed, added)) for seed in range(3)] == nameless
    monkeypatch.setattr(Opening, "_pass", lambda *_: None)
    assert [repr(roll(situation, seed, added)) for seed in range(3)] == nameless


def test_a_paused_job_has_no_end_beyond_the_horizon_either() -> None:
    live = Live("fifo", jobs(60, seed=6, elastic=False))
    live._step([ev.JobPaused(JobId("j055"))])
    future = roll(live.situation(), decisions_max=5)
    assert "j055" not in future.expected
    assert future.left == ("j055",)


def test_a_situation_survives_a_file() -> None:
    live = Live("srtf", jobs(20, seed=5))
    live.go_on(9)
    situation = live.situation()
    again = from_json(json.loads(json.dumps(to_json(situation))))
    assert [e.ended_ms for e in roll(again).ended] == [e.ended_ms for e in roll(situation).ended]


@pytest.mark.parametrize("damage", [{}, [], {"format": 1, "meta": {}}, {"format": 2}])
def test_other_files_are_refused(damage: object) -> None:
    with pytest.raises(InputError):
        from_json(damage)


def test_bands_cover_a_world_that_is_as_uncertain_as_believed() -> None:
    """Truth drawn like the futures, but with other seeds: nine of ten finishes are within the central band."""
    live = Live("fifo", jobs(30, seed=2, elastic=False))
    live.go_on(5)
    situation = live.situation()
    situation = replace(situation, beliefs={key: Belief(sigma=0.2) for key in situation.stored_state.jobs})
    outlooks = forecast(situation, seeds=30)
    inside = total = 0
    for seed in range(1000, 1020):
        for end in roll(situation, seed).ended:
            finish = outlooks[end.spec.id].finish
            assert finish is not None
            inside += finish.contains((end.ended_ms - situation.now_ms) / 1000)
            total += 1
    assert 0.82 <= inside / total <= 0.98


def test_jobs_that_do_not_say_how_much_they_do_still_end_in_every_future() -> None:
    unknown = replace(jobs(1, seed=0)[0], id=JobId("unknown"), work_total=None)
    live = Live("fifo", [unknown, *jobs(5, seed=3)])
    live.go_on(1)
    live.now_ms = 2_000_000
    live._step([ev.Woken()])
    situation = live.situation()
    future = roll(situation, seed=4)
    end = next(end for end in future.ended if end.spec.id == "unknown")
    assert end.ended_ms > situation.now_ms
    known = replace(situation, beliefs={**situation.beliefs, "unknown": Belief(0.0, (2_500.0, 0.1))})
    finish = forecast(known, seeds=20)["unknown"].finish
    assert finish is not None and 300 < finish.p50_s < 700


def test_another_policy_more_and_fewer_nodes() -> None:
    live = Live("fifo", jobs(60, seed=8, elastic=False))
    live.go_on(6)
    situation = live.situation()
    sooner = compare(situation, Change(policy="srtf"))
    assert sooner.total_after.mean_jct_s < sooner.total_before.mean_jct_s  # type: ignore[operator]
    more = compare(situation, Change(add_nodes=tuple(Node(f"new-{k}", "a100", 8) for k in range(2))))
    fewer = compare(situation, Change(remove_nodes=("v100-0",)))
    assert fewer.total_after.mean_jct_s > fewer.total_before.mean_jct_s  # type: ignore[operator]
    assert more.total_after.finished == fewer.total_after.finished == len(situation.stored_state.jobs)
    assert any(gain > 0 for _, gain in sooner.gains_s()) and any(gain < 0 for _, gain in sooner.gains_s())


def test_new_nodes_join_the_sets_of_nodes_alike() -> None:
    specs = [replace(spec, node_set="v100s") for spec in jobs(20, seed=8, elastic=False)]
    live = Live("fifo", specs)
    v100s = frozenset(k for k, node in enumerate(CLUSTER.nodes) if node.accelerator == "v100")
    live._step([ev.NodeSet("v100s", v100s)])
    live.go_on(2)
    more = {kind: tuple(Node(f"new-{k}", kind, 8) for k in range(2)) for kind in ("v100", "k80")}
    found = {kind: compare(live.situation(), Change(add_nodes=nodes)) for kind, nodes in more.items()}
    assert found["v100"].total_after.mean_jct_s < found["v100"].total_before.mean_jct_s  # type: ignore[operator]
    assert found["k80"].total_after.mean_jct_s == found["k80"].total_before.mean_jct_s, "of no use to them"


def test_jobs_added_removed_resized_and_moved_up() -> None:
    live = Live("fifo", jobs(60, seed=9, elastic=False))
    live.go_on(6)
    situation = live.situation()
    waiting = [key for key, r in situation.stored_state.jobs.items() if r["ints"]["first_start_ms"] < 0]
    last = waiting[-1]
    up = compare(situation, Change(first=(last,)))
    assert up.after[last].start_s < up.before[last].start_s  # type: ignore[operator]
    gone = compare(situation, Change(remove_jobs=(waiting[0],)))
    assert gone.after[waiting[0]].state == "cancelled"
    extra = replace(jobs(1, seed=1)[0], id=JobId("extra"), submit_ms=situation.now_ms)
    added = compare(situation, Change(add_jobs=(extra,)))
    assert added.after["extra"].finish_s is not None and "extra" not in added.before
    grown = compare(situation, Change(resize={waiting[0]: (1, 4)}))
    assert grown.after[waiting[0]].state == "finished"


@pytest.mark.parametrize(
    "change",
    [
        Change(remove_jobs=("nobody",)),
        Change(remove_nodes=("nowhere",)),
        Change(policy="no-such-policy"),
        Change(resize={"j000": (4, 2)}),
        Change(add_nodes=(Node("v100-0", "v100", 4),)),
    ],
)
def test_bad_wishes_are_refused(change: Change) -> None:
    live = Live("fifo", jobs(30, seed=9, elastic=False))
    with pytest.raises(InputError):
        compare(live.situation(), change)


def test_a_change_that_is_then_made_turns_out_as_foretold() -> None:
    live = Live("fifo", jobs(50, seed=11, elastic=False))
    live.go_on(7)
    foretold = compare(live.situation(), Change(policy="srtf")).after
    live.engine.policy = create("srtf")
    live._step([ev.PolicyChanged()])
    begin_ms = live.now_ms
    live.go_on()
    for job_id, fate in foretold.items():
        assert fate.finish_s == (live.ended[job_id] - begin_ms) / 1000


def test_a_band_is_ordered_and_never_a_point() -> None:
    for samples in ([0.0, 0.0, 0.0], [5.0] * 10, [1.0, 10.0, 100.0], [0.0, 0.0, 3.0]):
        b = band(samples)
        assert 0 <= b.p05_s <= b.p50_s <= b.p90_s <= b.p95_s and b.p95_s > b.p05_s


def test_newcomers_overtake_where_the_policy_lets_them_and_fade_when_none_come() -> None:
    specs = [replace(spec, submit_ms=1000 * k) for k, spec in enumerate(jobs(20, seed=4, elastic=False))]
    arrivals = Arrivals.recent(specs, now_ms=20_000)
    assert arrivals.likelihood(20_000) > 0.8 > 0.01 > arrivals.likelihood(120_000)
    assert arrivals.draw(20_000, seed=0) == []
    drawn = [arrivals.draw(20_000, seed) for seed in range(1, 30)]
    assert any(drawn)
    assert all(20_000 < a.submit_ms <= b.submit_ms for some in drawn for a, b in pairwise(some))
    live = Live("srtf", specs)
    live.go_on(3)
    alone = live.situation()
    lately = [replace(spec, submit_ms=alone.now_ms - 30_000 * (20 - k)) for k, spec in enumerate(specs)]
    crowded = replace(alone, arrivals=Arrivals.recent(lately, alone.now_ms))
    assert set(forecast(crowded, seeds=9)) == set(alone.stored_state.jobs), "newcomers are nobody's job"
    longest = max(alone.stored_state.jobs, key=lambda key: alone.stored_state.jobs[key]["spec"]["work_total"])
    spread = [forecast(s, seeds=12)[longest].finish for s in (alone, crowded)]
    assert spread[0] is not None
    assert spread[1] is not None
    assert spread[1].p95_s > spread[0].p95_s


def test_a_job_that_has_shown_no_progress_has_none() -> None:
    live = Live("fifo", jobs(3, seed=1, elastic=False))
    live._step([])  # they have started
    live.now_ms = 60_000
    live._step([])
    believed = live.situation()
    name = sorted(live.engine.columns.job_index_of)[0]
    costs = replace(believed.costs, launch_ms=90_000)
    loading = replace(believed, costs=costs, starting={name: (0, 0.0)})
    ends = [{end.spec.id: end.ended_ms for end in roll(case).ended} for case in (believed, loading)]
    assert ends[1][name] == ends[0][name] + 90_000, "it works from 90 s on, not from 0"
    assert from_json(json.loads(json.dumps(to_json(loading)))).starting == loading.starting
