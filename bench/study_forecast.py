"""How good predictions are on a live service: real processes, jobs that are not as fast as they say.

    python bench/study_forecast.py [--policies fifo,srtf,gavel-max-min] [--parts accuracy,whatif] [--jobs 30]
                                    [--seed 1] [--json FILE]

For each policy a service is started in a temporary home with 8 emulated slots of two types. Jobs arrive over the
first minute; their real speed is a log-normal factor (sigma 0.2) off the declared one. One run is left alone, and its
predictions are judged. In a second run, when all have come, one what-if is asked (another policy), the change is
really made, and what then happens is compared with the answer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.client.client import Client
from trainmaster.forecast.situation import from_json
from trainmaster.forecast.whatif import Change, compare

NODES = "v100=4x2,k80=4x2"
SPEEDS = {"v100": 1.0, "k80": 0.5}
SIGMA = 0.2


class Live:
    """A service in a home of its own."""

    def __init__(self, policy: str, home: Path) -> None:
        command = [sys.executable, "-m", "trainmaster", "up", "--home", str(home), "--port", "0", "--nodes", NODES]
        command += ["--policy", policy, "--stop-jobs", "--quiet"]
        command += ["--round", "20"] if policy.startswith("gavel") else []
        self.process = subprocess.Popen(command, env=os.environ)
        until_s = time.monotonic() + 60
        while not (home / "address").exists():
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit("the service did not start")
            time.sleep(0.1)
        self.client = Client.find(home)

    def submit(self, name: str, size: int, most: int, steps: float, extra: list[str]) -> str:
        request = {
            "command": [sys.executable, "-m", "trainmaster.runtime.emulated", "--steps", f"{steps}", *extra],
            "name": name,
            "workers": {"min": size, "max": most},
            "steps": steps,
            "steps_per_s": {kind: speed * most for kind, speed in SPEEDS.items()},
            "env": {"PYTHONPATH": os.pathsep.join(sys.path)},
        }
        return self.client.submit(request)["id"]

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {job["id"]: job for job in self.client.get("/jobs", {"limit": 1000})["jobs"]}

    def wait(self, limit_s: float) -> dict[str, dict[str, Any]]:
        until_s = time.monotonic() + limit_s
        while True:
            jobs = self.jobs()
            if all(job["ended"] is not None for job in jobs.values()) or time.monotonic() > until_s:
                return jobs
            time.sleep(1.0)

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(30)


def study(policy: str, count: int, seed: int, change: bool) -> dict[str, Any]:
    rng = np.random.Generator(np.random.PCG64(seed))
    with tempfile.TemporaryDirectory(prefix="trainmaster-study-") as folder:
        live = Live(policy, Path(folder) / "home")
        try:
            for k in range(count):
                size = int(rng.choice([1, 1, 2, 2, 4]))
                most = size * 2 if rng.random() < 0.3 and size < 4 else size
                steps = float(np.clip(rng.lognormal(math.log(14.0), 0.6), 6, 45)) * most
                factor = math.exp(SIGMA * float(rng.normal()))
                live.submit(f"kind{k % 5}-{k}", size, most, round(steps, 1), ["--factor", f"{factor:.3f}"])
                time.sleep(float(rng.exponential(60 / count)))
            if not change:
                jobs = live.wait(900)
                finished = sum(job["state"] == "finished" for job in jobs.values())
                return {"finished": finished, "accuracy": live.client.get("/accuracy")}
            time.sleep(8.0)  # measured speeds have come in
            other = "srtf" if policy != "srtf" else "fifo"
            situation = from_json(live.client.get("/situation"))
            foretold = compare(situation, Change(policy=other))
            begun_s = time.time()
            live.client.put("/policy", {"policy": other})
            jobs = live.wait(900)
            return {"other": other, **judge(foretold.after, jobs, begun_s)}
        finally:
            live.close()


def judge(foretold: dict[str, Any], jobs: dict[str, dict[str, Any]], begun_s: float) -> dict[str, Any]:
    """What was foretold for the change against what followed it."""
    errors, before, after = [], [], []
    for job_id, fate in foretold.items():
        job = jobs[job_id]
        if fate.finish_s is None or job["state"] != "finished":
            continue
        actual_s = job["ended"] - begun_s
        life_s = job["ended"] - job["submitted"]
        errors.append(abs(fate.finish_s - actual_s) / life_s)
        before.append(fate.finish_s)
        after.append(actual_s)
    return {
        "jobs": len(errors),
        "median_error": float(np.median(errors)) if errors else None,
        "mean_finish_foretold_s": float(np.mean(before)) if before else None,
        "mean_finish_actual_s": float(np.mean(after)) if after else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fifo,srtf,gavel-max-min")
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", default="accuracy,whatif")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    parts = arguments.parts.split(",")
    for policy in arguments.policies.split(","):
        results.append({"policy": policy, "load_average": os.getloadavg()[0]})
        if "accuracy" in parts:
            results[-1].update(study(policy, arguments.jobs, arguments.seed, change=False))
            tell_accuracy(results[-1], arguments.jobs)
        if "whatif" in parts:
            told = results[-1]["whatif"] = study(policy, arguments.jobs, arguments.seed, change=True)
            tell_whatif(told)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def tell_accuracy(result: dict[str, Any], jobs: int) -> None:
    print(f"\n{result['policy']}: {result['finished']} of {jobs} jobs finished")
    print("life passed  jobs  median error  of what was left  within 90 % band  by p90")
    for row in result["accuracy"]:
        print(
            f"{row['at_fraction_of_life']:11.0%} {row['jobs']:5} {row['median_error']:13.1%} "
            f"{row['median_error_of_remaining']:17.1%} {row['inside_90_fraction']:17.0%} "
            f"{row['below_p90_fraction']:7.0%}",
            flush=True,
        )


def tell_whatif(told: dict[str, Any]) -> None:
    print(
        f"what if {told['other']}, then made: {told['jobs']} jobs, median error {told['median_error']:.1%}, mean "
        f"finish foretold {told['mean_finish_foretold_s']:.1f} s, actual {told['mean_finish_actual_s']:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
