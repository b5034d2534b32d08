"""Space sharing in whole simulations of Gavel's trace: pairs really run together, at the pair's speeds, and it pays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.estimate.catalogue import ThroughputCatalogue, load_catalogue
from trainmaster.model import event as ev
from trainmaster.model.units import GPU_MILLI
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.experiment import Experiment, Outcome, prepare, run

CLUSTER = "v100=6,p100=6,k80=6"
"""Half of the cluster that the trace was made for: a high load."""


def _simulate(shared_data: Callable[[str], Path], policy: str, **more: Any) -> Outcome:
    outcome = run(
        prepare(
            Experiment(
                trace=str(shared_data("gavel/traces/physical_max_min_fairness.trace")),
                policy=policy,
                cluster=CLUSTER,
                throughputs=str(shared_data("gavel/throughputs/simulation_throughputs.json")),
                round_s=360,
                **more,
            )
        ),
        record_timeline=True,  # so that the world shows every event
    )
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
        for incarnation in backend.running.values():
            for part in incarnation.allocation.parts:
                for device in part.devices:
                    on.setdefault((part.node, device), []).append(incarnation)
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


@pytest.mark.parametrize("mechanism", ["backfill", "original"])
def test_pairs_run_at_their_speeds_and_sharing_pays(
    mechanism: str, shared_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = _simulate(shared_data, f"gavel-max-min:mechanism={mechanism}")
    watch = Watch(load_catalogue(shared_data("gavel/throughputs/simulation_throughputs.json")))
    advance = SimulatedBackend.advance

    def watched(backend: SimulatedBackend, now_ms: int) -> list[ev.Event]:
        watch.look(backend)
        return advance(backend, now_ms)

    monkeypatch.setattr(SimulatedBackend, "advance", watched)
    shared = _simulate(shared_data, f"gavel-max-min:space_sharing=true,mechanism={mechanism}")
    assert len(watch.pairs) > 10
    assert watch.shared_checks > 100
    assert shared.summary["average_jct_s"] < alone.summary["average_jct_s"]


@pytest.mark.parametrize(
    "policy",
    ["gavel-max-min:aware=false,space_sharing=true,mechanism=original", "gandiva", "gavel-makespan:space_sharing=true"],
)
def test_other_policies_share_too(policy: str, shared_data: Callable[[str], Path]) -> None:
    _simulate(shared_data, policy)


def test_sharing_survives_costs_and_failing_nodes(shared_data: Callable[[str], Path]) -> None:
    costs = {"restart_cost_s": 20.0, "resize_cost_s": 5.0, "node_mtbf_s": 40_000.0, "checkpoint_period_s": 300.0}
    one = _simulate(shared_data, "gavel-max-min:space_sharing=true", **costs)
    two = _simulate(shared_data, "gavel-max-min:space_sharing=true", **costs)
    assert one.jobs.equals(two.jobs)
