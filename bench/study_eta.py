"""First predictions of jobs of which half declare nothing, in simulated worlds with noise.

    python bench/study_eta.py [--worlds 10] [--jobs 40] [--seed 1] [--policy fifo] [--before SRC] [--json FILE]

Each world begins with an empty store and runs the control plane, its store and its forecasts, all real, against a
simulated backend with a truth of its own. Half of the jobs declare nothing (plain commands: sweeps, runs of so many
epochs, nightly runs that grow, early stopping, commands that nobody has seen, a script that reports steps); the others
declare steps or speeds: well, badly, without a speed, or for a script that never reports. Run times vary from run to
run, types are not as fast relative to each other as the catalogue says, and jobs queue. A first prediction is the first
one that is shown of a job, whenever that is. `--before`: the sources of another commit, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.worker import answer, outlook_from_json
from trainmaster.jobspec.model import JobRequest
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobSpec
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.service.control.forecasts import LiveForecasts
from trainmaster.service.control.requests import Submit
from trainmaster.service.local.tokens import USER, Principal
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth, TruthOptions
from trainmaster.stores.sqlite import SqliteStore

NODES = "v100:2x4,k80:2x4"
GAP_S = 240.0
"""Mean time between arrivals: the cluster is busy, and jobs wait now and then."""
LOOK_S = 120.0
"""How often it is looked ahead while some job has no prediction."""
LIFE_MAX_S = 40 * 3600
SILENT = ("sweep", "epochs", "nightly", "early-stop", "new")
DECLARED = ("good", "biased", "wrong", "no-speed", "silent-declared")


class Job(NamedTuple):
    """A request, and the truth that the service does not see. `seconds`: on a V100 at its size."""

    family: str
    user: str
    request: dict[str, Any]
    seconds: float
    reports: bool
    steps: float
    k80_slower: float


def jobs_of(rng: np.random.Generator, count: int) -> list[Job]:
    """Half of them from families that declare nothing, in random order."""
    users = ("ann", "bob", "cid")
    slower = {family: math.exp(rng.normal(math.log(4.0), 0.3)) for family in (*SILENT, *DECLARED, "reporting")}
    base = {family: 600.0 * math.exp(rng.normal(0.0, 0.7)) for family in slower}
    bias = math.exp(rng.normal(0.0, 0.7))
    silent = [str(rng.choice([*SILENT, "reporting"])) for _ in range(count // 2)]
    declared = [str(rng.choice(DECLARED)) for _ in range(count - count // 2)]
    made: list[Job] = []
    for k, family in enumerate(rng.permutation([*silent, *declared]).tolist()):
        user = users[sorted(slower).index(family) % len(users)]
        steps = float(rng.choice([2000, 5000, 10000]))
        seconds, noise, reports = base[family], 0.12, family not in (*SILENT, "silent-declared")
        words, more = ["python", f"{family}.py"], {}
        if family == "sweep":
            words += ["--lr", f"{rng.choice([0.1, 0.01, 0.001])}", "--seed", str(k)]
        elif family == "epochs":
            epochs = int(rng.choice([2, 3, 5, 10, 20]))
            words += ["--epochs", str(epochs), "--width", f"{rng.choice([64, 128])}"]
            seconds = 40.0 + seconds * epochs / 5
        elif family == "nightly":
            more["name"] = f"nightly-{k}"
            seconds *= 1.02 ** sum(job.family == family for job in made)
            noise = 0.2
        elif family == "early-stop":
            words += ["--patience", f"{rng.choice([3, 5])}"]
            noise = 0.7
        elif family == "new":
            words, noise = ["python", f"idea_{rng.integers(1 << 30)}.py"], 1.0
        elif family == "reporting":
            words += ["--config", f"{'small' if steps < 4000 else 'large'}.yaml"]
            seconds *= steps / 5000
        else:
            seconds *= steps / 5000
        seconds *= math.exp(noise * rng.normal())
        speed = steps / seconds
        if family in DECLARED:
            off = {"good": 0.15 * rng.normal(), "biased": math.log(bias) + 0.15 * rng.normal()}
            said = speed * math.exp(off.get(family, 0.6 * rng.normal()))
            more["steps"] = steps
            if family != "no-speed":
                more["steps_per_s"] = {"v100": said, "k80": said / 4.0}
        size = int(rng.choice([1, 1, 2, 4])) if family != "nightly" else 2
        request = {"command": words, "workers": {"min": size, "max": size}, **more}
        made.append(Job(family, user, request, seconds, reports, steps, slower[family]))
    return made


class Clock:
    ms = 0

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.ms

    def elapsed_ms(self) -> int:
        return self.ms


class World(SimulatedBackend):
    """Jobs are as their truth says; plain commands say nothing of their steps."""

    def __init__(self, nodes: str, seed: int) -> None:
        cluster = parse_cluster(nodes)
        options = TruthOptions(launch_ms=4_000, exit_ms=1_000, report_ms=5_000, report_period_ms=20_000, noise=0.03)
        super().__init__(cluster, Truth(cluster, options, seed), Settings().lease, lambda _: [0])
        self.truths: dict[str, Job] = {}

    def _describe(self, job: int, spec: JobSpec) -> None:
        truth = self.truths[spec.id]
        speed = truth.steps / truth.seconds
        by_type = {"v100": speed, "k80": speed / truth.k80_slower}
        super()._describe(job, replace(spec, work_total=truth.steps, steps_per_s=by_type, steps_per_s_spread={}))

    def report(self, event: ev.Event, job: int = -1) -> None:
        if isinstance(event, ev.Progressed | ev.Exited) and not self.truths[event.job_id].reports:
            if isinstance(event, ev.Progressed):
                return
            event = replace(event, work_saved=math.nan)
        super().report(event, job)

    def observe(self) -> None:
        """Nothing gets lost here that an inventory would make good."""


class Study:
    def __init__(self, folder: Path, policy: str, seed: int) -> None:
        self.clock, self.world = Clock(), World(NODES, seed)
        database = folder / "trainmaster.db"
        self.forecasts = LiveForecasts(LearningEstimator(DeclaredSpeeds()), database)
        store = SqliteStore(database, durable=False)
        self.plane = ControlPlane(
            self.world.cluster, store, self.world, self.clock, self.forecasts.estimator, Settings(), policy,
            live_forecasts=self.forecasts,
        )  # fmt: skip
        self.plane.open()
        self.firsts: dict[str, tuple[float, str]] = {}
        """By job: part of its life until something was said, in seconds, and what it rested on."""

    def go(self, jobs: list[Job], rng: np.random.Generator) -> list[dict[str, Any]]:
        """Run them all; a row for each."""
        at_ms = [round(1000 * s) for s in np.cumsum(rng.exponential(GAP_S, len(jobs))).tolist()]
        ids: dict[str, Job] = {}
        for job, submit_ms in zip(jobs, at_ms, strict=True):
            self._pass_until(submit_ms, set(ids))
            job_id = f"job-{self.plane.next_job}"
            ids[job_id] = self.world.truths[job_id] = job
            (found,) = self.plane.batch([Submit(JobRequest(**job.request), Principal(job.user, USER))])
            if isinstance(found, Exception):
                raise found
            assert found["id"] == job_id
            self._look()
        self._pass_until(at_ms[-1] + LIFE_MAX_S * 1000, set(ids))
        judged = dict(self.forecasts.accuracy.judged)
        rows = []
        for job_id, job in ids.items():
            points = {row.point: row for row in judged.get(job_id, ())}
            first = points.get(0.0)
            rows.append(
                {
                    "family": job.family,
                    "undeclared": job.family in (*SILENT, "reporting"),
                    "error": None if first is None else first.error,
                    "error_left": None if first is None else first.error_left,
                    "inside": None if first is None else first.inside,
                    "later": [row.inside for point, row in points.items() if point > 0],
                    "at_once": self.firsts.get(job_id, (math.inf, ""))[0] < 1.0,
                    "basis": self.firsts.get(job_id, (math.inf, "nothing"))[1],
                }
            )
        return rows

    def _pass_until(self, until_ms: int, ids: set[str]) -> None:
        next_look_ms = self.clock.ms
        while True:
            due_ms = max(min(self.world.next_ms, self.plane.next_wake_ms), self.clock.ms)
            if due_ms > until_ms or not self.plane.live.columns.job_index_of:
                break
            if due_ms > next_look_ms and any(job not in self.firsts for job in self._active() & ids):
                self.clock.ms, next_look_ms = next_look_ms, next_look_ms + round(LOOK_S * 1000)
                self.plane.batch([], self.world.advance(self.clock.ms))
                self._look()
                continue
            next_look_ms = max(next_look_ms, due_ms)
            self.clock.ms = due_ms
            self.plane.batch([], self.world.advance(due_ms))
        self.clock.ms = until_ms
        self.plane.batch([], self.world.advance(until_ms))

    def _active(self) -> set[str]:
        return {str(job_id) for job_id in self.plane.live.columns.job_index_of}

    def _look(self) -> None:
        now_ms = self.clock.ms
        reply = answer(json.dumps(self.forecasts.question(self.plane, now_ms)))
        if "error" in reply:
            raise SystemExit(reply["error"])
        outlooks = {key: outlook_from_json(value) for key, value in reply["outlooks"].items()}
        self.forecasts.answered(now_ms, 0.0, outlooks, reply["widening"])
        for job_id, outlook in outlooks.items():
            if outlook.known and outlook.finish is not None and job_id not in self.firsts:
                spec = self.plane.live.columns.spec(self.plane.live.columns.job_index_of[job_id])
                basis = getattr(outlook, "basis", "").lstrip("0123456789 ") or "its own word"
                self.firsts[job_id] = ((now_ms - spec.submit_ms) / 1000, basis)


def study(worlds: int, count: int, seed: int, policy: str) -> list[list[dict[str, Any]]]:
    found = []
    for world in range(worlds):
        rng = np.random.Generator(np.random.PCG64([seed, world]))
        with tempfile.TemporaryDirectory(prefix="trainmaster-study-") as folder:
            found.append(Study(Path(folder), policy, world).go(jobs_of(rng, count), rng))
    return found


def summary(worlds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Jobs of which nothing was ever said count as infinitely wrong in `strict`."""
    rows = [row for world in worlds for row in world]
    told = [row for row in rows if row["error"] is not None]
    medians = [median(r["error"] for r in world if r["error"] is not None) for world in worlds]
    strict = [median(math.inf if r["error"] is None else r["error"] for r in world) for world in worlds]
    later = [inside for row in rows for inside in row["later"]]
    bare = [row for row in told if row["undeclared"]]
    return {
        "jobs": len(rows),
        "told": len(told),
        "at_once": sum(row["at_once"] for row in rows),
        "median_error": median(row["error"] for row in told),
        "median_error_left": median(row["error_left"] for row in told),
        "median_error_undeclared": median(row["error"] for row in bare) if bare else None,
        "worst_world": max(medians),
        "strict_median_error": median(strict),
        "inside_90": sum(row["inside"] for row in told) / len(told),
        "inside_90_undeclared": sum(row["inside"] for row in bare) / len(bare) if bare else None,
        "inside_90_later": sum(later) / max(len(later), 1),
    }


def by(worlds: list[list[dict[str, Any]]], field: str) -> list[tuple[str, int, int, float, float]]:
    """(value, jobs, with a prediction, median error, inside) by family or basis."""
    rows = [row for world in worlds for row in world]
    found = []
    for value in sorted({row[field] for row in rows}):
        group = [row for row in rows if row[field] == value]
        told = [row for row in group if row["error"] is not None]
        error = median(row["error"] for row in told) if told else math.nan
        inside = sum(row["inside"] for row in told) / len(told) if told else math.nan
        found.append((value, len(group), len(told), error, inside))
    return found


def tell(title: str, worlds: list[list[dict[str, Any]]]) -> None:
    s = summary(worlds)
    bare, bare_in = s["median_error_undeclared"], s["inside_90_undeclared"]
    print(f"\n{title}: {s['jobs']} jobs, {s['told']} predicted, {s['at_once']} of them when submitted")
    print(f"  median error of the first prediction: {s['median_error']:.0%} of the job's life, "
          f"{s['median_error_left']:.0%} of what was left; {s['worst_world']:.0%} in the worst world; "
          f"{s['strict_median_error']:.0%} where jobs without a prediction count as wrong")  # fmt: skip
    if bare is not None:
        print(f"  jobs that declare nothing: {bare:.0%}, {bare_in:.0%} inside the band")
    inside, later = s["inside_90"], s["inside_90_later"]
    print(f"  inside the 90 % band: {inside:.0%} of first predictions, {later:.0%} of later ones")
    for field in ("family", "basis"):
        print(f"  {field:20} jobs  told  error  inside")
        for value, n, told, error, inside in by(worlds, field):
            print(f"  {value:20} {n:4} {told:5} {error:6.0%} {inside:7.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--before", type=Path, help="Sources of another commit, to compare with.")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.before is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "before.json"
            arguments = [f"--{name}={getattr(chosen, name)}" for name in ("worlds", "jobs", "seed", "policy")]
            command = [sys.executable, __file__, *arguments, "--json", str(file)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(chosen.before)}, stdout=-3)
            tell(f"before ({chosen.before})", json.loads(file.read_text()))
    worlds = study(chosen.worlds, chosen.jobs, chosen.seed, chosen.policy)
    tell("now", worlds)
    if chosen.json:
        chosen.json.write_text(json.dumps(worlds, indent=1) + "\n")


if __name__ == "__main__":
    main()
