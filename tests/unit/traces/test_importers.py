"""Each public format: a small file in its exact form, the real one where there is one, malformed ones."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.trace_formats import (
    CHRONUS,
    ELASTIC,
    GAVEL7,
    GAVEL10,
    HELIOS,
    ITP,
    KUEUE,
    MALFORMED,
    OPENB,
    PAI_JOBS,
    PAI_TASKS,
    PHILLY,
    SACCT,
)
from trainmaster.model.errors import InputError
from trainmaster.model.utility import Step
from trainmaster.traces import JobTrace, load
from trainmaster.traces.utility import parse_cell


def read(tmp_path: Path, text: str, name: str = "input") -> JobTrace:
    path = tmp_path / name
    path.write_text(text)
    return load(path)


def test_gavel_ten_columns(tmp_path: Path) -> None:
    trace = read(tmp_path, GAVEL10)
    first, second = trace.jobs.rows(named=True)
    assert (first["job_id"], first["model"], first["batch_size"]) == ("0", "LM (batch size 5)", 5)
    assert (first["iterations"], first["gpus"], first["submit_s"], first["duration_s"]) == (
        1000,
        2.0,
        0.5,
        None,
    )
    assert json.loads(first["extra"])["slo_multiple"] == 1.2
    assert json.loads(first["extra"])["weight"] == 5.0
    assert "slo_multiple" not in json.loads(second["extra"])


def test_gavel_seven_columns(tmp_path: Path) -> None:
    (job,) = read(tmp_path, GAVEL7).jobs.rows(named=True)
    assert (job["model"], job["iterations"], job["submit_s"], job["gpus"]) == ("CycleGAN", 500, 0.0, 1.0)


def test_philly_with_machines_and_attempts(tmp_path: Path) -> None:
    (tmp_path / "cluster_job_log").write_text(json.dumps(PHILLY, indent=1))
    (tmp_path / "cluster_machine_list").write_text("machineId,number of GPUs,single GPU mem\nm31,8, 24GB\n")
    for trace in (load(tmp_path), load(tmp_path / "cluster_job_log")):
        (job,) = trace.jobs.rows(named=True)
        assert (job["submit_s"], job["start_s"], job["duration_s"]) == (9.0, 39.0, 74.0 + 3600.0)
        assert (job["gpus"], job["num_workers"], job["attempts"], job["status"]) == (2.0, 1, 2, "completed")
        assert trace.attempts is not None
        assert trace.attempts["node_id"].to_list() == ["m47", "m1|m2"]
        assert trace.nodes is not None
        assert trace.nodes.row(0)[:4] == ("m31", None, 8.0, 24.0)
        assert sum(trace.meta["left_out"].values()) == 1


def test_helios_with_quotas(tmp_path: Path) -> None:
    (tmp_path / "cluster_gpu_number.csv").write_text("date,vcB,vcC,total\n2020-06-09,64,8,72\n")
    trace = read(tmp_path, HELIOS, "cluster_log.csv")
    early, late = trace.jobs.rows(named=True)
    assert (early["job_id"], early["status"], early["submit_s"]) == ("11", "node_fail", 0.0)
    assert (late["start_s"], late["duration_s"], late["gpus"], late["gpus_per_worker"]) == (
        86.0,
        249.0,
        16.0,
        8.0,
    )
    assert trace.quotas is not None
    assert trace.quotas.row(0) == ("vcB", -(18 * 3600 + 41 * 60 + 1.0), 64.0)


def test_pai_tasks_joined_with_jobs(tmp_path: Path) -> None:
    (tmp_path / "pai_job_table.csv").write_text(PAI_JOBS)
    (tmp_path / "pai_group_tag_table.csv").write_text("i1,userA,V100,grp,bert\n")
    trace = read(tmp_path, PAI_TASKS, "pai_task_table.csv")
    first, second = trace.jobs.rows(named=True)
    assert (first["gpus"], first["cpus"], first["mem_gib"]) == (1.0, 14.0, 49.0)
    assert (first["submit_s"], first["start_s"], first["duration_s"]) == (0.0, 10.0, 110.0)
    assert (first["user"], first["num_workers"], first["gpu_types"], first["model"]) == (
        "userA",
        2,
        "V100",
        "bert",
    )
    assert (second["job_id"], second["status"], second["submit_s"]) == ("job_b", "failed", 990.0)
    assert load(tmp_path).jobs.equals(trace.jobs)
    assert load(tmp_path / "pai_job_table.csv").jobs.equals(trace.jobs)


def test_openb(tmp_path: Path) -> None:
    (tmp_path / "openb_node_list_all_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,8,V100M16\n"
    )
    trace = read(tmp_path, OPENB)
    (job,) = trace.jobs.rows(named=True)
    assert (job["gpus"], job["cpus"], job["mem_gib"], job["duration_s"]) == (0.46, 6.0, 12.0, 50.0)
    assert (job["gpu_types"], job["qos"]) == ("V100M16|V100M32", "LS")
    assert trace.nodes is not None
    assert trace.nodes["mem_gib"].to_list() == [256.0]


def test_itp_raw_and_elasticflow(tmp_path: Path) -> None:
    raw = read(tmp_path, ITP, "cluster07.csv")
    assert raw.generated_fields == ()
    assert raw.jobs.select("vc", "submit_s", "duration_s", "gpus").row(0) == (
        "cluster07",
        16566.0,
        3890.0,
        4.0,
    )
    assert raw.jobs["model"].to_list() == [None]
    full = read(tmp_path, ELASTIC)
    assert full.generated_fields == ("batch_size", "deadline_s", "iterations", "model")
    assert full.jobs.select("model", "iterations", "deadline_s", "batch_size").row(0) == (
        "bert",
        40285,
        21347.0,
        64,
    )


def test_chronus_minutes_deadlines_and_value_steps(tmp_path: Path) -> None:
    trace = read(tmp_path, CHRONUS)
    strict, best, soft = trace.jobs.rows(named=True)
    assert (strict["deadline_s"], strict["deadline_kind"]) == ((2 + 128) * 60, "hard")
    assert (best["deadline_s"], best["utility"], best["deadline_kind"]) == (None, None, "none")
    assert (soft["submit_s"], soft["duration_s"], soft["deadline_kind"]) == (600.0, 420.0, "soft")
    steps = parse_cell(soft["utility"])
    assert isinstance(steps, Step)
    assert [steps.value(60.0 * m) for m in (169, 170, 199, 240)] == [10.0, 8.0, 8.0, 0.0]


def test_sacct(tmp_path: Path) -> None:
    trace = read(tmp_path, SACCT)
    timeout, done = trace.jobs.rows(named=True)
    assert (timeout["gpus"], timeout["gpu_types"], timeout["duration_s"]) == (3.0, "t4|v100", 90.0)
    assert (timeout["limit_s"], timeout["mem_gib"], timeout["status"]) == (90.0, 4.0, "timeout")
    assert (done["gpus"], done["gpus_per_worker"], done["gpu_types"]) == (8.0, 4.0, "a100")
    assert (done["duration_s"], done["limit_s"], done["attempts"]) == (93784.0, 172800.0, 2)
    assert (done["submit_s"], done["start_s"], done["mem_gib"], done["cpus"]) == (10.0, 60.0, 512.0, 64.0)


def test_kueue(tmp_path: Path) -> None:
    (job,) = read(tmp_path, json.dumps(KUEUE, indent=1)).jobs.rows(named=True)
    assert (job["job_id"], job["vc"], job["tenant"], job["priority"]) == ("team-a/w1", "cq", "team-a", 5)
    assert (job["gpus"], job["num_workers"], job["min_gpus"], job["max_gpus"]) == (8.0, 4, 4.0, 8.0)
    assert (job["start_s"], job["duration_s"], job["status"]) == (300.0, 7200.0, "completed")
    assert (job["cpus"], job["mem_gib"], job["gpu_types"]) == (2.0, 8.0, "a100")


@pytest.mark.parametrize(("text", "line", "column"), MALFORMED)
def test_malformed_files_name_the_place(tmp_path: Path, text: str, line: int | None, column: str | None) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert str(caught.value.file) == str(tmp_path / "input")
    if line is not None:
        assert (caught.value.line, caught.value.column) == (line, column)


SAMPLES = [
    GAVEL10, GAVEL7, json.dumps(PHILLY), HELIOS, PAI_TASKS, OPENB, ITP, ELASTIC, CHRONUS, SACCT,
    json.dumps(KUEUE),
]  # fmt: skip


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=300, deadline=None)
def test_mutations_give_a_trace_or_an_input_error(sample: str, data: st.DataObject) -> None:
    text = sample
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(st.sampled_from(["", ",", "\n", "\t", "|", '"', "-1", "nan", "x", "{", "]", "null", "1e999"]))
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 6)) :]
    with TemporaryDirectory() as folder, contextlib.suppress(InputError):
        path = Path(folder) / "input"
        path.write_text(text)
        assert isinstance(load(path), JobTrace)


@pytest.mark.parametrize(
    ("file", "source", "jobs"),
    [
        ("gavel/traces/physical_max_min_fairness.trace", "gavel", 96),
        ("gavel/traces/msr_seed0_0e4a51.7col.trace", "gavel", 1181),
        ("traces/raw/chronus/trace_job_Philly_SLO.csv.gz", "chronus", 30_940),
        ("traces/raw/elasticflow/philly_103959.csv", "elasticflow-itp", 876),
        ("traces/raw/alibaba_v2023/openb_pod_list_default.csv.gz", "alibaba-openb-2023", 7_255),
    ],
)
def test_real_files(shared_data, file: str, source: str, jobs: int) -> None:
    trace = load(shared_data(file))
    assert (trace.source, len(trace)) == (source, jobs)


def test_openb_agrees_with_the_derived_table(shared_data) -> None:
    mine = load(shared_data("traces/raw/alibaba_v2023/openb_pod_list_default.csv.gz")).jobs
    derived = load(shared_data("traces/alibaba_v2023.csv.gz")).jobs
    both = mine.join(derived, on="job_id", suffix="_derived")
    assert both.height == mine.height
    for name in ("submit_s", "duration_s", "gpus", "cpus", "mem_gib", "status", "qos"):
        ours, theirs = both[name], both[f"{name}_derived"]
        assert ours.equals(theirs) or ((ours - theirs).abs() < 1e-9).all(), name
