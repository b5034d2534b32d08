"""One admission instance in, one result out: what `trainmaster solve` calls for OASiS and its baselines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.model.errors import InputError
from trainmaster.policies.oasis.admission import OnlineAdmission, Population, SearchLimits, rejection
from trainmaster.policies.oasis.instance.formulation import Instance, Schedule
from trainmaster.policies.oasis.instance.parsing import parse_instance, parse_jobs
from trainmaster.policies.oasis.optimum.exact import offline_optimum
from trainmaster.policies.oasis.optimum.proof import cases
from trainmaster.policies.oasis.prices import PAPER_SETTINGS, PriceSettings
from trainmaster.policies.oasis.solve_baselines import BaselineSettings, run_baseline

POLICIES = ("oasis", "rrh", "dorm", "fifo", "drf", "optimal")


@dataclass(frozen=True)
class _Outcome:
    """What any policy decided: payoff, schedule and remarks per job, and remarks on the whole."""

    payoffs: dict[str, float | None]
    schedules: dict[str, Schedule]
    remarks: dict[str, dict[str, Any]] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    alpha: float | None = None


def solve_instance(
    instance: Mapping[str, Any],
    policy: str,
    options: Mapping[str, Any] | None = None,
    source: str = "instance",
    cpu_clock: Callable[[], float] = time.process_time,
) -> dict[str, Any]:
    """Decide an admission instance with one of `POLICIES`; `InputError` before anything is computed if it
    is bad.

    Options of `oasis`: constants=history|declared|oracle|paper (the last: oracle with rule=paper),
    rule=density|paper, scale, low, spread_max (the floor on L), operations_max. Of the baselines: workers (fixed
    number; default drawn from 1..30), seed, and for dorm theta1 and theta2, for rrh alpha, discount and threshold.
    Of `optimal`: nodes_max.
    """
    if policy not in POLICIES:
        raise InputError(f"unknown policy '{policy}' for an admission instance", " | ".join(POLICIES))
    reader = _Options(policy, dict(options or {}))
    problem = parse_instance(instance, source)
    if policy == "oasis":
        decide = _prepare_oasis(problem, instance, reader, source)
    elif policy == "optimal":
        nodes_max = reader.whole("nodes_max", 20_000, least=1)
        decide = lambda: _optimal(problem, nodes_max)  # noqa: E731
    else:
        settings = _baseline_settings(reader)
        decide = lambda: _baseline(problem, policy, settings)  # noqa: E731
    reader.done()
    started_s = cpu_clock()
    outcome = decide()
    return _result(problem, policy, outcome, cpu_clock() - started_s)


def _prepare_oasis(problem: Instance, raw: Mapping[str, Any], reader: _Options, source: str) -> Callable[[], _Outcome]:
    constants = reader.choice("constants", "history", ("history", "declared", "oracle", "paper"))
    rule = reader.choice("rule", "density", ("density", "paper"))
    if constants == "paper":
        constants, rule = "oracle", "paper"
    base = PriceSettings() if rule == "density" else PAPER_SETTINGS
    settings = PriceSettings(
        base.rule,
        reader.number("scale", base.scale, least=1e-12),
        reader.number("low", base.low, least=1e-12),
        reader.number("spread_max", base.spread_max, least=0.0),
    )
    limits = SearchLimits(operations_max=reader.whole("operations_max", SearchLimits().operations_max, least=1))
    population = history = None
    if constants == "oracle":
        population = Population.of(problem.jobs, problem.horizon)
    elif constants == "declared":
        declared = raw.get("population")
        if not declared:
            raise InputError(
                "constants=declared, but the instance declares no jobs",
                'a key "population" with a list of jobs',
                "Add it, or use constants=history",
                source,
                column="population",
            )
        jobs = parse_jobs(declared, problem.cluster, problem.horizon, source, "population")
        population = Population.of(jobs, problem.horizon)
    elif raw.get("history"):
        jobs = parse_jobs(raw["history"], problem.cluster, problem.horizon, source, "history")
        history = Population.of(jobs, problem.horizon)

    def decide() -> _Outcome:
        online = OnlineAdmission(
            problem.cluster, problem.horizon, settings, population=population, history=history, limits=limits
        )
        payoffs: dict[str, float | None] = {}
        schedules: dict[str, Schedule] = {}
        remarks: dict[str, dict[str, Any]] = {}
        alpha = 1.0
        for job in problem.arrivals():
            offer, own_alpha = online.offer(job)
            alpha = max(alpha, own_alpha)
            payoffs[job.id] = None if offer.schedule is None else offer.payoff
            admitted = offer.schedule if offer.payoff > 0 else None
            remarks[job.id] = {
                "cost": 0.0 if admitted is None else offer.cost,
                "exact": offer.exact,
                "grain_worker_slots": offer.grain_worker_slots,
            }
            if admitted is not None:
                schedules[job.id] = admitted
            else:
                remarks[job.id]["rejection"] = rejection(job, offer, problem.horizon)
        return _Outcome(payoffs, schedules, remarks, {"constants": constants, "rule": rule}, alpha)

    return decide


def _optimal(problem: Instance, nodes_max: int) -> _Outcome:
    solution = offline_optimum(problem, nodes_max=nodes_max)
    payoffs = _utilities(problem, solution.schedules)
    extras: dict[str, Any] = {"status": solution.status, "upper_bound": solution.upper_bound, "gap": solution.gap}
    if solution.proof is not None:
        extras["proof_cases"] = cases(solution.proof)
    return _Outcome(payoffs, solution.schedules, extras=extras)


def _baseline(problem: Instance, policy: str, settings: BaselineSettings) -> _Outcome:
    schedules, unfinished = run_baseline(problem, policy, settings)
    remarks = {job_id: {"unserved_worker_slots": left} for job_id, left in unfinished.items()}
    return _Outcome(_utilities(problem, schedules), schedules, remarks)


def _utilities(problem: Instance, schedules: dict[str, Schedule]) -> dict[str, float | None]:
    """Policies without prices: the payoff of an admitted job is its utility, of another one nothing."""
    return {
        job.id: job.utility.value(schedules[job.id].completion - job.arrival) if job.id in schedules else 0.0
        for job in problem.jobs
    }


def _result(problem: Instance, policy: str, outcome: _Outcome, cpu_s: float) -> dict[str, Any]:
    servers = problem.cluster.servers
    jobs: dict[str, dict[str, Any]] = {}
    total = 0.0
    for job in problem.jobs:
        schedule = outcome.schedules.get(job.id)
        utility = job.utility.value(schedule.completion - job.arrival) if schedule is not None else 0.0
        total += utility
        jobs[job.id] = {
            "admitted": schedule is not None,
            "payoff": outcome.payoffs[job.id],
            "completion": schedule.completion if schedule is not None else None,
            "workers": [[t, servers[s].id, n] for t, s, n in schedule.workers] if schedule is not None else [],
            "servers": [[t, servers[s].id, n] for t, s, n in schedule.servers] if schedule is not None else [],
            "utility": utility,
            **outcome.remarks.get(job.id, {}),
        }
    return {
        "policy": policy,
        "total_utility": total,
        "jobs": jobs,
        "bound_alpha": outcome.alpha,
        "solve_cpu_s": cpu_s,
        **outcome.extras,
    }


def _baseline_settings(reader: _Options) -> BaselineSettings:
    default = BaselineSettings()
    workers = reader.whole("workers", 0, least=0)
    return BaselineSettings(
        workers=workers or None,
        seed=reader.whole("seed", default.seed, least=0),
        theta1=reader.number("theta1", default.theta1, least=0.0) if reader.policy == "dorm" else default.theta1,
        theta2=reader.number("theta2", default.theta2, least=0.0) if reader.policy == "dorm" else default.theta2,
        alpha=reader.number("alpha", default.alpha, least=0.0) if reader.policy == "rrh" else default.alpha,
        discount=reader.number("discount", default.discount, least=0.0) if reader.policy == "rrh" else 0.0,
        threshold=reader.number("threshold", default.threshold) if reader.policy == "rrh" else 0.0,
    )


class _Options:
    """Typed reading of policy options, which may come as text from a policy name; unknown ones are errors."""

    def __init__(self, policy: str, options: dict[str, Any]) -> None:
        self.policy = policy
        self._left = options
        self._known: list[str] = []

    def number(self, name: str, default: float, least: float = float("-inf")) -> float:
        self._known.append(name)
        raw = self._left.pop(name, default)
        try:
            value = float(raw)
        except (TypeError, ValueError):
            value = float("nan")
        if isinstance(raw, bool) or not value >= least:
            raise self._error(name, raw, f"a number >= {least:g}" if least > float("-inf") else "a number")
        return value

    def whole(self, name: str, default: int, least: int) -> int:
        value = self.number(name, default, least)
        if not value.is_integer():
            raise self._error(name, value, f"a whole number >= {least}")
        return int(value)

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        self._known.append(name)
        value = self._left.pop(name, default)
        if value not in allowed:
            raise self._error(name, value, " | ".join(allowed))
        return value

    def done(self) -> None:
        for name in sorted(self._left):
            raise InputError(f"policy '{self.policy}' has no option '{name}'", " | ".join(self._known), column=name)

    def _error(self, name: str, value: Any, expected: str) -> InputError:
        return InputError(f"option '{name}' of policy '{self.policy}' is {value!r}", expected, column=name)
