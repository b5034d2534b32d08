"""Space sharing in whole simulations of Gavel's trace: pairs really run together, at the pair's speeds, and it pays."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainmaster.engine.engine import Engine
from trainmaster.estimate.catalogue import ThroughputCatalogue, load_catalogue
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.model import event as ev
from trainmaster.model.units import GPU_MILLI, NEVER_MS
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.experiment import Experiment, Outcome, Prepared, prepare, run
from trainmaster.sim.truth import Truth

CLUSTER = "v100=6,p100=6,k80=6"
"""Half of the cluster that the trace was made for: a high load."""


def _prepared(shared_data: Callable[[str], Path], policy: str, **more: Any) -> Prepared:
    return prepare(
        Experiment(
            trace=str(shared_data("gavel/traces/physical_max_min_fairness.trace")),
            policy=policy,
            cluster=CLUSTER,
            throughputs=str(shared_data("gavel/throughputs/simulation_throughputs.json")),
            round_s=360,
            **more,
        )
    )


def _simulate(shared_data: Callable[[str], Path], policy: str, **more: Any) -> Outcome:
    outcome = run(_prepared(shared_data, policy, **more))
    assert outcome.result.plans_refused == 0
    summary = outcome.summary
    assert summary["jobs_finished"] == summary["jobs_submitted"] > 0
    return outcome


class Watch:
    """Looks at the world after every start, end and change: who shares with whom, and how fast they are."""

    def __init__(self, catalogue: ThroughputCatalogue) -> None:
        self.catalogue = catalogue
        self.pairs: set[frozenset[str]] = set()
        self.shared_checks = 0

    def look(self, backend: SimulatedBackend) -> None:
        on: dict[tuple[int, int], list] = {}
        for attempt in backend.running.values():
            for part in attempt.allocation.parts:
                for device in part.devices:
                    on.setdefault((part.node, device), []).append(attempt)
        for users in on.values():
            assert len(users) <= 2
            assert sum(user.allocation.share_milli for user in users) <= GPU_MILLI
            if len(users) == 2:
                self.pairs.add(frozenset(user.spec.id for user in users))
                self._speeds(backend, *users)
            else:
                spec = users[0].spec
                kind = backend.cluster.types[users[0].allocation.accelerator]
                assert users[0].rate == pytest.approx(spec.steps_per_s[kind], rel=1e-9)

    def _speeds(self, backend: SimulatedBackend, a, b) -> None:
        kind = backend.cluster.types[a.allocation.accelerator]
        gpus = int(a.spec.gpus)
        expected = self.catalogue.pair_steps_per_s(a.spec.model, gpus, b.spec.model, gpus, kind)
        assert expected is not None
        assert (a.rate, b.rate) == pytest.approx(expected, rel=1e-9)
        self.shared_checks += 1


def _step_by_step(prepared: Prepared, watch: Watch) -> dict[str, int]:
    """The same world, engine and backend driven from outside; when each job ended."""
    assert prepared.catalogue is not None
    pairs = PairSlowdowns(prepared.catalogue)
    settings = replace(prepared.settings, resend_ms=NEVER_MS // 2)
    backend = SimulatedBackend(
        prepared.cluster, Truth(prepared.cluster, prepared.truth, settings.seed, pairs), settings.lease
    )
    engine = Engine(prepared.cluster, prepared.policy, DeclaredSpeeds(0.0, pairs), settings)
    coming, ended = list(prepared.specs), {}
    while len(ended) < len(prepared.specs):
        arrival_ms = coming[0].submit_ms if coming else NEVER_MS
        now_ms = max(engine.now_ms, min(arrival_ms, backend.next_ms, engine.next_wake_ms))
        assert now_ms < NEVER_MS // 4, "nothing happens any more"
        watch.look(backend)
        events = backend.advance(now_ms)
        while coming and coming[0].submit_ms <= now_ms:
            events.append(ev.JobSubmitted(coming.pop(0)))
        if not events and engine.next_wake_ms > now_ms:
            continue  # the end of an attempt that was stopped before: nobody hears of it
        for command in engine.step(now_ms, *events):
            backend.perform(command)
        ended |= {end.spec.id: end.ended_ms for end in engine.drain_ended()}
    return ended


@pytest.mark.parametrize("mechanism", ["backfill", "original"])
def test_pairs_run_at_their_speeds_and_sharing_pays(mechanism: str, shared_data: Callable[[str], Path]) -> None:
    alone = _simulate(shared_data, f"gavel-max-min:mechanism={mechanism}")
    sharing = f"gavel-max-min:space_sharing=true,mechanism={mechanism}"
    shared = _simulate(shared_data, sharing)
    watch = Watch(load_catalogue(shared_data("gavel/throughputs/simulation_throughputs.json")))
    ended_ms = _step_by_step(_prepared(shared_data, sharing), watch)
    assert ended_ms == {end.spec.id: end.ended_ms for end in shared.result.ended}
    assert len(watch.pairs) > 10
    assert watch.shared_checks > 100
    assert shared.summary["average_jct_s"] < alone.summary["average_jct_s"]


@pytest.mark.parametrize(
    "policy",
    ["gavel-max-min:aware=false,space_sharing=true,mechanism=original", "gandiva", "gavel-makespan:space_sharing=true"],
)
def test_other_policies_share_too(policy: str, shared_data: Callable[[str], Path]) -> None:
    shared = _simulate(shared_data, policy)
    watch = Watch(load_catalogue(shared_data("gavel/throughputs/simulation_throughputs.json")))
    ended_ms = _step_by_step(_prepared(shared_data, policy), watch)
    assert ended_ms == {end.spec.id: end.ended_ms for end in shared.result.ended}
    assert watch.pairs, "no two jobs ever shared a device"


def test_sharing_survives_costs_and_failing_nodes(shared_data: Callable[[str], Path]) -> None:
    costs = {"restart_cost_s": 20.0, "resize_cost_s": 5.0, "node_mtbf_s": 40_000.0, "checkpoint_period_s": 300.0}
    one = _simulate(shared_data, "gavel-max-min:space_sharing=true", **costs)
    two = _simulate(shared_data, "gavel-max-min:space_sharing=true", **costs)
    assert one.jobs.equals(two.jobs)
