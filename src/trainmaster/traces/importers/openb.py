"""Alibaba `openb` v2023: a pod list with fractional GPUs, and the node list beside it."""

from __future__ import annotations

import polars as pl

from trainmaster.traces.cells import typed
from trainmaster.traces.delimited import read_table, sniff_columns
from trainmaster.traces.importers.shaping import finish, sibling
from trainmaster.traces.schema import LINE, Column
from trainmaster.traces.source import Source, read_source
from trainmaster.traces.trace import JobTrace, companion_from_table

NAME = "alibaba-openb-2023"
_PODS = (
    Column("name", pl.String()),
    Column("cpu_milli", pl.Float64(), "thousandths of a CPU", 0.0),
    Column("memory_mib", pl.Float64(), "MiB", 0.0),
    Column("num_gpu", pl.Int64(), "GPUs", 0.0),
    Column("gpu_milli", pl.Float64(), "thousandths of a GPU", 0.0),
    Column("gpu_spec", pl.String()),
    Column("qos", pl.String()),
    Column("pod_phase", pl.String(), choices=("Running", "Failed", "Pending", "Succeeded", "Unknown")),
    Column("creation_time", pl.Float64(), "seconds", 0.0),
    Column("deletion_time", pl.Float64(), "seconds", 0.0),
    Column("scheduled_time", pl.Float64(), "seconds", 0.0),
)
_NODES = (
    Column("sn", pl.String()),
    Column("cpu_milli", pl.Float64(), "thousandths of a CPU", 0.0),
    Column("memory_mib", pl.Float64(), "MiB", 0.0),
    Column("gpu", pl.Float64(), "GPUs", 0.0),
    Column("model", pl.String()),
)
_STATUS = {"Running": "running", "Failed": "failed", "Pending": "pending", "Succeeded": "completed"}


def recognises(source: Source) -> bool:
    return {"gpu_milli", "pod_phase", "creation_time", "scheduled_time"} <= set(sniff_columns(source))


def load(source: Source) -> JobTrace:
    raw = typed(read_table(source), _PODS, source.path, required=("name", "creation_time"))
    jobs = raw.select(
        job_id="name",
        submit_s="creation_time",
        start_s="scheduled_time",
        end_s="deletion_time",
        # a pod that was never scheduled never ran: no duration is known
        duration_s=pl.col("deletion_time") - pl.col("scheduled_time"),
        duration_kind=pl.lit("scheduled_to_deleted"),
        status=pl.col("pod_phase").replace_strict(_STATUS, default="unknown"),
        qos="qos",
        gpus=(pl.col("num_gpu") * pl.col("gpu_milli") / 1000).round(6),
        num_workers=pl.lit(1, dtype=pl.Int64),
        gpus_per_worker=(pl.col("num_gpu") * pl.col("gpu_milli") / 1000).round(6),
        gpu_types="gpu_spec",
        cpus=(pl.col("cpu_milli") / 1000).round(6),
        mem_gib=pl.col("memory_mib") / 1024,
        line=LINE,
    )
    return finish(jobs, source, NAME, nodes=_nodes(source))


def _nodes(source: Source) -> pl.DataFrame | None:
    path = sibling(source, "openb_node_list_all_node.csv", "openb_node_list_gpu_node.csv")
    if path is None:
        return None
    raw = typed(read_table(read_source(path)), _NODES, path, required=("sn", "gpu"))
    nodes = raw.select(
        node_id="sn",
        gpu_type="model",
        gpus="gpu",
        cpus=(pl.col("cpu_milli") / 1000).round(6),
        mem_gib=pl.col("memory_mib") / 1024,
    )
    return companion_from_table(nodes, "nodes", path)
