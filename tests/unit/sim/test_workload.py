"""The jobs of a trace: kinds of rows, what each job has of its own, and which row an error names."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from trainmaster.estimate.catalogue import load_catalogue
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.sim.experiment import Experiment, prepare, run
from trainmaster.sim.job_list import JobList
from trainmaster.sim.workload import _Builder, workload
from trainmaster.traces import load, write
from trainmaster.traces.assign import DEFAULT_MODELS, Assignment, assign
from trainmaster.traces.generator import GeneratorSpec, generate
from trainmaster.traces.trace import JobTrace

CLUSTER = parse_cluster("v100=24x8,k80=8x4")
WISHES = Assignment(DEFAULT_MODELS, elastic_fraction=0.6, deadline_fraction=0.4, utility_fraction=0.5)


def _plain(n_jobs: int = 200) -> JobTrace:
    return generate(GeneratorSpec(jobs=n_jobs, cluster_gpus=32, load=1.0), 13)


def _with_deadlines() -> JobTrace:
    return assign(_plain(), replace(WISHES, utility_fraction=0.0), 13)


def _with(trace: JobTrace, **columns: pl.Expr) -> JobTrace:
    return replace(trace, jobs=trace.jobs.with_columns(**columns))


def _extra(text: str) -> pl.Expr:
    return pl.when(pl.col("line") % 3 == 0).then(pl.lit(text)).otherwise(pl.lit('{"user": "a"}'))


TRACES = {
    "plain": _plain(),
    "deadlines": _with_deadlines(),
    "utilities": assign(_plain(), WISHES, 13),
    "weights": _with(_plain(), extra=_extra('{"weight": 2.5}')),
    "slo": _with(_with_deadlines(), extra=_extra('{"slo_multiple": 1.5}'), deadline_kind=pl.lit("none")),
}


@pytest.mark.parametrize("name", TRACES)
def test_jobs_are_those_made_row_by_row(name: str) -> None:
    trace, catalogue = TRACES[name], load_catalogue("builtin")
    builder = _Builder(CLUSTER, catalogue, "trace")
    expected = [builder.spec(row) for row in trace.jobs.iter_rows(named=True)]
    jobs = workload(trace, CLUSTER, catalogue).specs
    assert list(jobs) == expected
    assert jobs.submit_ms.tolist() == [spec.submit_ms for spec in expected]
    assert jobs.deadline_ms.tolist() == [spec.deadline_ms for spec in expected]
    assert jobs.work_total.tolist() == [spec.work_total for spec in expected]
    assert jobs.ideal_s().tolist() == JobList.of(expected).ideal_s().tolist()


def test_rows_of_one_kind_share_a_template() -> None:
    trace = _plain(500)
    jobs = workload(trace, CLUSTER).specs
    assert len(jobs.templates) <= trace.jobs["gpus"].n_unique()
    assert not jobs.made


def test_an_error_names_the_first_row_that_is_wrong() -> None:
    trace = _with(_plain(), gpus=pl.when(pl.col("line").is_in([50, 90])).then(1.5).otherwise(pl.col("gpus")))
    unsized = _with(trace, num_workers=pl.lit(None, pl.Int64), gpus_per_worker=pl.lit(None, pl.Float64))
    with pytest.raises(InputError) as caught:
        workload(unsized, CLUSTER)
    assert caught.value.line == 50


def test_too_many_iterations_are_found_in_any_row() -> None:
    trace = assign(_plain(), Assignment(DEFAULT_MODELS), 13)
    steps = pl.when(pl.col("line") == 70).then(10**17).otherwise(1000)
    long = _with(trace, iterations=steps, duration_s=pl.lit(None, pl.Float64))
    with pytest.raises(InputError) as caught:
        workload(long, CLUSTER, load_catalogue("builtin"))
    assert (caught.value.line, caught.value.column) == (70, "iterations")


def test_a_selection_keeps_the_order_of_first_use() -> None:
    jobs = workload(TRACES["deadlines"], CLUSTER, load_catalogue("builtin")).specs
    which = np.flatnonzero(np.arange(len(jobs)) % 7 != 0)
    chosen = jobs.select(which)
    assert list(chosen) == [jobs[k] for k in which.tolist()]
    first_use = [chosen.kind.tolist().index(kind) for kind in range(len(chosen.templates))]
    assert first_use == sorted(first_use)


def test_cpu_time_includes_preparing_and_the_job_table() -> None:
    prepared = prepare(Experiment("demo", "fifo", "v100=64x8"), _plain())
    outcome = run(prepared)
    assert outcome.summary["cpu_s"] > prepared.cpu_s > 0
    assert outcome.summary["wall_s"] > prepared.wall_s > 0


SERVED = """\
job_id,submit_s,gpus,min_gpus,max_gpus,duration_s,servers,min_servers,max_servers,cpus_per_server,worker_mbps,\
server_mbps
a,0,4,1,4,1000,4,1,4,2,1000,2000
b,1,2,,,1000,2,,,,,
c,2,2,,,1000,,,,,,
"""


def test_parameter_servers_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "served.csv").write_text(SERVED)
    trace = load(tmp_path / "served.csv")
    a, b, c = workload(trace, CLUSTER).specs
    assert (a.servers_min, a.servers_ref, a.servers_max, a.server.cpu_milli) == (1, 4, 4, 2000)
    assert a.scaling.workers_per_server == 2
    assert (b.servers_min, b.servers_max, b.server.cpu_milli, b.scaling.workers_per_server) == (2, 2, 1000, 0)
    assert (c.servers_max, c.server.cpu_milli) == (0, 0)
    write(trace, tmp_path / "again.csv")
    assert load(tmp_path / "again.csv").jobs["worker_mbps"].to_list() == [1000, None, None]
    write(replace(trace, jobs=trace.jobs.filter(pl.col("job_id") == "c")), tmp_path / "plain.csv")
    assert "servers" not in (tmp_path / "plain.csv").read_text()


def test_servers_of_a_trace_hold_cpus(tmp_path: Path) -> None:
    """b's two servers have to wait until a's four are gone; c has none."""
    (tmp_path / "served.csv").write_text(SERVED)
    (tmp_path / "nodes.yaml").write_text("nodes: [{accelerator: v100, gpus: 8, cpus: 9}]")
    ready = prepare(Experiment(str(tmp_path / "served.csv"), "fifo", str(tmp_path / "nodes.yaml")))
    ends = {str(end.spec.id): end.first_start_ms for end in run(ready).result.ended}
    assert ends == {"a": 0, "b": ends["a"] + 1_000_000, "c": ends["b"]}, "FIFO is strict"


@pytest.mark.parametrize(
    ("line", "said"),
    [("a,0,1,,,10,2,3,4,,,", "min_servers <= servers <= max_servers"),
     ("a,0,1,,,10,1,,,,1000,", "both or neither"),
     ("a,0,1,,,10,1,,,,1000,500", "at least a worker's")],
)  # fmt: skip
def test_servers_that_make_no_sense(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "bad.csv").write_text(SERVED.splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(InputError) as error:
        workload(load(tmp_path / "bad.csv"), CLUSTER)
    assert said in str(error.value)
