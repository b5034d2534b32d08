"""One experiment as plain settings: read, check, prepare, run, summarise. Shared by simulate and compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.engine.engine import Settings
from trainmaster.engine.ports import Estimator
from trainmaster.estimate.catalogue import ThroughputCatalogue, load_catalogue
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.fingerprint import DEFAULT_PROFILED_FRACTION, MatrixEstimator
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.model.cluster import Cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec
from trainmaster.model.placement import parse_strategy, strategy_name
from trainmaster.model.policy import Policy, traits_of
from trainmaster.model.units import ms_from_s
from trainmaster.policies.registry import create
from trainmaster.sim.cluster_file import read_cluster, read_teams
from trainmaster.sim.loss_model import EPOCHS
from trainmaster.sim.metrics import job_table, summary
from trainmaster.sim.run import RunResult, simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.sim.workload import workload
from trainmaster.traces import JobTrace, load
from trainmaster.traces.resample import resample
from trainmaster.traces.schema import LONGEST_S
from trainmaster.traces.slice import stretch

MEASURED_AFTER_MS = 60_000
"""With estimated speeds, a job says what it measured a minute after it became productive; with learned ones, every
minute."""


@dataclass(frozen=True)
class Experiment:
    """Everything that determines a result, in the user's words and units."""

    trace: str
    policy: str
    cluster: str
    throughputs: str | None = None
    round_s: float | None = None
    placement: str | None = None
    """None: what the policy prefers, else pack."""
    restart_cost_s: float = 0.0
    resize_cost_s: float = 0.0
    spread_penalty: float = 0.0
    interference: float = 0.0
    noise: float = 0.0
    checkpoint_period_s: float = 0.0
    node_mtbf_s: float = 0.0
    losses_s: float = 0.0
    """Jobs report their loss this often; 0: never."""
    loss_noise: float = 0.0
    unfit: str = "error"
    seed: int = 0
    load: float = 1.0
    """Arrivals come this many times as densely as in the trace; 1 is the trace as it is."""
    resample: str = "none"
    """How a seed above 0 varies the workload: windows, jobs or none (see `traces.resample`)."""
    estimates: str = "oracle"
    """What policies believe of speeds: `oracle` (what jobs say is the truth); `learned`: only what jobs have measured
    in this run, as a live service does, not what they say; or `fingerprint[:FRACTION]` of the cells profiled."""


@dataclass(frozen=True)
class Prepared:
    experiment: Experiment
    trace_name: str
    generated_fields: tuple[str, ...]
    specs: Sequence[JobSpec]
    unfit: list[JobSpec]
    cluster: Cluster
    policy: Policy
    settings: Settings
    truth: TruthOptions
    estimator: Estimator | None = None
    """None: what jobs declare, which is the truth."""
    catalogue: ThroughputCatalogue | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    """What preparing took, once the trace was read."""


@dataclass(frozen=True)
class Outcome:
    summary: dict[str, Any]
    jobs: pl.DataFrame
    result: RunResult


def read_trace(text: str) -> JobTrace:
    """The trace of a file or folder; `demo` is the bundled one, unless a file has that name."""
    if Path(text).exists():
        return load(text)
    if text == "demo":
        with as_file(files("trainmaster.data") / "demo.csv") as bundled:
            return load(bundled)
    raise InputError("no such file", "a trace, or 'demo' for the bundled one", "Check the path.", file=text)


def prepare(wanted: Experiment, trace: JobTrace | None = None) -> Prepared:
    """Read and check everything; raises `InputError` before any work is done. `trace`: already read."""
    cluster = read_cluster(wanted.cluster)
    policy = create(wanted.policy)
    placement = wanted.placement or traits_of(policy).placement or "pack"
    teams = read_teams(wanted.cluster)
    settings = Settings(
        parse_strategy(placement),
        _round_ms(wanted.round_s),
        wanted.seed,
        entity_weights={name: weight for name, (weight, _) in teams.items() if weight != 1.0},
        entity_policies={name: policy for name, (_, policy) in teams.items() if policy is not None},
    )
    truth = _truth(wanted)
    if wanted.unfit not in ("error", "reject"):
        raise InputError(
            f"unknown treatment '{wanted.unfit}' of jobs that never fit", "error or reject", column="--unfit"
        )
    if not wanted.load > 0 or math.isinf(wanted.load):
        raise InputError(f"invalid load factor {wanted.load}", "a positive number", column="--loads")
    fraction = _profiled_fraction(wanted)
    learns = wanted.estimates == "learned"
    trace = read_trace(wanted.trace) if trace is None else trace
    wall_begin, cpu_begin = time.perf_counter(), time.process_time()
    catalogue = load_catalogue(wanted.throughputs) if wanted.throughputs else None
    estimator: Estimator | None = None
    if learns:
        estimator = LearningEstimator(DeclaredSpeeds(), declared=False)
        truth = replace(truth, report_ms=MEASURED_AFTER_MS, report_period_ms=MEASURED_AFTER_MS)
    if fraction is not None:
        assert catalogue is not None
        estimator = MatrixEstimator(catalogue, fraction, wanted.seed)
        truth = replace(truth, report_ms=MEASURED_AFTER_MS)
    if wanted.load != 1.0:
        trace = stretch(trace, 1.0 / wanted.load)
    trace = resample(trace, wanted.resample, wanted.seed)
    jobs = workload(trace, cluster, catalogue, source=wanted.trace)
    if jobs.unfit and wanted.unfit == "error":
        raise _never_fits(trace, *jobs.unfit[0], len(jobs.unfit), wanted.trace)
    fit = jobs.fit
    if truth.loss_period_ms:  # then jobs have epochs, whether their trace says how many or not
        fit = fit.changed(lambda spec: replace(spec, epochs_total=spec.epochs_total or EPOCHS))
    return Prepared(
        wanted,
        trace.name,
        trace.generated_fields,
        fit,
        [spec for spec, _ in jobs.unfit],
        cluster,
        policy,
        settings,
        truth,
        estimator,
        catalogue,
        time.process_time() - cpu_begin,
        time.perf_counter() - wall_begin,
    )


def _never_fits(trace: JobTrace, spec: JobSpec, why: str, n: int, path: str) -> InputError:
    line = int(trace.jobs.filter(pl.col("job_id") == spec.id)["line"][0])
    more = f" (and {n - 1} more such jobs)" if n > 1 else ""
    return InputError(
        f"job '{spec.id}' can never run: {why}{more}",
        "jobs that fit the cluster",
        "Give a larger --cluster, or --unfit reject to count them as rejected.",
        path,
        line,
        "gpus",
    )


def run(
    prepared: Prepared,
    progress: Callable[[int, int, int], None] | None = None,
    record_timeline: bool = False,
    record_history: bool = False,
) -> Outcome:
    """Simulate what was prepared; jobs that can never fit are accounted for as rejected. `cpu_s` and `wall_s` are from
    the trace as read to the finished job table."""
    wall_begin, cpu_begin = time.perf_counter() - prepared.wall_s, time.process_time() - prepared.cpu_s
    pairs = None if prepared.catalogue is None else PairSlowdowns(prepared.catalogue)
    result = simulate(
        prepared.specs,
        prepared.cluster,
        prepared.policy,
        prepared.settings,
        prepared.truth,
        estimator=prepared.estimator or DeclaredSpeeds(prepared.truth.spread_penalty, pairs),
        pairs=pairs,
        progress=progress,
        record_timeline=record_timeline,
        record_history=record_history,
    )
    if prepared.unfit:
        result.over = result.over.with_unfit(prepared.unfit)
    jobs = job_table(result)
    result.cpu_s, result.wall_s = time.process_time() - cpu_begin, time.perf_counter() - wall_begin
    wanted = prepared.experiment
    figures = {
        "policy": wanted.policy,
        "trace": prepared.trace_name,
        "cluster": prepared.cluster.describe(),
        "seed": wanted.seed,
        "round_s": wanted.round_s,
        "restart_cost_s": wanted.restart_cost_s,
        "placement": strategy_name(prepared.settings.placement),
        "generated_fields": list(prepared.generated_fields),
        "throughputs": wanted.throughputs,
        "load": wanted.load,
        "estimates": wanted.estimates,
        "truth": asdict(prepared.truth),
        **summary(result, jobs),
    }
    return Outcome(figures, jobs, result)


def _profiled_fraction(wanted: Experiment) -> float | None:
    """The fraction of cells to profile; None for other estimates."""
    kind, _, number = wanted.estimates.partition(":")
    if wanted.estimates in ("oracle", "learned"):
        return None
    try:
        fraction = float(number) if number else DEFAULT_PROFILED_FRACTION
    except ValueError:
        fraction = math.nan
    if kind != "fingerprint" or not 0.0 <= fraction <= 1.0:
        raise InputError(
            f"unknown estimates '{wanted.estimates}'",
            "oracle, learned, fingerprint or fingerprint:0.2",
            column="--estimates",
        )
    if wanted.throughputs is None:
        raise InputError(
            "fingerprints need reference jobs", "a throughput table", "Add --throughputs FILE.", column="--estimates"
        )
    return fraction


def _round_ms(round_s: float | None) -> int | None:
    if round_s is None:
        return None
    if not 0 < round_s <= LONGEST_S or ms_from_s(round_s) < 1:
        raise InputError(f"invalid round of {round_s} s", "a positive number of seconds", column="--round")
    return ms_from_s(round_s)


def _truth(wanted: Experiment) -> TruthOptions:
    def ms(name: str, value: float) -> int:
        if not 0 <= value <= LONGEST_S:
            raise InputError(f"{value} is out of range", f"0 to {LONGEST_S:g} seconds", column=f"--{name}")
        return ms_from_s(value)

    return TruthOptions(
        restart_cost_ms=ms("restart-cost", wanted.restart_cost_s),
        resize_cost_ms=ms("resize-cost", wanted.resize_cost_s),
        spread_penalty=wanted.spread_penalty,
        interference=wanted.interference,
        noise=wanted.noise,
        checkpoint_period_ms=ms("checkpoint-period", wanted.checkpoint_period_s),
        node_mtbf_ms=ms("node-mtbf", wanted.node_mtbf_s),
        loss_period_ms=ms("losses", wanted.losses_s),
        loss_noise=wanted.loss_noise,
    )
