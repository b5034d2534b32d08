"""Hashes of per-job tables: what every policy does on a few traces, to the byte.

`python tests/golden/job_tables.py write FILE` was run once with commit 6920880 and its reference path (commands and
events through `Engine.step`, one by one). `compare FILE [PATTERN]` runs the cases again and says which differ.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl

from trainmaster.policies.registry import entries
from trainmaster.sim import experiment
from trainmaster.sim.experiment import Experiment, prepare, run
from trainmaster.traces import load
from trainmaster.traces.assign import DEFAULT_MODELS, Assignment, assign
from trainmaster.traces.generator import GeneratorSpec, generate
from trainmaster.traces.trace import JobTrace

OUTSIDE = Path(os.environ.get("TRAINMASTER_DATA", Path(__file__).resolve().parents[3] / "shared"))
QUEUE_POLICIES = ("fifo", "fifo:backfill=true", "sjf", "srtf", "las", "tiresias", "edf")
VARIANTS = (
    "fifo:backfill=true", "fifo:elastic=true", "edf:preempt=true", "gavel-max-min:aware=false",
    "gavel-max-min:space_sharing=true", "gavel-max-min:mechanism=original", "gavel-ftf:aware=false",
)  # fmt: skip
COSTS = {"restart_cost_s": 30.0, "resize_cost_s": 10.0, "spread_penalty": 0.1}
FAILURES = COSTS | {"node_mtbf_s": 200_000.0, "checkpoint_period_s": 600.0, "interference": 0.2}


def generated(name: str) -> JobTrace:
    """The traces of our own making."""
    if name == "plain":
        return generate(GeneratorSpec(jobs=1000, cluster_gpus=64, load=1.1), 11)
    if name == "bursts":
        trace = generate(GeneratorSpec(jobs=400, cluster_gpus=48, load=0.9, arrivals="bursty"), 12)
        return assign(trace, Assignment(DEFAULT_MODELS, deadline_fraction=0.5, soft_fraction=0.5), 12)
    trace = generate(GeneratorSpec(jobs=300, cluster_gpus=32, load=1.0, arrivals="diurnal"), 13)
    return assign(
        trace, Assignment(DEFAULT_MODELS, elastic_fraction=0.6, deadline_fraction=0.4, utility_fraction=0.5), 13
    )


CASES: dict[str, dict] = {
    "mix": {"cluster": "a100=64x8"},
    "plain": {"cluster": "v100=64x8"},
    "bursts": {"cluster": "v100=16x4,p100=16x4,k80=16x4", "throughputs": "builtin", "round_s": 360.0},
    "elastic": {"cluster": "v100=24x8,k80=8x4", "throughputs": "builtin"},
    "costs": {"cluster": "v100=24x8,k80=8x4", "throughputs": "builtin", **COSTS},
    "failures": {"cluster": "v100=24x8,k80=8x4", "throughputs": "builtin", **FAILURES},
    "philly": {"cluster": "gpu=2490x8", "placement": "pack"},
}
"""The world of each trace. `costs` and `failures` are `elastic` in a less perfect world."""


def policies_of(case: str) -> list[str]:
    if case == "philly":
        return list(QUEUE_POLICIES)
    return sorted({entry.name for entry in entries()} | set(VARIANTS))


def trace_of(case: str) -> tuple[str, JobTrace] | None:
    """A label and the trace; None where outside data is missing."""
    if case == "mix":
        path = OUTSIDE / "traces" / "philly-mix-1k.csv"
        return (str(path), load(path)) if path.exists() else None
    if case == "philly":
        path = OUTSIDE / "traces" / "philly.csv.gz"
        return (str(path), philly_window(load(path))) if path.exists() else None
    return case, generated("elastic" if case in ("costs", "failures") else case)


def philly_window(trace: JobTrace) -> JobTrace:
    """The jobs with GPUs of October and November 2017."""
    day = pl.col("submit_wall")
    jobs = trace.jobs.filter((pl.col("gpus") > 0) & (day >= "2017-10-01") & (day < "2017-12-01"))
    return replace(trace, jobs=jobs.with_columns(pl.col("submit_s") - pl.col("submit_s").min()))


def table_hash(case: str, policy: str) -> dict | None:
    """What one run leaves: a hash of the job table and some figures to find a difference by."""
    found = trace_of(case)
    if found is None:
        return None
    label, trace = found
    outcome = run(prepare(Experiment(trace=label, policy=policy, unfit="reject", **CASES[case]), trace))
    text = outcome.jobs.write_csv()
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "jct_s": outcome.summary["average_jct_s"],
        "decisions": outcome.summary["decisions"],
        "preemptions": outcome.summary["preemptions"],
    }


def main() -> None:
    action, file, *rest = sys.argv[1:]
    pattern = rest[0] if rest else "*"
    path = Path(file)
    known = json.loads(path.read_text()) if path.exists() else {}
    if action == "write":  # only with the commit that is the reference
        experiment.simulate = partial(experiment.simulate, at_once=False, passage_decisions=0)  # type: ignore
    bad = 0
    for case in CASES:
        for policy in policies_of(case):
            key = f"{case}/{policy}"
            if not fnmatch.fnmatch(key, pattern) or (key in known) == (action == "write"):
                continue
            begun = time.process_time()
            try:
                result = table_hash(case, policy)
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"[:200]}
            spent = time.process_time() - begun
            if action == "write":
                known[key] = result
                path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
                print(key, result, f"{spent:.1f} s", flush=True)
            else:
                same = result == known[key] or (result or {}).get("sha256", 0) == known[key].get("sha256", 1)
                bad += not same
                print(
                    "same" if same else "DIFFERS",
                    key,
                    f"{spent:.1f} s",
                    "" if same else f"{known[key]} -> {result}",
                    flush=True,
                )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
