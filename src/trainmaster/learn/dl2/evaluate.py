"""Policies compared in the real engine on the same traces, none of which was used to train or to choose weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainmaster.engine.engine import Settings
from trainmaster.learn.seeds import TEST_SEEDS
from trainmaster.learn.sizing.job_types import (
    ANALYTIC,
    DATA_PARALLEL,
    LINEAR,
    JobKind,
    Kind,
    ParallelKind,
    ProfiledKind,
)
from trainmaster.learn.sizing.trace import SizingSpec, SizingTrace, draw_trace
from trainmaster.model.errors import InputError
from trainmaster.model.scaling import Scaling
from trainmaster.model.units import MS_PER_S
from trainmaster.policies import registry
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.traces import JobTrace

BASELINES = (
    "drf", "srtf", "tetris", "optimus", "optimus:error=0.05", "optimus:error=0.1", "optimus:error=0.2",
    "optimus:fitted=true,error=0.1",
)  # fmt: skip
LEARNED = "dl2:fitted=true,error=0.1"

UNSEEN_KINDS: tuple[Kind, ...] = (
    ProfiledKind("transformer", Scaling(a=0.90, b=0.20, c=0.060, d=0.010, f=0.70)),
    ProfiledKind("speech", Scaling(a=0.25, b=0.45, c=0.30, d=0.030, e=0.001)),
    ProfiledKind("gan", Scaling(a=0.55, b=0.05, c=0.010, d=0.020, e=0.0005, f=0.10)),
    ProfiledKind("factorisation", Scaling(a=0.02, b=0.05, c=0.15, d=0.008, f=0.60, g=0.004)),
)
"""Kinds that no training trace holds: ours, neither measured nor the paper's."""
UNSEEN_ANALYTIC: tuple[Kind, ...] = (
    JobKind("transformer", 0.31, 260.0, 180.0),
    JobKind("lstm-ctc", 0.92, 88.0, 70.0),
    JobKind("gan", 0.12, 14.0, 110.0),
    JobKind("matrix-factor", 0.05, 61.0, 45.0),
)

SMALL = SizingSpec()
PARALLEL = SizingSpec(servers=24, jobs=40, arrivals_per_slot_max=2, servers_max=0, kinds=DATA_PARALLEL)
"""Jobs without servers."""
SCENARIOS: Mapping[str, SizingSpec] = {
    "small": SMALL,
    "unseen-kinds": replace(SMALL, kinds=UNSEEN_KINDS),
    "twice-the-load": replace(SMALL, arrival_scale=2.0),
    "half-the-cluster": replace(SMALL, servers=24),
    "analytic": replace(SMALL, kinds=ANALYTIC),
    "unseen-analytic": replace(SMALL, kinds=UNSEEN_ANALYTIC),
    "speed-5%": replace(SMALL, speed_variation=0.05),
    "speed-15%": replace(SMALL, speed_variation=0.15),
    "speed-25%": replace(SMALL, speed_variation=0.25),
    "data-parallel": PARALLEL,
    "data-parallel-linear": replace(PARALLEL, kinds=LINEAR),
    "data-parallel-unseen": replace(
        PARALLEL, kinds=(ParallelKind("tenth", 0.1), ParallelKind("saturating", 0.0, 0.01))
    ),
    "large": replace(SMALL, servers=120, jobs=150, arrivals_per_slot_max=8),
}


@dataclass(frozen=True)
class Scores:
    """Mean completion time in seconds by policy, one per trace, in the order of the traces."""

    scenario: str
    completion_s: Mapping[str, tuple[float, ...]]


def scenario(name: str) -> SizingSpec:
    if name not in SCENARIOS:
        raise InputError(f"unknown scenario '{name}'", "one of " + ", ".join(SCENARIOS))
    return SCENARIOS[name]


def sampled_from(trace: JobTrace, base: SizingSpec = SMALL) -> SizingSpec:
    """The base with lengths and gaps of a real trace, sampled; gaps are stretched to the base's rate of arrival."""
    lengths = trace.jobs["duration_s"].drop_nulls().to_numpy()
    lengths = lengths[(lengths >= base.length_min_s) & (lengths <= base.length_max_s)]
    gaps = np.diff(np.sort(trace.jobs["submit_s"].to_numpy()))
    if len(lengths) < 10 or len(gaps) < 10 or gaps.mean() <= 0:
        raise InputError(f"trace '{trace.name}' is too small to sample from", "ten jobs with durations, or more")
    rng = np.random.Generator(np.random.PCG64(7))
    few_lengths = rng.choice(lengths, size=min(2000, len(lengths)), replace=False)
    few_gaps = rng.choice(gaps, size=min(2000, len(gaps)), replace=False)
    wanted_s = base.slot_s / (0.5 * base.arrivals_per_slot_max)
    few_gaps = few_gaps * (wanted_s / few_gaps.mean())
    # Real traces have days in which nothing and minutes in which everything arrives; keep that within bounds.
    return replace(
        base, lengths_s=tuple(np.round(few_lengths, 3).tolist()), gaps_s=tuple(np.round(few_gaps, 3).tolist())
    )


def completion_s(trace: SizingTrace, policy: str) -> float:
    """Mean completion time of a trace under a policy, in the engine with the simulator."""
    # Progress is what jobs report, twice in a slot: whoever learns from it learns from measurements, not declarations.
    report_ms = round(trace.spec.slot_s * MS_PER_S / 2)
    truth = TruthOptions(noise=trace.spec.speed_variation, report_ms=report_ms, report_period_ms=report_ms)
    settings = Settings(round_ms=round(trace.spec.slot_s * MS_PER_S))
    result = simulate(trace.job_specs(), trace.spec.cluster(), registry.create(policy), settings, truth)
    return float(np.mean([end.ended_ms - end.spec.submit_ms for end in result.ended])) / MS_PER_S


def evaluate(
    name: str,
    spec: SizingSpec,
    policies: Sequence[str],
    traces: int,
    advance: Callable[[int], None] | None = None,
    first_seed: int = TEST_SEEDS,
) -> Scores:
    """Every policy on the same `traces` test traces."""
    policies = list(dict.fromkeys(policies))  # one named twice would count every trace twice
    for policy in policies:
        registry.create(policy)  # a bad name or file is told before anything runs
    found: dict[str, list[float]] = {policy: [] for policy in policies}
    for k in range(traces):
        trace = draw_trace(spec, first_seed + k)
        for policy in policies:
            found[policy].append(completion_s(trace, policy))
        if advance:
            advance(k + 1)
    return Scores(name, {policy: tuple(values) for policy, values in found.items()})
