"""CPU seconds per solve of the Gavel policies, next to a cvxpy formulation of the same problem in the same
run.

python bench/bench_gavel_solve.py [--types 3] [--sizes 32,512,2048] [--policies gavel-max-min,...] [--repeat 3]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from trainmaster.policies.gavel.objectives import allocate
from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult, Entity, Pairs, make_problem

POLICIES = "gavel-max-min,gavel-makespan,gavel-ftf,gavel-throughput,gavel-cost,gavel-water-filling,gavel-hierarchical"
CVXPY_JOBS_MAX = 2048


def random_problem(jobs: int, types: int, seed: int, load: float = 16.0, pairs: bool = False) -> AllocationProblem:
    """Gangs 1/2/4/8 as in the published generator, weight 5 for a fifth, `load` GPUs asked per GPU (so that
    GPUs are scarce, not one job's time), some 30 h of work each; ten entities."""
    rng = np.random.Generator(np.random.PCG64(seed))
    speed = rng.uniform(0.5, 1.5, (jobs, 1)) * np.sort(rng.uniform(0.3, 10.0, (jobs, types)), axis=1)
    gpus = np.ones(jobs) if pairs else rng.choice([1.0, 2.0, 4.0, 8.0], jobs, p=[0.7, 0.1, 0.15, 0.05])
    counts = np.maximum(1.0, np.floor(np.full(types, gpus.sum() / load / types)))
    sharing = None
    if pairs:
        first, second = np.triu_indices(jobs, 1)
        part = rng.uniform(0.35, 0.75, (len(first), types, 2))
        sharing = Pairs(np.stack([first, second], axis=1), part * np.stack([speed[first], speed[second]], axis=2))
    return make_problem(
        speed,
        counts,
        gpus=gpus,
        weight=rng.choice([1.0, 5.0], jobs, p=[0.8, 0.2]),
        steps_remaining=speed.mean(axis=1) * rng.uniform(0.5e5, 1.5e5, jobs),
        elapsed_s=rng.uniform(0.0, 1e5, jobs),
        cost_per_hour=rng.uniform(0.4, 3.0, types),
        pairs=sharing,
        entities=tuple(Entity(str(i), float(1 + i % 3)) for i in range(10)),
        entity_of=rng.integers(0, 10, jobs),
    )


def cvxpy_seconds(problem: AllocationProblem, policy: str) -> float | None:
    """The same objective as one cvxpy problem; None where it is not a single program."""
    import cvxpy as cp

    x = cp.Variable(problem.throughput.shape, nonneg=True)
    thr = cp.sum(cp.multiply(problem.throughput, x), axis=1)
    rows = [cp.sum(x, axis=1) <= 1, x.T @ problem.gpus <= problem.counts]
    prop = problem.throughput @ problem.counts / problem.counts.sum()
    if policy == "gavel-max-min":
        goal = cp.Maximize(cp.min(cp.multiply(problem.gpus / (problem.weight * prop), thr)))
    elif policy == "gavel-makespan":
        goal = cp.Maximize(cp.min(cp.multiply(1e6 / problem.steps_remaining, thr)))
    elif policy == "gavel-ftf":
        share = problem.counts[None, :] / (problem.job_count * problem.gpus[:, None])
        share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
        due = problem.steps_remaining / (problem.throughput * share).sum(axis=1)
        ratio = problem.elapsed_s / due + cp.multiply(problem.steps_remaining / due, cp.inv_pos(thr))
        goal = cp.Minimize(cp.max(ratio))
    elif policy == "gavel-throughput":
        goal = cp.Maximize(cp.sum(thr))
    elif policy == "gavel-cost":
        goal = cp.Maximize(cp.sum(cp.multiply(problem.throughput / problem.cost_per_hour[None, :], x)))
    else:
        return None
    began = time.process_time()
    cp.Problem(goal, rows).solve()
    return time.process_time() - began


def least_time(problem: AllocationProblem, policy: str, repeat: int) -> tuple[AllocationResult, float]:
    began = time.process_time()
    result = allocate(problem, policy)
    spent = time.process_time() - began
    for _ in range(repeat - 1):
        began = time.process_time()
        allocate(problem, policy)
        spent = min(spent, time.process_time() - began)
    return result, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=int, default=3)
    parser.add_argument("--sizes", default="32,128,512,2048,100000")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--pairs", type=int, default=0, help="also max-min with all pairs of this many jobs")
    parser.add_argument("--repeat", type=int, default=3, help="the least CPU time of so many solves (cvxpy: one)")
    parser.add_argument("--no-cvxpy", action="store_true")
    args = parser.parse_args()
    warm = random_problem(20, args.types, 1)
    for policy in args.policies.split(","):
        allocate(warm, policy)
    print("| policy | jobs | types | CPU ms | cvxpy ms | ratio | passes | gap | status |")
    print("|---|---|---|---|---|---|---|---|---|")
    for policy in args.policies.split(","):
        for jobs in (int(size) for size in args.sizes.split(",")):
            problem = random_problem(jobs, args.types, jobs)
            result, spent = least_time(problem, policy, args.repeat)
            other = None if args.no_cvxpy or jobs > CVXPY_JOBS_MAX else cvxpy_seconds(problem, policy)
            text = "-" if other is None else f"{other * 1e3:.0f}"
            ratio = "-" if other is None else f"{other / spent:.0f}"
            row = (
                policy,
                jobs,
                args.types,
                f"{spent * 1e3:.2f}",
                text,
                ratio,
                result.iterations,
                f"{result.gap:.0e}",
            )
            print("|", " | ".join(str(cell) for cell in (*row, result.status.value)), "|", flush=True)
    if args.pairs:
        problem = random_problem(args.pairs, args.types, args.pairs, pairs=True)
        began = time.process_time()
        result = allocate(problem, "gavel-max-min", {"space_sharing": True})
        spent = time.process_time() - began  # once: nothing is shorter the second time
        print(
            f"space sharing, {args.pairs} jobs, all pairs: {spent * 1e3:.0f} ms, gap {result.gap:.0e}",
            result.status,
        )


if __name__ == "__main__":
    main()
