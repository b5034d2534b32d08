"""Many experiments as one: every trace, cluster, load, seed and policy; in parallel, resumable, same bytes.

Each cell is simulated in a process of its own choosing and stored whole or not at all (`comparison_store`).
Nothing is written before every input has been read and checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster import __version__
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.policies.registry import parse
from trainmaster.sim.comparison_store import CellResult, ComparisonStore
from trainmaster.sim.experiment import Experiment, Prepared, prepare, read_trace, run
from trainmaster.sim.timeline import binned
from trainmaster.traces import JobTrace
from trainmaster.traces.resample import KINDS, window_s

TIMELINE_INTERVALS = 150
"""Of the span of arrivals (or of the work at full use, if that is longer)."""
TIMING = ("decide_cpu_s", "solver_cpu_s", "cpu_s", "wall_s")
_VARIED = ("trace", "cluster", "load", "policy", "seed")


@dataclass(frozen=True)
class Comparison:
    """What is to be compared: the axes, and the settings all cells share (`base`)."""

    traces: tuple[str, ...]
    clusters: tuple[str, ...]
    loads: tuple[float, ...]
    policies: tuple[str, ...]
    seeds: int
    base: Experiment


@dataclass(frozen=True)
class Cell:
    """One simulation. `key` names it by content: the same inputs and settings give the same key."""

    key: str
    trace_label: str
    experiment: Experiment
    width_s: float
    keep_history: bool


@dataclass(frozen=True)
class CellFault:
    cell: Cell
    message: str


def split_policies(texts: Sequence[str]) -> tuple[str, ...]:
    """`a,b:x=1,y=2,c` to a, b:x=1,y=2 and c: a comma starts another policy unless an option follows."""
    found: list[str] = []
    for text in texts:
        begins = True
        for piece in filter(None, (part.strip() for part in text.split(","))):
            if begins or "=" not in piece.partition(":")[0]:
                found.append(piece)
            else:
                found[-1] += f",{piece}"
            begins = False
    if not found:
        raise InputError("no policy is named", "at least one", "Example: --policies fifo,srtf", column="--policies")
    for name in found:
        parse(name)
    for index, name in enumerate(found):
        if name in found[:index]:
            raise InputError(f"policy '{name}' is named twice", "each policy once", column="--policies")
    return tuple(found)


def plan(wanted: Comparison) -> tuple[dict[str, Any], list[Cell]]:
    """Read and check every input; the settings that determine the result, and the cells in a fixed order."""
    if wanted.seeds < 1:
        raise InputError(f"invalid number of seeds {wanted.seeds}", "at least 1", column="--seeds")
    if wanted.base.resample not in KINDS:
        raise InputError(
            f"unknown resampling '{wanted.base.resample}'",
            "one of " + ", ".join(KINDS),
            column="--resample",
        )
    _refuse_twice(wanted.traces, "TRACE")
    _refuse_twice(wanted.clusters, "--cluster")
    _refuse_twice(wanted.loads, "--loads")
    cells: list[Cell] = []
    sources: list[dict[str, Any]] = []
    labels: list[str] = []
    tables = None if wanted.base.throughputs in (None, "builtin") else _digest(Path(str(wanted.base.throughputs)))
    for source in wanted.traces:
        trace = read_trace(source)
        digest = _trace_digest(trace)
        label = trace.name if trace.name not in labels else f"{trace.name}#{labels.count(trace.name) + 1}"
        labels.append(trace.name)
        sources.append(
            {
                "name": label,
                "file": source,
                "format": trace.source,
                "sha256": digest,
                "jobs": len(trace),
                "generated_fields": list(trace.generated_fields),
                "resample_window_s": window_s(trace),
            }
        )
        for cluster in wanted.clusters:
            for load in wanted.loads:
                first = replace(
                    wanted.base, trace=source, cluster=cluster, load=load, policy=wanted.policies[0], seed=0
                )
                width_s = _interval_s(prepare(first, trace))
                for seed in range(wanted.seeds):
                    for policy in wanted.policies:
                        this = replace(first, policy=policy, seed=seed)
                        cells.append(Cell(_key(this, digest, tables), label, this, width_s, seed == 0))
    shared = {name: value for name, value in asdict(wanted.base).items() if name not in _VARIED}
    settings = {
        "trainmaster": __version__,
        "traces": sources,
        "clusters": list(wanted.clusters),
        "cluster_sha256": [_digest(Path(c)) if Path(c).is_file() else None for c in wanted.clusters],
        "loads": list(wanted.loads),
        "policies": list(wanted.policies),
        "seeds": wanted.seeds,
        "throughputs_sha256": tables,
        **shared,
    }
    return settings, cells


def execute(
    store: ComparisonStore, cells: Sequence[Cell], processes: int, done: Callable[[int, int, Cell], None]
) -> list[CellFault]:
    """Run what is not stored yet. A cell that fails does not stop the others; its fault is returned."""
    todo = [cell for cell in cells if not store.has(cell.key)]
    finished = len(cells) - len(todo)
    if todo and finished:
        done(finished, len(cells), todo[0])
    faults: list[CellFault] = []
    for cell, message in _outcomes(str(store.folder), todo, processes):
        if message is not None:
            faults.append(CellFault(cell, message))
        finished += 1
        done(finished, len(cells), cell)
    return sorted(faults, key=lambda fault: fault.cell.key)


def _outcomes(folder: str, todo: Sequence[Cell], processes: int) -> Iterator[tuple[Cell, str | None]]:
    if processes <= 1 or len(todo) <= 1:
        for cell in todo:
            yield cell, run_cell(folder, cell)
        return
    # Started afresh (spawn), not forked: threads of the table library do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(todo)), mp_context=context)
    try:
        waiting = {pool.submit(run_cell, folder, cell): cell for cell in todo}
        while waiting:
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                yield waiting.pop(future), future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_cell(folder: str, cell: Cell) -> str | None:
    """Simulate and store one cell; the message of what went wrong, if something did."""
    try:
        ComparisonStore(Path(folder)).put(cell.key, simulate_cell(cell))
    except TrainmasterError as error:
        return str(error)
    return None


def simulate_cell(cell: Cell) -> CellResult:
    """The rows of one cell. Figures that depend on the machine are kept apart, under `timing`."""
    prepared = prepare(cell.experiment, _cached_trace(cell.experiment.trace))
    outcome = run(prepared, record_timeline=True, record_history=cell.keep_history)
    axes = {
        "trace": cell.trace_label,
        "cluster": cell.experiment.cluster,
        "load": cell.experiment.load,
        "policy": cell.experiment.policy,
        "seed": cell.experiment.seed,
    }
    figures = dict(outcome.summary)
    fairness = figures.pop("fairness")
    timing = {name: figures.pop(name) for name in TIMING}
    for name in ("truth", "generated_fields", "throughputs", "round_s", "restart_cost_s", "placement", *axes):
        figures.pop(name, None)
    notes = figures.pop("notes")
    first_s = min((spec.submit_ms for spec in prepared.specs), default=0) / 1000.0
    result = {
        **axes,
        "offered_load": _offered_load(outcome.jobs, prepared.cluster.total_gpus),
        "cluster_gpus": prepared.cluster.total_gpus,
        **figures,
        **{f"fairness_{name}": value for name, value in fairness.items()},
        "notes": " | ".join(notes),
    }
    history = outcome.result.history
    return CellResult(
        result=result,
        timing={**axes, **timing},
        jobs=_with_axes(outcome.jobs, axes),
        timeline=_with_axes(binned(outcome.result.timeline, first_s, cell.width_s), axes),
        allocations=None if history is None else _with_axes(history.table(outcome.result.end_ms), axes),
    )


def _with_axes(table: pl.DataFrame, axes: dict[str, Any]) -> pl.DataFrame:
    marks = [pl.lit(value, dtype=_axis_type(value)).alias(name) for name, value in axes.items()]
    return table.select(*marks, pl.all())


def _axis_type(value: Any) -> pl.DataType:
    return pl.String() if isinstance(value, str) else pl.Float64() if isinstance(value, float) else pl.Int32()


def _offered_load(jobs: pl.DataFrame, gpus: int) -> float | None:
    """Work at the size and speed asked for, over what the cluster could do while jobs arrived."""
    submits = jobs["submit_s"]
    span_s = float(submits[-1] - submits[0])
    work = (jobs["gpus"] * jobs["ideal_s"]).sum()
    return float(work) / (gpus * span_s) if span_s > 0 and math.isfinite(work) else None


def _interval_s(prepared: Prepared) -> float:
    specs = prepared.specs
    if not specs:
        return 1.0
    span_s = (specs[-1].submit_ms - specs[0].submit_ms) / 1000.0
    work = sum(s.gpus * (s.work_total or 0.0) / max(s.steps_per_s.values(), default=1.0) for s in specs)
    return max(span_s, work / prepared.cluster.total_gpus, 1.0) / TIMELINE_INTERVALS


@lru_cache(maxsize=4)
def _cached_trace(source: str) -> JobTrace:
    """A process runs many cells of the same trace: read it once."""
    return read_trace(source)


def _refuse_twice(values: Sequence[Any], column: str) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise InputError(f"'{value}' is given twice", "each once", column=column)
    if not values:
        raise InputError("nothing is given", "at least one", column=column)


def _key(experiment: Experiment, trace_digest: str, tables_digest: str | None) -> str:
    facts = {
        **asdict(experiment),
        "trace": trace_digest,
        "throughputs": [experiment.throughputs, tables_digest],
    }
    text = json.dumps([__version__, facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "a readable file", file=path) from None


def _trace_digest(trace: JobTrace) -> str:
    """Of the jobs as read, whatever the file's format or place."""
    return hashlib.sha256(trace.jobs.write_csv().encode()).hexdigest()
