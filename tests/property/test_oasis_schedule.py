"""The best-schedule subroutine at fixed prices: optimal against brute force; coarse grains never under-
serve.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.oracles.admission_instances import PaperLike, Tiny, paper_like_instance, tiny_instance
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.utility import Linear
from trainmaster.policies.oasis.admission import OnlineAdmission, Population, SearchLimits, best_schedule
from trainmaster.policies.oasis.best_schedule import Ask, Clock, best_rolling
from trainmaster.policies.oasis.gang_options import Gangs, Pool
from trainmaster.policies.oasis.instance.formulation import AdmissionJob, Instance
from trainmaster.policies.oasis.instance.parsing import parse_instance
from trainmaster.policies.oasis.prices import PriceSettings, PriceTable


def committed(problem: Instance, rng: np.random.Generator) -> np.ndarray:
    """Random commitments below capacity."""
    capacity = problem.cluster.capacity
    return rng.integers(0, 3, (problem.horizon, *capacity.shape)) / 3 * capacity


def slot_costs_by_enumeration(
    job: AdmissionJob, prices: np.ndarray, free: np.ndarray, hosts_workers: np.ndarray, hosts_ps: np.ndarray
) -> dict[int, float]:
    """Least cost of d workers and enough PS in one slot: every split over the servers is tried."""
    worker, ps = np.array(job.worker_demand), np.array(job.server_demand)
    most_ps = math.ceil(job.chunks * job.worker_mb_per_slot / job.server_mb_per_slot - 1e-9)
    choices = []
    for s in range(len(prices)):
        fitting = []
        for y in range(job.chunks + 1 if hosts_workers[s] else 1):
            for z in range(most_ps + 1 if hosts_ps[s] else 1):
                taken = y * worker + z * ps
                if (taken <= free[s] + 1e-9).all():
                    fitting.append((y, z, float(taken @ prices[s])))
        choices.append(fitting)
    best: dict[int, float] = {0: 0.0}
    for combination in itertools.product(*choices):
        d, z = sum(c[0] for c in combination), sum(c[1] for c in combination)
        if 1 <= d <= job.chunks and d * job.worker_mb_per_slot <= z * job.server_mb_per_slot * (1 + 1e-9) and z <= d:
            best[d] = min(best.get(d, math.inf), sum(c[2] for c in combination))
    return best


def best_payoff_by_enumeration(job: AdmissionJob, problem: Instance, table: PriceTable, used: np.ndarray) -> float:
    """Every vector of worker counts over the slots that serves W; utility at the last slot with a worker."""
    cluster = problem.cluster
    prices = table.prices(used, cluster.capacity)
    costs = [
        slot_costs_by_enumeration(job, prices[t], cluster.capacity - used[t], cluster.hosts_workers, cluster.hosts_ps)
        for t in range(job.arrival, problem.horizon)
    ]
    best = -math.inf
    for counts in itertools.product(*(sorted(slot) for slot in costs)):
        if sum(counts) >= job.work * (1 - 1e-9):
            last = max(t for t, count in enumerate(counts) if count)
            cost = sum(costs[t][count] for t, count in enumerate(counts))
            best = max(best, job.utility.value(last) - cost)
    return best


@pytest.mark.parametrize("shared_share", [0.0, 0.5, 1.0])
@given(seed=st.integers(0, 10_000), spread=st.floats(0.5, 8))
@settings(max_examples=25, deadline=None)
def test_optimal_at_fixed_prices(shared_share: float, seed: int, spread: float) -> None:
    raw = tiny_instance(Tiny(jobs=2, horizon=4, worker_servers=2, ps_servers=1, shared_share=shared_share), seed)
    problem = parse_instance(raw, "x")
    used = committed(problem, np.random.Generator(np.random.PCG64(seed)))
    population = Population.of(problem.jobs, problem.horizon)
    table = population.prices(problem.cluster, problem.horizon, PriceSettings(spread_max=spread))
    for job in problem.jobs:
        offer = best_schedule(job, table, problem.cluster, used, SearchLimits())
        assert offer.exact
        assert offer.payoff == pytest.approx(best_payoff_by_enumeration(job, problem, table, used), rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 1000), operations=st.sampled_from([1, 2000, 50_000, 500_000]))
@settings(max_examples=20, deadline=None)
def test_coarse_grains_serve_all_and_never_beat_the_exact_cost(seed: int, operations: int) -> None:
    config = PaperLike(jobs=6, horizon=30, worker_servers=10, ps_servers=10)
    problem = parse_instance(paper_like_instance(config, seed), "x")
    online = OnlineAdmission(problem.cluster, problem.horizon, PriceSettings())
    for job in problem.arrivals():
        table = online.prices_for(job)
        exact = best_schedule(job, table, problem.cluster, online.used, SearchLimits(operations_max=10**12))
        coarse = best_schedule(job, table, problem.cluster, online.used, SearchLimits(operations_max=operations))
        assert exact.exact
        assert coarse.payoff <= exact.payoff + 1e-9
        assert (exact.schedule is None) == (coarse.schedule is None) or coarse.schedule is None
        if coarse.schedule is not None:
            by_slot: dict[int, int] = {}
            for slot, _, count in coarse.schedule.workers:
                by_slot[slot] = by_slot.get(slot, 0) + count
            assert sum(by_slot.values()) == job.worker_slots
            assert max(by_slot.values()) <= job.chunks
        online.offer(job)


def test_one_table_gives_every_end_slot() -> None:
    problem = parse_instance(tiny_instance(Tiny(), 3), "x")
    online = OnlineAdmission(problem.cluster, problem.horizon, PriceSettings())
    job = problem.arrivals()[0]
    table = online.prices_for(job)
    whole = best_schedule(job, table, problem.cluster, online.used, SearchLimits(), all_ends=True).cost_by_end
    for end in range(len(whole)):
        cut = online.used[: job.arrival + end + 1]
        alone = best_schedule(job, table, problem.cluster, cut, SearchLimits(), all_ends=True).cost_by_end
        expected = alone[end] if len(alone) > end else math.inf
        assert whole[end] == expected or whole[end] == pytest.approx(expected)


def test_prices_stay_in_log_space() -> None:
    """A steep sigmoid and a long horizon: L underflows as a number; its logarithm does not."""
    raw = paper_like_instance(PaperLike(jobs=40, horizon=300, critical_share=0.9), 1)
    problem = parse_instance(raw, "x")
    population = Population.of(problem.jobs, problem.horizon)
    table = population.prices(problem.cluster, problem.horizon, PriceSettings("paper", 1.0, 1.0, math.inf))
    assert math.exp(table.ln_low.min()) == 0.0
    assert 700 < table.alpha < math.inf
    full = table.prices(problem.cluster.capacity, problem.cluster.capacity)
    # The price of a full worker server is U1^r = max_i f_i(best) / w_i^r.
    gpu = problem.cluster.resources.index("gpu")
    expected = max(
        job.utility.value(job.fewest_slots - 1) / job.worker_demand[gpu]
        for job in problem.jobs
        if job.worker_demand[gpu] > 0 and job.arrival + job.fewest_slots <= problem.horizon
    )
    assert full[0, gpu] == pytest.approx(expected, rel=1e-9)


@given(seed=st.integers(0, 10_000), shared_share=st.sampled_from([0.5, 1.0]))
@settings(max_examples=25, deadline=None)
def test_greedy_placement_on_shared_servers_is_feasible_and_never_beats_the_exact_one(
    seed: int, shared_share: float
) -> None:
    """The fallback for many servers of both roles: forced here by a limit of zero on the exact search."""
    raw = tiny_instance(Tiny(jobs=3, horizon=4, worker_servers=2, ps_servers=2, shared_share=shared_share), seed)
    problem = parse_instance(raw, "x")
    cluster = problem.cluster
    used = committed(problem, np.random.Generator(np.random.PCG64(seed)))
    population = Population.of(problem.jobs, problem.horizon)
    table = population.prices(cluster, problem.horizon, PriceSettings())
    for job in problem.jobs:
        exact = best_schedule(job, table, cluster, used, SearchLimits())
        greedy = best_schedule(job, table, cluster, used, SearchLimits(joint_operations_max=0))
        assert greedy.schedule is None or greedy.exact is (not cluster.shared)
        assert greedy.payoff <= exact.payoff + 1e-9
        if greedy.schedule is None:
            continue
        taken = used + greedy.schedule.usage(job, problem.horizon, len(cluster.servers))
        assert (taken <= cluster.capacity + 1e-9).all()
        workers: dict[int, int] = {}
        servers: dict[int, int] = {}
        for rows, count in ((greedy.schedule.workers, workers), (greedy.schedule.servers, servers)):
            for slot, _, amount in rows:
                count[slot] = count.get(slot, 0) + amount
        assert sum(workers.values()) >= job.work * (1 - 1e-9)
        assert max(workers.values()) <= job.chunks
        for slot, amount in workers.items():
            assert amount * job.worker_mb_per_slot <= servers[slot] * job.server_mb_per_slot * (1 + 1e-9)
        prices = table.prices(used, cluster.capacity)
        cost = float((greedy.schedule.usage(job, problem.horizon, len(cluster.servers)) * prices).sum())
        assert greedy.cost == pytest.approx(cost, rel=1e-9, abs=1e-12)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_rolling_schedule_against_enumeration(seed: int) -> None:
    """The engine's DP over gangs: every choice of a gang (or none) in each of 4 slots, in exact time.

    Work and speeds are whole grains here, so that the DP has nothing to round.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    pool = Pool.of(parse_cluster("a=3x2,b=1"))
    hosts = np.array([True, True, False])
    sizes = np.array([1, 2, 3], np.int64)
    gangs = Gangs(0, sizes, np.zeros(3, np.int64), np.zeros(3, np.bool_), np.array([16.0, 32.0, 64.0]) / 64.0)
    used = rng.integers(0, 2, (4, 3, 1)).astype(float)
    table = PriceTable(np.full((3, 1), -1.0), np.full((3, 1), float(rng.uniform(0, 3))), 1.0)
    slot_ms = 64_000
    steps = float(rng.integers(1, 3 * 64))
    utility = Linear(float(rng.uniform(0.5, 9)), float(rng.uniform(0, 0.05)))
    ask = Ask(0, steps, utility, np.array([1.0]), np.array([0.0]))
    offer = best_rolling(ask, gangs, Clock(0, slot_ms), table, pool, used, hosts, hosts, 10**9)
    prices = table.prices(used, pool.capacity)[:, :, 0]
    best = -math.inf
    for choice in itertools.product(range(-1, 3), repeat=4):
        left, cost, worth = steps, 0.0, None
        for slot, k in enumerate(choice):
            if k < 0 or worth is not None:
                continue
            units = sorted(prices[slot, n] for n in (0, 1) for _ in range(int(pool.capacity[n, 0] - used[slot, n, 0])))
            if len(units) < sizes[k]:
                cost = math.inf
                break
            whole = sum(units[: sizes[k]])
            speed = float(gangs.steps_per_s[k])
            if left <= speed * 64 + 1e-9:
                worth = utility.value(slot * 64 + left / speed)
                cost += whole * left / speed / 64
            else:
                left -= speed * 64
                cost += whole
        if worth is not None and math.isfinite(cost):
            best = max(best, worth - cost)
    if offer is None:
        assert best == -math.inf
        return
    # The end slot is chosen by its end (or the job's own run time), so the DP may miss what ending within a
    # slot is worth, and it may stay in place at up to 1.1 times the price; it can never do better than best.
    assert offer.payoff <= best + 1e-9
    slack = utility.slope * 64 + 0.25 * offer.cost
    assert offer.payoff >= best - slack - 1e-9
