"""OASiS in the engine with parameter servers: bandwidth of both roles, the servers' demands, the paper's constants."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from trainmaster.model.cluster import Cluster, Node, cluster_of
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, JobSpec, State
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy, PolicyTraits
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.scaling import Scaling
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.oasis.gang_options import servers_for
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.testing.builders import a_job

FED = 2.5
"""Workers of 1,000 Mbit/s that a server of 2,500 feeds."""
CLUSTER = cluster_of([Node(f"n{k}", "v100", 4, cpu_milli=10_000) for k in range(2)])


def _job(name: str, workers: tuple[int, int], servers: tuple[int, int], fed: float = FED, **rest: Any) -> JobSpec:
    return a_job(
        name, elastic=workers, servers=servers, seconds=20_000, cpu=1, server_cpu=2, workers_ref=workers[1],
        servers_ref=servers[1], scaling=Scaling(workers_per_server=fed), **rest,
    )  # fmt: skip


@dataclass
class Watching:
    """A policy that writes down every size that it gives, and passes its memo on as text."""

    policy: Policy
    sizes: set[tuple[str, int, int]] = field(default_factory=set)
    memo: str = ""

    @property
    def traits(self) -> PolicyTraits:
        return PolicyTraits(own_rounds=True)

    def decide(self, view: Snapshot) -> Plan:
        plan = self.policy.decide(view)
        for row, given in plan.changes.items():
            if given is not None:
                self.sizes.add((view.jobs.id(row), given.workers, given.servers))
        self.memo = json.dumps(plan.memo.values, allow_nan=False)
        return plan


def _sizes(policy: str, jobs: list[JobSpec]) -> set[tuple[str, int, int]]:
    watching = Watching(create(policy))
    result = simulate(jobs, CLUSTER, watching)
    assert all(end.phase.name == State.FINISHED.name for end in result.ended)
    return watching.sizes


@pytest.mark.parametrize(
    "policy", ["oasis:slot_s=600", "oasis:slot_s=600,constants=paper,spread_max=10", "rrh", "dorm"]
)
def test_servers_feed_the_workers(policy: str) -> None:
    """b w <= B z and z <= w at every size given, with the fewest servers; the reference ratio would be one to one."""
    given = _sizes(policy, [_job("a", (1, 8), (1, 8)), _job("b", (2, 4), (1, 4), submit_s=700)])
    assert {name for name, *_ in given} == {"a", "b"}
    for name, workers, servers in given:
        assert servers <= workers
        assert (servers - 1) * FED < workers <= servers * FED, (name, workers, servers)
    assert max(workers for _, workers, _ in given) > 1


def test_workers_stop_where_the_servers_range_ends() -> None:
    """Two servers feed five workers: a sixth would have no bandwidth."""
    given = _sizes("oasis:slot_s=600", [_job("a", (1, 8), (1, 2))])
    assert max(workers for _, workers, _ in given) == 5
    unlimited = _sizes("oasis:slot_s=600", [_job("a", (1, 8), (1, 2), fed=0.0)])
    assert max(workers for _, workers, _ in unlimited) == 8


def test_the_fewest_workers_run_even_unfed() -> None:
    """A user may say so by a later change of the range; then it is as slow as the servers are."""
    spec = _job("a", (4, 8), (1, 1))
    assert servers_for(spec, 4) == 1
    assert {size[1:] for size in _sizes("oasis:slot_s=600", [spec])} == {(4, 1)}
    starved, fed = (float(spec.scaling.speed(4, servers)) for servers in (1, 2))
    assert starved == pytest.approx(FED) and fed == pytest.approx(4)


def test_servers_take_what_they_need_from_the_nodes() -> None:
    """Each job has 4 workers of 1 CPU and 2 servers of 6: only one of them fits on 20 CPUs."""
    jobs = [replace(_job(name, (4, 4), (2, 2)), work_total=1000.0) for name in "ab"]
    jobs = [replace(job, server=replace(job.server, cpu_milli=6000)) for job in jobs]
    starts = sorted(end.first_start_ms for end in simulate(jobs, CLUSTER, create("fifo")).ended)
    assert starts[1] >= 250_000, "the second waits until the first has ended"
    free = [replace(job, server=replace(job.server, cpu_milli=0)) for job in jobs]
    assert [end.first_start_ms for end in simulate(free, CLUSTER, create("fifo")).ended] == [0, 0]


def _promised(policy: str, jobs: list[JobSpec], cluster: Cluster = CLUSTER) -> dict[str, float]:
    """Worth minus price of every promise, as first given."""
    first: dict[str, float] = {}

    @dataclass
    class Listening(Watching):
        def decide(self, view: Snapshot) -> Plan:
            plan = super().decide(view)
            for name, promise in json.loads(self.memo)["promises"].items():
                first.setdefault(name, promise[4])
            return plan

    simulate(jobs, cluster, Listening(create(policy)))
    return first


def test_servers_have_a_price() -> None:
    """What the first job's servers hold makes the second dearer; workers are the same in both worlds."""

    def second(server_cpu: int) -> float:
        a, b = (_job(name, (2, 2), (1, 1), submit_s=60 * k, utility=WORTH) for k, name in enumerate("ab"))
        of_size = {cpu: replace(a, server=replace(a.server, cpu_milli=cpu * 1000)) for cpu in (0, 4)}
        history = [replace(job, id=JobId(f"h{cpu}")) for cpu, job in of_size.items()]  # the same constants in both
        later = [replace(of_size[server_cpu], submit_ms=200_000_000), replace(b, submit_ms=200_060_000)]
        return _promised("oasis:slot_s=600", [*history, *later], cluster_of(CLUSTER.nodes[:1])).get("b", 0.0)

    assert second(4) < second(0) - 1e-3


WORTH = {"kind": "linear", "start": 100.0, "slope": 0.002}


def test_the_papers_constants() -> None:
    """Without a floor its prices are nil: a job that starts at once pays nothing. They are kept in the memo."""
    jobs = [_job(f"j{k}", (1, 2), (1, 2), submit_s=400 * k, utility=WORTH) for k in range(4)]
    ours, paper = (_promised(f"oasis:slot_s=600,{options}", jobs) for options in ("low=0.5", "constants=paper"))
    assert ours["j0"] < 0.9 * paper["j0"]
    floored = _promised("oasis:slot_s=600,constants=paper,spread_max=2", jobs)
    assert floored.get("j0", 0.0) < paper["j0"]
    with pytest.raises(InputError, match="history or paper"):
        create("oasis:constants=oracle")


def test_a_memo_of_the_other_rule_starts_a_new_history() -> None:
    @dataclass
    class Changing(Watching):
        def decide(self, view: Snapshot) -> Plan:
            self.policy = create(
                f"oasis:slot_s=600,constants={'paper' if 500_000 < view.now_ms < 900_000 else 'history'}"
            )
            plan = super().decide(view)
            memo = json.loads(self.memo)
            counts.append((len(memo["densities"]), len(memo.get("extents", ()))))
            return replace(plan, memo=PolicyState(memo))  # as it comes back from a store

    counts: list[tuple[int, int]] = []
    jobs = [_job(f"j{k}", (1, 2), (1, 2), submit_s=400 * k, utility=WORTH) for k in range(4)]
    simulate(jobs, CLUSTER, Changing(create("oasis")))
    assert {(1, 0), (2, 0), (1, 1)} <= set(counts), counts
