"""The jobtrace schema: every column of the jobs table and its companions, with type, unit and bounds."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from trainmaster.model.foreign import MAX_NUMBER

DURATION_KINDS = ("run", "span_incl_retries", "scheduled_to_deleted", "end_minus_start_1min", "run_0.5s", "generated")
STATUSES = ("completed", "failed", "cancelled", "timeout", "node_fail", "running", "pending", "unknown")
JOB_CLASSES = ("pretrain", "sft", "eval", "debug", "inference", "train", "sft_or_other")
DEADLINE_KINDS = ("hard", "soft", "none")


@dataclass(frozen=True)
class Column:
    """One column: its polars type, its unit in words, and what a cell may hold. Numbers are never beyond
    `MAX_NUMBER`, whatever the column."""

    name: str
    dtype: pl.DataType
    unit: str = ""
    minimum: float | None = None
    choices: tuple[str, ...] = ()
    maximum: float | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Of a column of numbers."""
        if not self.dtype.is_numeric():
            return None
        low, high = self.minimum, self.maximum
        return (-MAX_NUMBER if low is None else low, MAX_NUMBER if high is None else high)

    @property
    def expectation(self) -> str:
        """What a cell should be, in words, for messages."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        kind = {pl.Float64(): "a number", pl.Int64(): "a whole number", pl.Boolean(): "0 or 1"}.get(self.dtype, "text")
        if self.unit:
            kind += f" of {self.unit}"
        least = f", at least {self.minimum:g}" if self.minimum is not None else ""
        return kind + least + (f", at most {self.bounds[1]:g}" if self.bounds else "")


LONGEST_S = 1e11
"""Three thousand years. What is later or lasts longer is no time of a job, and sums of it would not fit a clock."""


def _text(name: str, *choices: str) -> Column:
    return Column(name, pl.String(), choices=choices)


def _number(name: str, unit: str, minimum: float | None = 0.0, maximum: float | None = None) -> Column:
    return Column(name, pl.Float64(), unit, minimum, maximum=maximum)


def _count(name: str, unit: str = "", minimum: float | None = 0.0) -> Column:
    return Column(name, pl.Int64(), unit, minimum)


SERVER_COLUMNS: tuple[Column, ...] = (
    _count("servers", "parameter servers"),
    _count("min_servers", "parameter servers"),
    _count("max_servers", "parameter servers"),
    _number("cpus_per_server", "CPUs"),
    _number("mem_gib_per_server", "GiB"),
    _number("worker_mbps", "Mbit/s"),
    _number("server_mbps", "Mbit/s"),
)
"""Written only where a job has a value."""
JOB_COLUMNS: tuple[Column, ...] = (
    _text("trace_id"),
    _text("job_id"),
    _number("submit_s", "seconds", maximum=LONGEST_S),
    _text("submit_wall"),
    _number("start_s", "seconds", None),
    _number("end_s", "seconds", None),
    _number("duration_s", "seconds", maximum=LONGEST_S),
    _text("duration_kind", *DURATION_KINDS),
    _text("status", *STATUSES),
    _text("user"),
    _text("tenant"),
    _text("vc"),
    _count("priority", minimum=None),
    _text("qos"),
    _text("job_class", *JOB_CLASSES),
    _number("gpus", "GPUs"),
    _count("num_workers", "workers"),
    _number("gpus_per_worker", "GPUs"),
    _text("gpu_types"),
    _number("gpu_mem_gib", "GiB"),
    _number("cpus", "CPUs"),
    _number("mem_gib", "GiB"),
    Column("gang", pl.Boolean()),
    _number("min_gpus", "GPUs"),
    _number("max_gpus", "GPUs"),
    *SERVER_COLUMNS,
    _text("model"),
    _count("batch_size", "samples", 1.0),
    _count("iterations", "steps"),
    _number("iter_time_s", "seconds"),
    _text("exec_plan"),
    _number("est_duration_s", "seconds"),
    _number("limit_s", "seconds"),
    _number("deadline_s", "seconds on the trace clock", None, LONGEST_S),
    _text("deadline_kind", *DEADLINE_KINDS),
    _text("utility"),
    _count("attempts"),
    _text("generated_fields"),
    _text("extra"),
)
NODE_COLUMNS: tuple[Column, ...] = (
    _text("node_id"),
    _text("gpu_type"),
    _number("gpus", "GPUs"),
    _number("gpu_mem_gib", "GiB"),
    _number("cpus", "CPUs"),
    _number("mem_gib", "GiB"),
    _text("rack"),
    _text("pod"),
    _text("core"),
    _text("vc"),
    _number("from_s", "seconds", None),
    _number("to_s", "seconds", None),
)
QUOTA_COLUMNS: tuple[Column, ...] = (_text("vc"), _number("from_s", "seconds", None), _number("gpus", "GPUs"))
ATTEMPT_COLUMNS: tuple[Column, ...] = (
    _text("job_id"),
    _count("attempt"),
    _number("start_s", "seconds", None),
    _number("end_s", "seconds", None),
    _text("node_id"),
    _number("gpus", "GPUs"),
    _text("exit"),
)
COMPANIONS: dict[str, tuple[Column, ...]] = {
    "nodes": NODE_COLUMNS,
    "quotas": QUOTA_COLUMNS,
    "attempts": ATTEMPT_COLUMNS,
}
COMPANION_REQUIRED: dict[str, tuple[str, ...]] = {
    "nodes": ("node_id", "gpus"),
    "quotas": ("vc", "gpus"),
    "attempts": ("job_id",),
}

JOB_REQUIRED = ("job_id", "submit_s", "gpus")
JOB_COLUMN_NAMES = tuple(column.name for column in JOB_COLUMNS)
LINE = "line"
