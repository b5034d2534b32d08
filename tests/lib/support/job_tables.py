"""What every policy does on a few traces, to the byte: the cases behind `job_tables.json`.

The hashes were made once with commit 6920880 and its reference path (commands and events through `Engine.step`, one by
one). `python tests/lib/support/job_tables.py [PATTERN]` runs the cases again and says which differ.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.sim.experiment import Experiment, prepare, run
from trainmaster.traces import load
from trainmaster.traces.assign import DEFAULT_MODELS, Assignment, assign
from trainmaster.traces.generator import GeneratorSpec, generate
from trainmaster.traces.trace import JobTrace

HASHES = Path(__file__).resolve().parents[2] / "golden" / "job_tables.json"
OUTSIDE = Path(os.environ.get("TRAINMASTER_DATA", Path(__file__).resolve().parents[4] / "shared"))
COSTS = {"restart_cost_s": 30.0, "resize_cost_s": 10.0, "spread_penalty": 0.1}
FAILURES = COSTS | {"node_mtbf_s": 200_000.0, "checkpoint_period_s": 600.0, "interference": 0.2}
CASES: dict[str, dict[str, Any]] = {
    "mix": {"cluster": "a100=64x8"},
    "plain": {"cluster": "v100=64x8"},
    "bursts": {"cluster": "v100=16x4,p100=16x4,k80=16x4", "throughputs": "builtin", "round_s": 360.0},
    "elastic": {"cluster": "v100=24x8,k80=8x4", "throughputs": "builtin"},
    "costs": {"cluster": "v100=24x8,k80=8x4", "throughputs": "builtin", **COSTS},
    "failures": {"cluster": "v100=24x8,k80=8x4", "throughputs": "builtin", **FAILURES},
    "gangs": {"cluster": "v100=24x4,p100=16x4", "throughputs": "builtin", "spread_penalty": 0.2},
    "philly": {"cluster": "gpu=2490x8", "placement": "pack"},
}
"""The world of each trace. `costs` and `failures` are `elastic` in a less perfect world."""


def generated(name: str) -> JobTrace:
    """The traces of our own making."""
    if name == "plain":
        return generate(GeneratorSpec(jobs=1000, cluster_gpus=64, load=1.1), 11)
    if name == "bursts":
        trace = generate(GeneratorSpec(jobs=400, cluster_gpus=48, load=0.9, arrivals="bursty"), 12)
        return assign(trace, Assignment(DEFAULT_MODELS, deadline_fraction=0.5, soft_fraction=0.5), 12)
    if name == "gangs":
        mix = {1: 0.3, 4: 0.3, 8: 0.25, 16: 0.15}
        trace = generate(GeneratorSpec(jobs=200, cluster_gpus=40, load=1.3, gpu_mix=mix), 14)
        team = pl.Series("vc", [("org/a", "org/b", "lab")[k % 3] for k in range(trace.jobs.height)])
        return assign(replace(trace, jobs=trace.jobs.with_columns(team)), Assignment(DEFAULT_MODELS), 14)
    trace = generate(GeneratorSpec(jobs=300, cluster_gpus=32, load=1.0, arrivals="diurnal"), 13)
    given = Assignment(DEFAULT_MODELS, elastic_fraction=0.6, deadline_fraction=0.4, utility_fraction=0.5)
    return assign(trace, given, 13)


def trace_of(case: str) -> tuple[str, JobTrace] | None:
    """A label and the trace; None where outside data is missing."""
    if case in ("mix", "philly"):
        path = OUTSIDE / "traces" / ("philly-mix-1k.csv" if case == "mix" else "philly.csv.gz")
        if not path.exists():
            return None
        trace = load(path)
        return str(path), trace if case == "mix" else philly_window(trace)
    return case, generated("elastic" if case in ("costs", "failures") else case)


def philly_window(trace: JobTrace) -> JobTrace:
    """The jobs with GPUs of October and November 2017."""
    day = pl.col("submit_wall")
    jobs = trace.jobs.filter((pl.col("gpus") > 0) & (day >= "2017-10-01") & (day < "2017-12-01"))
    return replace(trace, jobs=jobs.with_columns(pl.col("submit_s") - pl.col("submit_s").min()))


def table_hash(case: str, policy: str) -> str | None:
    """Of the job table that one run leaves; None where outside data is missing."""
    found = trace_of(case)
    if found is None:
        return None
    label, trace = found
    outcome = run(prepare(Experiment(trace=label, policy=policy, unfit="reject", **CASES[case]), trace))
    return hashlib.sha256(outcome.jobs.write_csv().encode()).hexdigest()


def main() -> None:
    pattern = sys.argv[1] if len(sys.argv) > 1 else "*"
    differing = 0
    for key, expected in json.loads(HASHES.read_text()).items():
        if fnmatch.fnmatch(key, pattern):
            begun = time.process_time()
            found = table_hash(*key.split("/", 1))
            differing += found not in (None, expected)
            state = "no data" if found is None else "same" if found == expected else "DIFFERS"
            print(f"{state:8s} {key} {time.process_time() - begun:.1f} s", flush=True)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
