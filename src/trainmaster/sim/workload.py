"""From a trace to the jobs of a simulation: sizes, work, speeds by type, deadlines. Invalid rows are refused here.

Rows that differ in id, submission, work and deadline alone are of one kind, and only one `JobSpec` is made of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trainmaster.core.arrays import Floats, Ints
from trainmaster.estimate.catalogue import ThroughputCatalogue
from trainmaster.model.capacity.feasibility import fits_when_empty
from trainmaster.model.cluster import Cluster
from trainmaster.model.errors import InputError
from trainmaster.model.foreign import MAX_NUMBER, parse_json
from trainmaster.model.job import SERVER_DEMAND, DeadlineKind, Demand, JobId, JobSpec
from trainmaster.model.scaling import LINEAR, Scaling, amdahl
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS, ms_from_s
from trainmaster.sim.job_list import JobList
from trainmaster.traces import JobTrace
from trainmaster.traces.schema import LONGEST_S, SERVER_COLUMNS
from trainmaster.traces.utility import at_age

ELASTIC_SERIAL_FRACTION = 0.02
"""Scaling of elastic jobs of which nothing else is known: 1/((1 - s)/w + s)."""
_GPUS_OFF = 1e-3
"""By how much of a GPU, or of all of them, workers times GPUs each may differ from the total, which may be rounded."""
_KINDS = {"hard": DeadlineKind.HARD, "soft": DeadlineKind.SOFT}
_SHAPE = (
    "gpus", "num_workers", "gpus_per_worker", "gpu_types", "cpus", "mem_gib", "min_gpus", "max_gpus", "model",
    *(column.name for column in SERVER_COLUMNS), "batch_size", "deadline_kind", "utility", "vc", "priority", "extra",
)  # fmt: skip
_OWN = ("submit_s", "duration_s", "iterations", "deadline_s")
"""What jobs of one kind may differ in, beside their id; whether there is a value at all is part of the kind."""


@dataclass(frozen=True)
class Workload:
    """Jobs in order of submission, and why the cluster could never run some of them (empty: it could), by kind."""

    specs: JobList
    why_unfit: list[str]

    @cached_property
    def _is_unfit(self) -> npt.NDArray[np.bool_]:
        return np.array([bool(why) for why in self.why_unfit], np.bool_)[self.specs.kind]

    @property
    def fit(self) -> JobList:
        return self.specs.select(np.flatnonzero(~self._is_unfit)) if self._is_unfit.any() else self.specs

    @property
    def unfit(self) -> list[tuple[JobSpec, str]]:
        places = np.flatnonzero(self._is_unfit).tolist()
        return [(self.specs[at], self.why_unfit[self.specs.kind.item(at)]) for at in places]


def workload(
    trace: JobTrace, cluster: Cluster, catalogue: ThroughputCatalogue | None = None, *, source: str = ""
) -> Workload:
    """The jobs of a trace for this cluster. A row that makes no sense raises `InputError` with its line."""
    builder = _Builder(cluster, catalogue, source or trace.name)
    present = ("job_id", *_SHAPE, *_OWN, "line")
    rows = trace.jobs.select(name for name in present if name in trace.jobs.columns)
    kind, first = _kinds(rows)
    try:
        templates = [builder.spec(row) for row in rows[first].iter_rows(named=True)]
        jobs = _job_list(rows, kind, templates)
    except InputError:
        for row in rows.iter_rows(named=True):  # the first row in the file that is wrong is the one to name
            builder.spec(row)
        raise
    return Workload(jobs, [builder.why_unfit(spec) for spec in templates])


def _kinds(rows: pl.DataFrame) -> tuple[Ints, Ints]:
    """The kind of each row, and the first row of each kind; kinds are numbered in order of first use."""
    texts = pl.col("extra") if "extra" in rows.columns else pl.lit(None, pl.String)
    rows = rows.with_columns(pl.when(texts.str.contains("weight|slo_multiple")).then(texts).alias("extra"))
    relative = rows["extra"].str.contains("slo_multiple").any() or (
        "utility" in rows.columns and rows["utility"].null_count() < len(rows)
    )  # to the time of submission
    shape = (*_SHAPE, *_OWN) if relative else _SHAPE
    keys = [rows[name] for name in shape if name in rows.columns]
    keys += [rows[name].is_null().alias(f"no {name}") for name in _OWN if name in rows.columns]
    keys = [key for key in keys if not _is_constant(key)]
    if not keys:
        return np.zeros(len(rows), np.int64), np.zeros(min(len(rows), 1), np.int64)
    groups = (
        pl.DataFrame(keys)
        .with_row_index("row")
        .group_by([key.name for key in keys], maintain_order=True)
        .agg(pl.first("row").alias("first"), pl.col("row"))
    )
    kind = np.empty(len(rows), np.int64)
    kind[groups["row"].explode().to_numpy()] = np.repeat(np.arange(len(groups)), groups["row"].list.len().to_numpy())
    return kind, groups["first"].to_numpy().astype(np.int64)


def _is_constant(values: pl.Series) -> bool:
    nulls = values.null_count()
    return nulls == len(values) or (nulls == 0 and bool((values == values[0]).all()))


def _job_list(rows: pl.DataFrame, kind: Ints, templates: list[JobSpec]) -> JobList:
    """The jobs of rows whose kinds have these templates."""
    steps, seconds, due_s = (_numbers(rows, name) for name in ("iterations", "duration_s", "deadline_s"))
    submit_ms = _ms(_numbers(rows, "submit_s"))
    by_steps = np.isnan(seconds)
    jobs = JobList(templates, kind, rows["job_id"], submit_ms, np.where(by_steps, steps, seconds), submit_ms)
    fastest = jobs.floats(lambda spec: max(spec.steps_per_s.values(), default=1.0))
    if (by_steps & (steps > LONGEST_S * fastest)).any():
        raise InputError("a job with too many iterations")
    deadline_ms = jobs.ints(lambda spec: spec.deadline_ms)
    stated = ~np.isnan(due_s)
    if "deadline_kind" in rows.columns:
        stated &= (rows["deadline_kind"].fill_null("") != "none").to_numpy()
    deadline_ms[stated] = _ms(due_s[stated])
    return JobList(templates, kind, jobs.ids, submit_ms, jobs.work_total, deadline_ms)


def _numbers(rows: pl.DataFrame, name: str) -> Floats:
    """A column, NaN where there is no value."""
    if name not in rows.columns:
        return np.full(len(rows), math.nan)
    return rows[name].cast(pl.Float64).fill_null(math.nan).to_numpy()


def _ms(seconds: Floats) -> Ints:
    return np.rint(seconds * MS_PER_S).astype(np.int64)


def _extra(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cell `extra`; text that is no JSON object tells nothing of a job."""
    try:
        found = parse_json(row.get("extra") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Builder:
    def __init__(self, cluster: Cluster, catalogue: ThroughputCatalogue | None, source: str) -> None:
        self.cluster = cluster
        self.catalogue = catalogue
        self.source = source
        self._speeds: dict[tuple[str, int, int | None], tuple[dict[str, float], dict[str, float]]] = {}
        self._curves: dict[tuple[str, int | None], Scaling] = {}
        self._limited: dict[tuple[Scaling, float], Scaling] = {}
        """Curves bounded by the servers' bandwidth, by curve and workers that a server feeds."""
        self._why_unfit: dict[tuple[Any, ...], str] = {}
        """By what a job asks for."""
        self.largest_by_type = {
            name: max(node.gpus for node in cluster.nodes if node.accelerator == name) for name in cluster.types
        }
        self.total_by_type = dict(zip(cluster.types, cluster.gpus_by_type.tolist(), strict=True))

    def _error(
        self, row: Mapping[str, Any], column: str, what: str, expected: str = "", remedy: str = ""
    ) -> InputError:
        return InputError(f"job '{row['job_id']}': {what}", expected, remedy, self.source, row.get("line"), column)

    def spec(self, row: Mapping[str, Any]) -> JobSpec:
        workers, worker = self._gang(row)
        lowest, highest = self._range(row, workers, worker)
        servers = self._servers(row)
        submit_ms = ms_from_s(row["submit_s"])
        extra = _extra(row)
        work, speeds, spread = self._work(row, workers * worker.devices)
        deadline_ms, kind = self._deadline(row, submit_ms, work, speeds, extra)
        utility = at_age(row["utility"], row["submit_s"]).to_json() if row.get("utility") else None
        return JobSpec(
            id=JobId(row["job_id"]),
            submit_ms=submit_ms,
            workers_min=lowest,
            workers_max=highest,
            workers_ref=workers,
            worker=worker,
            gpu_types=tuple(filter(None, (row.get("gpu_types") or "").split("|"))),
            work_total=work,
            steps_per_s=speeds,
            steps_per_s_spread=spread,
            **servers,
            scaling=self._scaling(row, lowest, highest, servers),
            weight=self._extra_number(row, extra, "weight", 1.0),
            priority=row.get("priority") or 0,
            entity=row.get("vc") or "",
            deadline_ms=deadline_ms,
            deadline_kind=kind,
            utility=utility,
            model=row.get("model") or "",
            batch_size=row.get("batch_size"),
        )

    def _gang(self, row: Mapping[str, Any]) -> tuple[int, Demand]:
        gpus = row["gpus"]
        workers, each = row.get("num_workers"), row.get("gpus_per_worker")
        if not workers or each is None:
            if gpus <= 1 or row.get("num_workers") == 1:
                workers, each = 1, gpus
            elif gpus == int(gpus):
                workers, each = int(gpus), 1.0
            else:
                raise self._error(
                    row,
                    "gpus",
                    f"{gpus:g} GPUs",
                    "whole GPUs, or a fraction of one",
                    "Give num_workers and gpus_per_worker for several fractions.",
                )
        elif abs(workers * each - gpus) > _GPUS_OFF * max(gpus, 1.0):
            what = f"{workers} workers with {each:g} GPUs each are not {gpus:g} GPUs"
            raise self._error(
                row, "gpus_per_worker", what, "num_workers x gpus_per_worker = gpus", "Correct one of the three."
            )
        milli = round(each * GPU_MILLI)
        if milli > GPU_MILLI and milli % GPU_MILLI:
            raise self._error(row, "gpus_per_worker", f"{each:g} GPUs a worker", "whole GPUs, or a fraction of one")
        cpus, mem = row.get("cpus") or 0.0, row.get("mem_gib") or 0.0
        return workers, Demand(milli, math.ceil(cpus * 1000 / workers), math.ceil(mem * 1024 / workers))

    def _range(self, row: Mapping[str, Any], workers: int, worker: Demand) -> tuple[int, int]:
        low, high = row.get("min_gpus"), row.get("max_gpus")
        if (low is None and high is None) or worker.gpu_milli == 0:
            return workers, workers
        each = worker.gpu_milli / GPU_MILLI
        lowest = workers if low is None else max(1, math.ceil(low / each))
        highest = workers if high is None else int(high / each)
        if not lowest <= workers <= highest:
            given = " and ".join(
                f"{name} is {bound:g}" for name, bound in (("min_gpus", low), ("max_gpus", high)) if bound is not None
            )
            column = "min_gpus" if high is None or lowest > workers else "max_gpus"
            raise self._error(row, column, f"asks for {row['gpus']:g} GPUs but {given}", "min_gpus <= gpus <= max_gpus")
        return lowest, highest

    def _servers(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of `JobSpec` about parameter servers; nothing of a job without."""
        given = [row.get(name) for name in ("servers", "max_servers", "min_servers")]
        asked = next((int(number) for number in given if number is not None), 0)
        high, low = (asked if number is None else int(number) for number in given[1:])
        if not high:
            return {}
        if not low <= asked <= high:
            raise self._error(
                row, "servers", f"{asked} servers of {low} to {high}", "min_servers <= servers <= max_servers"
            )
        cpus = row.get("cpus_per_server")
        cpu_milli = SERVER_DEMAND.cpu_milli if cpus is None else math.ceil(cpus * 1000)
        demand = Demand(0, cpu_milli, math.ceil((row.get("mem_gib_per_server") or 0.0) * 1024))
        return {"servers_min": low, "servers_max": high, "servers_ref": asked, "server": demand}

    def _work(self, row: Mapping[str, Any], gpus: int) -> tuple[float, dict[str, float], dict[str, float]]:
        """Total work and its speed by type: steps where a catalogue knows the model, else seconds."""
        model, iterations, duration = row.get("model"), row.get("iterations"), row.get("duration_s")
        speeds: dict[str, float] = {}
        spread: dict[str, float] = {}
        if model and self.catalogue is not None:
            speeds, spread = self._speeds_of(model, max(gpus, 1), row.get("batch_size"))
        if speeds and iterations is not None and duration is None:
            if max(speeds.values()) <= 0:
                raise self._error(
                    row,
                    "model",
                    f"'{model}' on {gpus} GPUs cannot run on any type of this cluster",
                    "a positive throughput on at least one type",
                )
            if iterations > LONGEST_S * max(speeds.values()):
                raise self._error(
                    row,
                    "iterations",
                    f"{iterations} steps at {max(speeds.values()):g} a second",
                    f"at most {LONGEST_S:g} seconds of work",
                )
            return float(iterations), speeds, spread
        if duration is None:
            if self.catalogue is None:
                raise self._error(
                    row,
                    "duration_s",
                    "no duration, and no throughput table to derive it from",
                    "duration_s, or model and iterations with --throughputs",
                    "Add --throughputs FILE (or --throughputs builtin).",
                )
            if not set(self.cluster.types) & set(self.catalogue.types):
                raise InputError(
                    f"the throughput table knows no type of the cluster ({', '.join(self.cluster.types)})",
                    f"types of the table: {', '.join(self.catalogue.types)}",
                    remedy="Give another --cluster, or another table.",
                )
            raise self._error(
                row,
                "model",
                f"the throughput table does not know '{model}' on {gpus} GPUs",
                "a model and size of the table",
                "Use another table, or leave them out.",
            )
        if speeds and max(speeds.values()) > 0:
            # The duration is understood as that on the fastest type of this cluster.
            fastest = max(speeds.values())
            return (
                float(duration),
                {name: speed / fastest for name, speed in speeds.items()},
                {name: speed / fastest for name, speed in spread.items()},
            )
        return float(duration), {}, {}

    def _speeds_of(self, model: str, gpus: int, batch_size: int | None) -> tuple[dict[str, float], dict[str, float]]:
        key = (model, gpus, batch_size)
        found = self._speeds.get(key)
        if found is None:
            assert self.catalogue is not None
            alone: dict[str, float] = {}
            spread: dict[str, float] = {}
            for name in self.cluster.types:
                speed = self.catalogue.steps_per_s(model, gpus, name, batch_size=batch_size)
                if speed is not None:
                    alone[name] = speed
                    apart = self.catalogue.steps_per_s(model, gpus, name, spread=True, batch_size=batch_size)
                    if apart is not None:
                        spread[name] = apart
            found = self._speeds[key] = (alone, spread)
        return found

    def _scaling(self, row: Mapping[str, Any], lowest: int, highest: int, servers: Mapping[str, Any]) -> Scaling:
        curve, fed = self._curve(row, lowest, highest), self._workers_per_server(row) if servers else 0.0
        if not fed:
            return curve
        return self._limited.setdefault((curve, fed), replace(curve, workers_per_server=fed))

    def _workers_per_server(self, row: Mapping[str, Any]) -> float:
        worker, server = row.get("worker_mbps") or 0.0, row.get("server_mbps") or 0.0
        if (worker > 0) != (server > 0) or server < worker:
            what = f"{worker:g} Mbit/s of a worker and {server:g} of a server"
            raise self._error(row, "server_mbps", what, "both or neither, a server's at least a worker's")
        return server / worker if worker else 0.0

    def _curve(self, row: Mapping[str, Any], lowest: int, highest: int) -> Scaling:
        if lowest == highest:
            return LINEAR
        model = row.get("model")
        if model and self.catalogue is not None:
            key = (model, row.get("batch_size"))
            if key not in self._curves:
                self._curves[key] = self._measured_curve(*key)
            return self._curves[key]
        return amdahl(ELASTIC_SERIAL_FRACTION)

    def _measured_curve(self, model: str, batch_size: int | None) -> Scaling:
        """Speed against size on the first type of which the catalogue knows several sizes."""
        assert self.catalogue is not None
        for name in self.cluster.types:
            points = []
            for size in (1, 2, 4, 8, 16, 32, 64):
                speed = self.catalogue.steps_per_s(model, size, name, batch_size=batch_size)
                if speed:
                    points.append((size, speed))
            if len(points) > 1:
                return Scaling(points=tuple(points))
        return amdahl(ELASTIC_SERIAL_FRACTION)

    def _deadline(
        self, row: Mapping[str, Any], submit_ms: int, work: float, speeds: Mapping[str, float], extra: Mapping[str, Any]
    ) -> tuple[int, DeadlineKind]:
        kind = _KINDS.get(row.get("deadline_kind") or "", DeadlineKind.NONE)
        if row.get("deadline_s") is not None and row.get("deadline_kind") != "none":
            return ms_from_s(row["deadline_s"]), kind or DeadlineKind.HARD
        if "slo_multiple" in extra:  # Gavel: a multiple of the run time on the fastest type
            slo_s = self._extra_number(row, extra, "slo_multiple", 0.0) * work / max(speeds.values(), default=1.0)
            return submit_ms + ms_from_s(min(slo_s, LONGEST_S)), DeadlineKind.HARD
        return NEVER_MS, DeadlineKind.NONE

    def _extra_number(self, row: Mapping[str, Any], extra: Mapping[str, Any], name: str, default: float) -> float:
        """A number of `extra`, where columns that the schema does not know are kept too."""
        try:
            number = float(extra.get(name, default))
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not 0 <= number <= MAX_NUMBER or (name == "weight" and number == 0):
            raise self._error(row, name, f"invalid {name} {extra[name]!r}", "a positive number")
        return number

    def why_unfit(self, spec: JobSpec) -> str:
        """Why this cluster could never run the job at the size it asks for; empty if it could."""
        speeds = tuple(name for name, speed in spec.steps_per_s.items() if speed > 0) if spec.steps_per_s else None
        shape = (spec.worker, spec.workers_ref, spec.gpu_types, speeds, spec.server, spec.servers_ref)
        if shape not in self._why_unfit:
            self._why_unfit[shape] = self._look_for_room(spec)
        return self._why_unfit[shape]

    def _look_for_room(self, spec: JobSpec) -> str:
        runnable = [
            name
            for name in self.cluster.types
            if (not spec.gpu_types or name in spec.gpu_types)
            and (not spec.steps_per_s or spec.steps_per_s.get(name, 0) > 0)
        ]
        if not runnable:
            wanted = "|".join(spec.gpu_types) or "a type with a known speed"
            return f"it runs on {wanted}, the cluster has {', '.join(self.cluster.types)}"
        each = spec.worker.devices
        room = 0
        for name in runnable:
            fitting = sum(
                min(
                    node.gpus // each if each else 1 << 30,
                    node.cpu_milli // spec.worker.cpu_milli if spec.worker.cpu_milli else 1 << 30,
                    node.mem_mib // spec.worker.mem_mib if spec.worker.mem_mib else 1 << 30,
                )
                * (GPU_MILLI // spec.worker.share_milli if 0 < spec.worker.share_milli < GPU_MILLI else 1)
                for node in self.cluster.nodes
                if node.accelerator == name
            )
            room = max(room, fitting)
        if room < spec.workers_ref:
            most = max((self.total_by_type[name], name) for name in runnable)
            shape = f" ({each} on one node each)" if each > 1 else ""
            return (
                f"it asks for {spec.gpus:g} GPUs of one type{shape}, the cluster has {most[0]} of {most[1]}"
                f" on nodes of {self.largest_by_type[most[1]]}"
            )
        types = [self.cluster.types.index(name) for name in runnable]
        if spec.servers_max and not any(
            fits_when_empty(self.cluster, spec, spec.workers_ref, gpu_type, spec.servers_ref) for gpu_type in types
        ):
            return f"its {spec.servers_ref} parameter servers do not fit beside its workers"
        return ""
